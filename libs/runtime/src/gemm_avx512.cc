#include <immintrin.h>

#include "gemm_isa.h"

namespace kern::runtime {
namespace {

struct Vec {
  using T = __m512;
  static constexpr int kLanes = 16;
  static constexpr int kRows = 6;
  static T zero() { return _mm512_setzero_ps(); }
  static T load_bf16(const uint16_t* p) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }
  static T fma(T a, T b, T c) { return _mm512_fmadd_ps(a, b, c); }
  static void store(float* p, T v) { _mm512_store_ps(p, v); }
};

}  // namespace
}  // namespace kern::runtime

namespace kern::runtime {
#include "gemm_kernel.h"

void gemm_tile_avx512(const Gemm& gemm, const GemmTile& tile) {
  tile_of(gemm, tile);
}

}  // namespace kern::runtime
