// The most likely token, and nothing else.
//
// kern_argmax:  token[row] = the lowest index among the greatest logits; -1 where one is a NaN
//   in f32 [rows, vocab] logits; out i32 [rows] token; i32 vocab, rows
//
// grid: [rows, 1, 1] or fewer, the rows are dealt over it. block: [1024, 1, 1]. shared: 0.
// vocab is a multiple of 4. No arithmetic: what kern_sample gives at temperature 0.

#include "ptx/memory.cuh"
#include "ptx/turn.cuh"

namespace {

constexpr int kThreads = 1024;

/// Orders floats as unsigned numbers; a NaN comes above everything.
__device__ __forceinline__ uint32_t key_of(uint32_t bits) {
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return 0xFFFFFFFFU;
  if (bits == 0x80000000U) bits = 0;  // both zeros are equal
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000U;
}

__device__ __forceinline__ uint64_t later(uint64_t a, uint64_t b) {
  return a > b ? a : b;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    kern_argmax(const float* logits, int32_t* token, int vocab, int rows) {
  kern::take_turn();
  __shared__ uint64_t shared[32];
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    // The key in the high half; below it the complement of the index, so that the lowest wins.
    uint64_t best = 0;
    const float* from = logits + row * vocab;
    for (int i = threadIdx.x * 4; i < vocab; i += kThreads * 4) {
      const uint4 four = kern::load_once(from + i);
      const uint32_t bits[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int j = 0; j < 4; ++j)
        best = later(best, uint64_t{key_of(bits[j])} << 32 | ~static_cast<uint32_t>(i + j));
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
      best = later(best, __shfl_xor_sync(0xFFFFFFFFU, best, distance));
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = best;
    __syncthreads();
    best = shared[threadIdx.x % 32];
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
      best = later(best, __shfl_xor_sync(0xFFFFFFFFU, best, distance));
    if (threadIdx.x == 0)
      token[row] =
          best >> 32 == 0xFFFFFFFFU ? -1 : static_cast<int32_t>(~static_cast<uint32_t>(best));
    __syncthreads();
  }
}
