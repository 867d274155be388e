#pragma once
/// Sums over a block in one fixed order: lanes by halving distance, then warps likewise.
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

/// Sums of P values over a warp, P a power of two up to 32: lane l receives that of value
/// l / (32 / P). A lane keeps half of its values at each step, so P values cost about P shuffles.
template <int P, int kDistance = 16>
__device__ __forceinline__ float warp_sums(const float (&value)[P]) {
  const bool upper = (threadIdx.x & kDistance) != 0;
  if constexpr (kDistance == 0) {
    return value[0];
  } else if constexpr (P == 1) {
    const float sum[1] = {value[0] + __shfl_xor_sync(0xFFFFFFFFU, value[0], kDistance)};
    return warp_sums<1, kDistance / 2>(sum);
  } else {
    float half[P / 2];
#pragma unroll
    for (int i = 0; i < P / 2; ++i) {
      const float sent = upper ? value[i] : value[i + P / 2];
      const float kept = upper ? value[i + P / 2] : value[i];
      half[i] = kept + __shfl_xor_sync(0xFFFFFFFFU, sent, kDistance);
    }
    return warp_sums<P / 2, kDistance / 2>(half);
  }
}

/// N <= 32 sums over a warp, written to to[0 … N - 1].
template <int N>
__device__ __forceinline__ void warp_sums_to(const float (&value)[N], float* to) {
  constexpr int kMore = N > 16 ? N - 16 : 0;
  const int lane = threadIdx.x % 32;
  float first[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) first[i] = i < N ? value[i] : 0.0F;
  const float sum = warp_sums(first);
  if (lane % 2 == 0) to[lane / 2] = sum;
  if constexpr (kMore > 0) {
    constexpr int kPlaces = kMore <= 2 ? 2 : kMore <= 4 ? 4 : kMore <= 8 ? 8 : 16;
    float rest[kPlaces];
#pragma unroll
    for (int i = 0; i < kPlaces; ++i) rest[i] = i < kMore ? value[16 + i] : 0.0F;
    const float more = warp_sums(rest);
    if (lane % (32 / kPlaces) == 0) to[16 + lane / (32 / kPlaces)] = more;
  }
}

}  // namespace kern
