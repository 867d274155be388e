#pragma once
/// The builds of the kernel; one translation unit each.

#include "kern/runtime/host_gemm.h"

namespace kern::runtime {

void gemm_tile_sse42(const Gemm& gemm, const GemmTile& tile);
void gemm_tile_avx2(const Gemm& gemm, const GemmTile& tile);
void gemm_tile_avx512(const Gemm& gemm, const GemmTile& tile);

}  // namespace kern::runtime
