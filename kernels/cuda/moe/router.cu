// Which experts a row goes to, and with what weight.
//
// kern_router, per row:
//   s = sigmoid(logits);  the top_k experts by s + bias, the lower index first among equals
//   weight_e = s_e / (sum over chosen of s + 1e-20) * scaling     (without renormalize: s_e *
//   scaling) in f32 [rows, experts] logits; in f32 [experts] bias; out i32 [rows, top_k] ids,
//   ascending; out f32 [rows, top_k] weights; i32 experts, top_k, renormalize; f32 scaling; i32
//   rows
//
// grid: [ceil(rows / 4), 1, 1] or fewer: a block four rows, their scores shared out over its warps,
// the choice a warp a row. block: [128, 1, 1]. shared: 0.
// experts is at most 1,024, top_k at most 64 and at most experts.
// Rounding points: none, f32 with the host's own sigmoid, so that both devices choose alike; the
// sum of the chosen runs in ascending expert order. Bytes are the host module's.
// A NaN score never wins over a number; a row of NaNs chooses 0 … top_k - 1 with NaN weights.

#include "common/numeric.cuh"
#include "ptx/turn.cuh"

using namespace kern;

namespace {

constexpr int kWarps = 4;
constexpr int kPerLane = 32;  // expert e is lane e % 32's, its e / 32-th
constexpr int kTopMax = 64;
constexpr uint32_t kAll = 0xFFFFFFFFU;

/// Orders floats as unsigned numbers, -0 equal to 0, and every number above 0.
__device__ __forceinline__ uint32_t ordered(float value) {
  const uint32_t bits = __float_as_uint(__fadd_rn(value, 0.0F));
  return bits ^ ((bits >> 31) != 0 ? 0xFFFFFFFFU : 0x80000000U);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kWarps * 32)
    kern_router(const float* logits, const float* bias, int32_t* ids, float* weights, int experts,
                int top_k, int renormalize, float scaling, int rows) {
  take_turn();
  __shared__ float shared[kWarps][kTopMax];
  __shared__ int shared_experts[kWarps][kTopMax];
  __shared__ uint32_t keys[kWarps][kPerLane * 32];  // 0: not there
  const int lane = threadIdx.x % 32, warp = __shfl_sync(kAll, threadIdx.x / 32, 0);
  const uint32_t below = (1U << lane) - 1;
  float* shares = shared[warp];
  int* experts_of = shared_experts[warp];
  for (int64_t first = int64_t{blockIdx.x} * kWarps; first < rows;
       first += int64_t{gridDim.x} * kWarps) {
    // ---- every row's keys, by all warps; loops stay rolled, because code is loaded too ----
    const int here = static_cast<int>(min(int64_t{kWarps}, rows - first));
    constexpr int kAtOnce = 8;  // loads before the first is used
#pragma unroll 1
    for (int r = 0; r < here; ++r) {
      const float* from = logits + (first + r) * experts;
      float logit[kAtOnce], offset[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int e = i * kWarps * 32 + threadIdx.x;
        logit[i] = offset[i] = 0;
        if (e < experts) logit[i] = __ldg(from + e), offset[i] = __ldg(bias + e);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int e = i * kWarps * 32 + threadIdx.x;
        const float score = __fadd_rn(twin::sigmoid(logit[i]), offset[i]);
        keys[r][e] =
            e < experts ? ordered(score == score ? score : __uint_as_float(0xFF800000U)) : 0;
      }
    }
    __syncthreads();
    const int64_t row = first + warp;
    const bool has_row = warp < here;
    const float* from = logits + (has_row ? row : first) * experts;
    uint32_t key[kPerLane];  // expert e is lane e % 32's
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) key[i] = has_row ? keys[warp][i * 32 + lane] : 0;
    __syncthreads();
    if (!has_row) continue;

    // ---- the k-th largest key, or one that exactly k reach ----
    const auto count = [&](uint32_t least) {
      int reach = 0;
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) reach += key[i] >= least ? 1 : 0;
      return __reduce_add_sync(kAll, reach);
    };
    uint32_t largest = 0;  // of the lane; every lane's reaches the smallest of them
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) largest = max(largest, key[i]);
    uint32_t low = top_k <= 32 ? max(__reduce_min_sync(kAll, largest), 1U) : 1;
    uint32_t high = __reduce_max_sync(kAll, largest);
    while (low < high) {  // at least top_k reach low, fewer reach high + 1
      const uint32_t middle = low + (high - low + 1) / 2;
      const int reach = count(middle);
      if (reach >= top_k)
        low = middle;
      else
        high = middle - 1;
      if (reach == top_k) break;
    }

    // ---- those above it, and of its equals the first, in ascending order ----
    int equals = top_k - count(low + 1), rank = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const uint32_t same = __ballot_sync(kAll, key[i] == low);
      const bool is_chosen = key[i] > low || (key[i] == low && __popc(same & below) < equals);
      const uint32_t chosen = __ballot_sync(kAll, is_chosen);
      if (is_chosen) experts_of[rank + __popc(chosen & below)] = i * 32 + lane;
      equals -= __popc(same);
      rank += __popc(chosen);
    }
    __syncwarp();
#pragma unroll 1
    for (int k = lane; k < top_k; k += 32) {
      const int e = experts_of[k];
      ids[row * top_k + k] = e;
      shares[k] = twin::sigmoid(__ldg(from + e));
    }
    __syncwarp();
    float sum = 0;
#pragma unroll 4
    for (int k = 0; k < top_k; ++k) sum = __fadd_rn(sum, shares[k]);
    const float whole = renormalize != 0 ? __fadd_rn(sum, 1e-20F) : 1.0F;
#pragma unroll 1
    for (int k = lane; k < top_k; k += 32)
      weights[row * top_k + k] = __fmul_rn(__fdiv_rn(shares[k], whole), scaling);
    __syncwarp();
  }
}
