// MLA's low-rank norms, and the latent row appended to the cache.
//
// kern_mla_prep, per row with x = (q_a | c | k_r | …):
//   q_lat = rms(q_a; q_norm);  cache row = (rms(c; kv_norm) | k_r)
//   rms(v; w) = bf( w bf( v (mean(v^2) + eps)^-1/2 ) )
// params:
//   in bf16 [rows, x_stride] x; in bf16 [q_lora] q_norm; in bf16 [kv_lora] kv_norm;
//   in i32 [rows] slot (page * page_tokens + offset); in i32 cu_seqlens; in i32 [seqs] seq_len;
//   inout state; out bf16 [rows, q_lora] q_lat;
//   i32 q_lora, kv_lora, rope, x_stride; f32 eps; i32 rank, ranks, rows, seqs
// A row is appended by rank (position mod ranks) only.
// grid: [rows, 2, 1]; block: [256, 1, 1]; cluster: none; shared: 0.
// Rounding points: those of the RMS norm; k_r is copied.
// Sizes: widths and strides are even.
// build: that of kernels/README.md

#include "common/numeric.cuh"
#include "common/reduce.cuh"
#include "mla/cache.cuh"
#include "ptx/turn.cuh"

using namespace kern;
using namespace kern::mla;

namespace {

constexpr int kThreads = 256;

__device__ uint32_t pair_at(const bf16* from) {
  return *reinterpret_cast<const uint32_t*>(from);
}

__device__ void rms_row(const bf16* from, const bf16* weight, bf16* to, int width, float eps) {
  __shared__ float shared[32];
  float sum[1] = {0};
  for (int i = 2 * threadIdx.x; i < width; i += 2 * kThreads) {
    const uint32_t x = pair_at(from + i);
    sum[0] = fmaf(low_f32(x), low_f32(x), sum[0]);
    sum[0] = fmaf(high_f32(x), high_f32(x), sum[0]);
  }
  block_sum(sum, shared);
  const float scale = inverse_rms(sum[0], width, eps);
  for (int i = 2 * threadIdx.x; i < width; i += 2 * kThreads) {
    const uint32_t x = pair_at(from + i), w = pair_at(weight + i);
    *reinterpret_cast<uint32_t*>(to + i) =
        to_bf16_pair(low_f32(w) * through_bf16(low_f32(x) * scale),
                     high_f32(w) * through_bf16(high_f32(x) * scale));
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    kern_mla_prep(const bf16* x, const bf16* q_norm, const bf16* kv_norm, const int32_t* slot,
                  const int32_t* cu_seqlens, const int32_t* seq_len, bf16* cache, bf16* q_lat,
                  int q_lora, int kv_lora, int rope, int x_stride, float eps, int rank, int ranks,
                  int rows, int seqs) {
  take_turn();
  const int row = blockIdx.x;
  const bf16* from = x + int64_t{row} * x_stride;
  if (blockIdx.y == 0) {
    rms_row(from, q_norm, q_lat + int64_t{row} * q_lora, q_lora, eps);
    return;
  }
  if (ranks > 1) {
    const int seq = sequence_of(cu_seqlens, seqs, row);
    if (position_of(cu_seqlens, seq_len, seq, row) % ranks != rank) return;
  }
  bf16* to = cache + int64_t{slot[row]} * (kv_lora + rope);
  rms_row(from + q_lora, kv_norm, to, kv_lora, eps);
  for (int i = threadIdx.x; i < rope; i += kThreads) to[kv_lora + i] = from[q_lora + kv_lora + i];
}
