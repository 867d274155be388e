#include <immintrin.h>

#include "gemm_isa.h"

namespace kern::runtime {
namespace {

struct Vec {
  using T = __m256;
  static constexpr int kLanes = 8;
  static constexpr int kRows = 3;
  static T zero() { return _mm256_setzero_ps(); }
  static T load_bf16(const uint16_t* p) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
  }
  static T fma(T a, T b, T c) { return _mm256_fmadd_ps(a, b, c); }
  static void store(float* p, T v) { _mm256_store_ps(p, v); }
};

}  // namespace
}  // namespace kern::runtime

namespace kern::runtime {
#include "gemm_kernel.h"

void gemm_tile_avx2(const Gemm& gemm, const GemmTile& tile) {
  tile_of(gemm, tile);
}

}  // namespace kern::runtime
