#pragma once
/// One warp's matrix product of bf16 with f32 accumulation.

#include <stdint.h>

namespace kern {

/// c[16, 8] += a[16, 16] b[16, 8]. With g = lane / 4 and t = lane % 4 a lane holds
///   a: (g, 2t…), (g + 8, 2t…), (g, 2t + 8…), (g + 8, 2t + 8…)   pairs of k
///   b: (2t…, g), (2t + 8…, g)                                   pairs of k
///   c: (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)
/// An element of c depends on its own row of a and column of b alone.
__device__ __forceinline__ void mma_16x8x16(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                            uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

}  // namespace kern
