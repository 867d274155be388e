// Attention of a rank's own positions over the latent pages, for any sizes: the plain form.
//
// kern_mla_attend_any, per row and head over the positions the rank holds, page by page:
//   s_j = (q_abs . row_j) scale;  m = max_j s_j;  p_j = exp(s_j - m);  l = sum_j p_j
//   part = ( sum_j p_j c_j [kv_lora] | m | l ), f32; without positions: zeros, -infinity, 0
// params:
//   in bf16 [rows, heads, kv_lora + rope] q_abs; in state; in i32 [seqs, table_width] pages;
//   in i32 cu_seqlens; in i32 [seqs] seq_len; out f32 [heads, rows, kv_lora + 2] part;
//   i32 heads, kv_lora, rope, page_tokens, table_width; f32 scale; i32 rank, ranks, rows, seqs
// grid: [rows, heads, 1]; block: [128, 1, 1]; cluster: none; shared: 0.
// Rounding points: none; p is not rounded. Pages are visited from position 0, one rescale a page,
// so a row's bits do not depend on the call's cut or company. Sizes: kv_lora is at most 512,
// page_tokens 64. build: that of kernels/README.md

#include "common/numeric.cuh"
#include "common/reduce.cuh"
#include "mla/cache.cuh"
#include "ptx/turn.cuh"

using namespace kern;
using namespace kern::mla;

namespace {
constexpr int kThreads = 128, kWarps = kThreads / 32, kEach = 512 / kThreads;
}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    kern_mla_attend_any(const bf16* q_abs, const bf16* cache, const int32_t* pages,
                        const int32_t* cu_seqlens, const int32_t* seq_len, float* part, int heads,
                        int kv_lora, int rope, int page_tokens, int table_width, float scale,
                        int rank, int ranks, int rows, int seqs) {
  take_turn();
  __shared__ float scores[kPage];
  const int row = blockIdx.x, head = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int width = kv_lora + rope, seq = sequence_of(cu_seqlens, seqs, row);
  const int held = positions_held(position_of(cu_seqlens, seq_len, seq, row), rank, ranks);
  const bf16* q = q_abs + (int64_t{row} * heads + head) * width;
  float sums[kEach] = {}, most = kNone, total = 0;
  for (int from = 0; from < held; from += page_tokens) {
    const int64_t page = pages[int64_t{seq} * table_width + from / page_tokens];
    const bf16* tile = cache + page * page_tokens * width;
    const int count = min(page_tokens, held - from);
    for (int j = warp; j < count; j += kWarps) {
      float sum = 0;
      for (int i = lane; i < width; i += 32)
        sum += to_f32(q[i]) * to_f32(tile[int64_t{j} * width + i]);
      sum = warp_sum(sum);
      if (lane == 0) scores[j] = sum * scale;
    }
    __syncthreads();
    float high = most;
    for (int j = 0; j < count; ++j) high = scores[j] > high ? scores[j] : high;
    const float shrink = fast::exp_f32(most - high);
    total *= shrink;
#pragma unroll
    for (int i = 0; i < kEach; ++i) sums[i] *= shrink;
    for (int j = 0; j < count; ++j) {
      const float p = fast::exp_f32(scores[j] - high);
      total += p;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int c = threadIdx.x + i * kThreads;
        if (c < kv_lora) sums[i] += p * to_f32(tile[int64_t{j} * width + c]);
      }
    }
    most = high;
    __syncthreads();
  }
  float* to = part + (int64_t{head} * rows + row) * (kv_lora + 2);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int c = threadIdx.x + i * kThreads;
    if (c < kv_lora) to[c] = sums[i];
  }
  if (threadIdx.x == 0) {
    to[kv_lora] = most;
    to[kv_lora + 1] = total;
  }
}
