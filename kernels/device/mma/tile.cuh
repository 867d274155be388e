#pragma once
/// bf16 tiles in shared memory that ldmatrix reads without bank conflicts, and mma.m16n8k16 on
/// them.

#include <stdint.h>

namespace kern {

/// Byte offset of 16-byte chunk `chunk` of row `row` in a tile whose rows are kChunks chunks.
template <int kChunks>
__device__ __forceinline__ uint32_t tile_at(int row, int chunk) {
  static_assert(kChunks == 4 || kChunks % 8 == 0, "rows of 64 bytes or a multiple of 128");
  const int twist = kChunks == 4 ? (row >> 1) & 3 : row & 7;
  return static_cast<uint32_t>((row * kChunks + (chunk ^ twist)) * 16);
}

/// Four 8 x 8 matrices; lane l gives the address of row l % 8 of matrix l / 8.
struct Quad {
  uint32_t r[4];
};
__device__ __forceinline__ Quad load_matrix(uint32_t address) {
  Quad q;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(q.r[0]), "=r"(q.r[1]), "=r"(q.r[2]), "=r"(q.r[3])
               : "r"(address)
               : "memory");
  return q;
}
__device__ __forceinline__ Quad load_matrix_trans(uint32_t address) {
  Quad q;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(q.r[0]), "=r"(q.r[1]), "=r"(q.r[2]), "=r"(q.r[3])
               : "r"(address)
               : "memory");
  return q;
}

/// c[16 x 8] += a[16 x 16] b[16 x 8]: c's row lane / 4 (and + 8), columns lane % 4 * 2 and + 1.
__device__ __forceinline__ void mma(float (&c)[4], const Quad& a, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void store_shared(uint32_t address, uint32_t value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

}  // namespace kern
