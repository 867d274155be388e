// Attention of a rank's own positions over the latent pages, before any merge: a block a row.
//
// kern_mla_attend, per row and head over the positions the rank holds, 64 at a time:
//   s_j = (q_abs . row_j) scale;  m = max_j s_j;  p_j = exp(s_j - m);  l = sum_j p_j
//   part = ( sum_j bf(p_j) c_j [kv_lora] | m | l ), f32; without positions: zeros, -infinity, 0
// params:
//   in bf16 [rows, heads, kv_lora + rope] q_abs; in state; in i32 [seqs, table_width] pages;
//   in i32 cu_seqlens; in i32 [seqs] seq_len; out f32 [heads, rows, kv_lora + 2] part;
//   i32 heads, kv_lora, rope, page_tokens, table_width; f32 scale; i32 rank, ranks, rows, seqs;
//   bytes<128> map
// map: the tensormap of the state: bf16, dims [kv_lora + rope, 0], box [64, 64], swizzle 128.
// grid: [rows, 1, 1]; block: [384, 1, 1]; cluster: none;
// shared: 228,544 at 96 heads, 121,024 at 8.
// Rounding points: products of bf16 are summed in f32 by the tensor cores; p rounds to bf16 before
// it weighs the latent rows, l sums it unrounded. Pages are visited from position 0, one rescale a
// page, so a row's bits do not depend on the call's cut or company.
// Defines: MLA_LORA, MLA_ROPE, MLA_HEADS: the only sizes of the variant. page_tokens is 64.
// build: that of kernels/README.md

#include "mla/attend.cuh"

using namespace kern;
using namespace kern::mla;

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    kern_mla_attend(const bf16* q_abs, const bf16* cache, const int32_t* pages,
                    const int32_t* cu_seqlens, const int32_t* seq_len, float* part, int heads,
                    int kv_lora, int rope, int page_tokens, int table_width, float scale, int rank,
                    int ranks, int rows, int seqs, const __grid_constant__ TensorMap map) {
  extern __shared__ unsigned char dynamic[];
  const uint32_t shared = prepare(dynamic);
  const int row = rows - 1 - static_cast<int>(blockIdx.x);  // the longest first
  const int seq = sequence_of(cu_seqlens, seqs, row);
  const int held = positions_held(position_of(cu_seqlens, seq_len, seq, row), rank, ranks);
  const Work work = {row, seq, held, 0, (held + kPage - 1) / kPage, 0, 1};
  Ring ring;
  if (threadIdx.x >= kConsumers) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    load_tiles(&map, pages + int64_t{seq} * table_width, work, shared, ring);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    Consumer consumer{shared};
    if (held > 0) load_queries(q_abs + int64_t{row} * (kHeads * kWidth), shared);
    consumer.clear();
    consumer.tiles(work, scale, ring);
    consumer.leave(work.last & 1);
    group_barrier(1, kConsumers);
    for (int i = threadIdx.x; i < kHeads * kLora / 2; i += kConsumers) {
      const int head = i / (kLora / 2), pair = i % (kLora / 2);
      float* to = part + (int64_t{head} * rows + row) * kPart;
      *reinterpret_cast<float2*>(to + 2 * pair) =
          load_pair(shared + (head * kPitch + 2 * pair) * 4);
      if (pair == 0) *reinterpret_cast<float2*>(to + kLora) = load_pair(shared + kAtEnd + head * 8);
    }
  }
}
