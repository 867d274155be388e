// Which experts a row goes to, and with what weight.
//
// kern_router, per row:
//   s = sigmoid(logits);  the top_k experts by s + bias, the lower index first among equals
//   weight_e = s_e / (sum over chosen of s + 1e-20) * scaling     (without renormalize: s_e *
//   scaling) in f32 [rows, experts] logits; in f32 [experts] bias; out i32 [rows, top_k] ids,
//   ascending; out f32 [rows, top_k] weights; i32 experts, top_k, renormalize; f32 scaling; i32
//   rows
//
// grid: [ceil(rows / 4), 1, 1] or fewer: a warp a row. block: [128, 1, 1]. shared: 0.
// experts is at most 1,024, top_k at most 64 and at most experts.
// Rounding points: none, f32 with the host's own sigmoid, so that both devices choose alike; the
// sum of the chosen runs in ascending expert order. Bytes are the host module's.
// A NaN score never wins over a number; a row of NaNs chooses 0 … top_k - 1 with NaN weights.

#include "common/numeric.cuh"

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
  __shared__ float shared[kWarps][kTopMax];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float* shares = shared[warp];
  for (int64_t row = int64_t{blockIdx.x} * kWarps + warp; row < rows;
       row += int64_t{gridDim.x} * kWarps) {
    const float* from = logits + row * experts;
    float logit[kPerLane], offset[kPerLane];
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {  // all on their way before the first is used
      const int e = i * 32 + lane;
      logit[i] = offset[i] = 0;
      if (e < experts) logit[i] = __ldg(from + e), offset[i] = __ldg(bias + e);
    }
    uint32_t key[kPerLane];  // 0: not there, or taken
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      key[i] = 0;
      if (i * 32 >= experts) continue;
      const float score = __fadd_rn(twin::sigmoid(logit[i]), offset[i]);
      if (i * 32 + lane < experts)
        key[i] = ordered(score == score ? score : __uint_as_float(0xFF800000U));
    }
    uint32_t best = 0, best_at = 0, taken = 0;
    const auto find_best = [&] {
      best = 0, best_at = 0;
#pragma unroll
      for (int i = 0; i < kPerLane; ++i)
        if (key[i] > best) best = key[i], best_at = i;
    };
    find_best();
    for (int k = 0; k < top_k; ++k) {
      const uint32_t most = __reduce_max_sync(kAll, best);
      const uint32_t mine = best == most ? best_at * 32 + lane : kAll;
      if (__reduce_min_sync(kAll, mine) == mine && mine != kAll) {
        taken |= 1U << best_at;
#pragma unroll
        for (int i = 0; i < kPerLane; ++i)
          if (i == static_cast<int>(best_at)) key[i] = 0;
        find_best();
      }
    }
    int rank = 0;  // of the chosen in ascending order
    for (int i = 0; i * 32 < experts; ++i) {
      const uint32_t chosen = __ballot_sync(kAll, (taken >> i & 1) != 0);
      if ((taken >> i & 1) != 0) {
        const int at = rank + __popc(chosen & ((1U << lane) - 1));
        const int e = i * 32 + lane;
        ids[row * top_k + at] = e;
        shares[at] = twin::sigmoid(from[e]);
      }
      rank += __popc(chosen);
    }
    __syncwarp();
    float sum = 0;
    for (int k = 0; k < top_k; ++k) sum = __fadd_rn(sum, shares[k]);
    const float whole = renormalize != 0 ? __fadd_rn(sum, 1e-20F) : 1.0F;
    for (int k = lane; k < top_k; k += 32)
      weights[row * top_k + k] = __fmul_rn(__fdiv_rn(shares[k], whole), scaling);
    __syncwarp();
  }
}
