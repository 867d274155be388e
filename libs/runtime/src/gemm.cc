#include <array>

#include "gemm_isa.h"
#include "kern/base/assert.h"
#include "kern/runtime/host_gemm.h"

namespace kern::runtime {
namespace {

constexpr std::array kIsas = {Isa::sse42, Isa::avx2, Isa::avx512};

template <Isa isa, GemmStore store, class C>
void whole(const uint16_t* a, const uint16_t* w, C* c, int64_t m, int64_t n, int64_t k,
           int64_t c_stride, int64_t a_stride) {
  gemm_tile(isa, {a, w, c, m, n, k, c_stride, a_stride, store}, {0, m, 0, n});
}

template <Isa isa>
constexpr kern_host_services kServices = {KERN_HOST_ABI, 0, &whole<isa, GemmStore::bf16, uint16_t>,
                                          &whole<isa, GemmStore::f32, float>};

}  // namespace

const char* to_string(Isa isa) {
  switch (isa) {
    case Isa::sse42:
      return "sse4.2";
    case Isa::avx2:
      return "avx2";
    case Isa::avx512:
      return "avx512";
  }
  return "?";
}

std::span<const Isa> supported_isas() {
  size_t count = 1;  // the whole project is built for SSE4.2
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    count = 2;
    if (__builtin_cpu_supports("avx512f")) count = 3;
  }
  return std::span(kIsas).first(count);
}

void gemm_tile(Isa isa, const Gemm& gemm, const GemmTile& tile) {
  KERN_ASSERT(0 <= tile.row_begin && tile.row_end <= gemm.m, "rows [{}, {}) of {}", tile.row_begin,
              tile.row_end, gemm.m);
  KERN_ASSERT(0 <= tile.col_begin && tile.col_end <= gemm.n, "columns [{}, {}) of {}",
              tile.col_begin, tile.col_end, gemm.n);
  switch (isa) {
    case Isa::sse42:
      return gemm_tile_sse42(gemm, tile);
    case Isa::avx2:
      return gemm_tile_avx2(gemm, tile);
    case Isa::avx512:
      return gemm_tile_avx512(gemm, tile);
  }
}

const kern_host_services& host_services(Isa isa) {
  switch (isa) {
    case Isa::avx512:
      return kServices<Isa::avx512>;
    case Isa::avx2:
      return kServices<Isa::avx2>;
    case Isa::sse42:
      break;
  }
  return kServices<Isa::sse42>;
}

}  // namespace kern::runtime
