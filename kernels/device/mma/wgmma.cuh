#pragma once
/// wgmma over bf16 tiles in shared memory with the 128-byte swizzle: a tile is 64 values (128
/// bytes) wide, its rows lie one after the other, its address is a multiple of 1024.

#include <stdint.h>

namespace kern {

/// A tile read along its rows (K in the row) or, transposed, across them (K down the rows); both
/// are 8 rows a 1024-byte group.
__device__ __forceinline__ uint64_t descriptor(uint32_t address) {
  return uint64_t{1} << 62 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 16 |
         (address & 0x3FFFF) >> 4;
}

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits until at most `kPending` groups are under way.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// c[64 x n] = or += a[64 x 16] b[n x 16]^T; c's lane order is that of mma.m16n8k16, 16 rows a warp.

template <bool kTransposeA>
__device__ __forceinline__ void wgmma(float (&c)[24], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %26, 0;"
      "wgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,"
      "%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23}, "
      "%24, %25, p, 1, 1, %27, 0;}"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]),
        "+f"(c[7]), "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]),
        "+f"(c[14]), "+f"(c[15]), "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]),
        "+f"(c[21]), "+f"(c[22]), "+f"(c[23])
      : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(static_cast<int>(kTransposeA)));
}
template <bool kTransposeA>
__device__ __forceinline__ void wgmma(float (&c)[12], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %14, 0;"
      "wgmma.mma_async.sync.aligned.m64n24k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,"
      "%8,%9,%10,%11}, "
      "%12, %13, p, 1, 1, %15, 0;}"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]),
        "+f"(c[7]), "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11])
      : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(static_cast<int>(kTransposeA)));
}
template <bool kTransposeA>
__device__ __forceinline__ void wgmma(float (&c)[4], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %6, 0;"
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3}, "
      "%4, %5, p, 1, 1, %7, 0;}"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(static_cast<int>(kTransposeA)));
}

}  // namespace kern
