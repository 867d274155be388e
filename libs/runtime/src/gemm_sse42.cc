#include <immintrin.h>

#include "gemm_isa.h"

namespace kern::runtime {
namespace {

struct Vec {
  using T = __m128;
  static constexpr int kLanes = 4;
  static constexpr int kRows = 3;
  static T zero() { return _mm_setzero_ps(); }
  static T load_bf16(const uint16_t* p) {
    const __m128i half = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    return _mm_castsi128_ps(_mm_unpacklo_epi16(_mm_setzero_si128(), half));
  }
  static T fma(T a, T b, T c) { return _mm_add_ps(_mm_mul_ps(a, b), c); }
  static void store(float* p, T v) { _mm_store_ps(p, v); }
};

}  // namespace
}  // namespace kern::runtime

namespace kern::runtime {
#include "gemm_kernel.h"

void gemm_tile_sse42(const Gemm& gemm, const GemmTile& tile) {
  tile_of(gemm, tile);
}

}  // namespace kern::runtime
