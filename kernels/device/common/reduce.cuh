#pragma once
/// Sums over a block in one fixed order: lanes by halving distance, then warps in ascending order.
/// Every thread receives the sum.
/// Determinism: the order depends on the block size alone.

namespace kern {

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    value += __shfl_xor_sync(0xFFFFFFFFU, value, distance);
  return value;
}

/// N sums at once. `shared` holds N * 32 floats and is free for reuse after the next barrier; the
/// block has a whole number of warps.
template <int N>
__device__ __forceinline__ void block_sum(float (&value)[N], float* shared) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    value[i] = warp_sum(value[i]);
    if (lane == 0) shared[i * 32 + warp] = value[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < N; ++i) value[i] = warp_sum(lane < warps ? shared[i * 32 + lane] : 0.0F);
}

}  // namespace kern
