#pragma once
/// What the kernels of latent attention share: the sizes of a variant, where a row stands in its
/// sequence and which positions a rank holds.
/// Does not: know the model; the sizes are defines of a variant.

#include <stdint.h>

#include "common/sequences.cuh"

#ifndef MLA_LORA
#define MLA_LORA 512
#endif
#ifndef MLA_ROPE
#define MLA_ROPE 64
#endif
#ifndef MLA_NOPE
#define MLA_NOPE 128
#endif
#ifndef MLA_V
#define MLA_V 128
#endif

namespace kern::mla {

constexpr int kLora = MLA_LORA, kRope = MLA_ROPE, kNope = MLA_NOPE, kV = MLA_V;
constexpr int kWidth = kLora + kRope;  // values of a cached row
constexpr int kPage = 64;              // tokens of a page
constexpr int kPart = kLora + 2;       // a part: sums, maximum, total
static_assert(kLora % 64 == 0 && kRope % 32 == 0 && kNope % 32 == 0 && kV % 32 == 0,
              "sizes the tiles divide");

constexpr float kNone = -__builtin_huge_valf();  // the maximum over no position

/// The global position of row `row` of this call.
__device__ __forceinline__ int position_of(const int32_t* cu_seqlens, const int32_t* seq_len,
                                           int seq, int row) {
  return seq_len[seq] - (cu_seqlens[seq + 1] - row);
}

/// How many positions of 0 … position, both included, this rank holds.
__device__ __forceinline__ int positions_held(int position, int rank, int ranks) {
  return position < rank ? 0 : (position - rank) / ranks + 1;
}

}  // namespace kern::mla
