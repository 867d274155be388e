// The parts of all ranks merged, carried out of latent space, and gated.
//
// kern_mla_merge, per row and own head, parts r in rank order, W_UV = kv_b rows
// head * (nope + v) + nope … + v:
//   M = max_r m_r;  w_r = exp(m_r - M);  o_c = bf( (sum_r w_r acc_r) / (sum_r w_r l_r) )
//   o = bf(W_UV o_c);  y = bf( o * bf(sigmoid(z)) )
//   in f32 [ranks, heads, rows, kv_lora + 2] parts; in bf16 kv_b (all heads);
//   in bf16 [rows, x_stride] x (z from column z_column); out bf16 [rows, heads * v] y;
//   i32 heads (own), nope, v, kv_lora, x_stride, z_column, rank, ranks, rows
// grid: [heads, any, 1], the rows are divided over y. shared: kRows * kv_lora * 2 with kRows = 8.
// Rounding points: latent output, v output, sigmoid and product each round to bf16.
// kv_lora is at most 4096. A part without positions (l = 0) takes no part.

#include "common/args.h"
#include "common/numeric.h"

using namespace kern::host;

namespace {

constexpr int64_t kLatentMax = 4096;

struct Merge {
  const float* parts;
  int64_t heads, kv_lora, ranks, rows;

  void latent(int64_t head, int64_t row, bf16* out) const {
    const int64_t rank_stride = heads * rows * (kv_lora + 2);
    const float* first = parts + (head * rows + row) * (kv_lora + 2);
    float most = -std::numeric_limits<float>::infinity(), total = 0;
    for (int64_t r = 0; r < ranks; ++r) {
      const float* part = first + r * rank_stride;
      if (part[kv_lora + 1] != 0 && part[kv_lora] > most) most = part[kv_lora];
    }
    float sum[kLatentMax] = {};
    for (int64_t r = 0; r < ranks; ++r) {
      const float* part = first + r * rank_stride;
      if (part[kv_lora + 1] == 0) continue;
      const float weight = exp_f32(part[kv_lora] - most);
      total += weight * part[kv_lora + 1];
      for (int64_t c = 0; c < kv_lora; ++c) sum[c] += weight * part[c];
    }
    for (int64_t c = 0; c < kv_lora; ++c) out[c] = to_bf16(sum[c] / total);
  }
};

}  // namespace

extern "C" void kern_mla_merge(const kern_block* where, void* const* raw) {
  constexpr int64_t kRows = 8;
  Args args(raw);
  Merge merge;
  merge.parts = args.pointer<const float>();
  const auto* kv_b = args.pointer<const bf16>();
  const auto* x = args.pointer<const bf16>();
  auto* y = args.pointer<bf16>();
  merge.heads = args.i32();
  const int64_t nope = args.i32(), v = args.i32();
  merge.kv_lora = args.i32();
  const int64_t x_stride = args.i32(), z_column = args.i32(), rank = args.i32();
  merge.ranks = args.i32();
  merge.rows = args.i32();

  const int64_t head = where->index[0], whole_head = rank * merge.heads + head;
  const bf16* w_uv = kv_b + (whole_head * (nope + v) + nope) * merge.kv_lora;
  auto* latent = static_cast<bf16*>(where->shared);
  const Span mine = share_of(where, 1, merge.rows);
  for (int64_t base = mine.first; base < mine.last; base += kRows) {
    const int64_t count = std::min(kRows, mine.last - base);
    for (int64_t i = 0; i < count; ++i) merge.latent(head, base + i, latent + i * merge.kv_lora);
    bf16* out = y + (base * merge.heads + head) * v;
    where->services->gemm_bf16_tn(latent, w_uv, out, count, v, merge.kv_lora, merge.heads * v,
                                  merge.kv_lora);
    for (int64_t i = 0; i < count; ++i) {
      const bf16* z = x + (base + i) * x_stride + z_column + head * v;
      bf16* to = out + i * merge.heads * v;
      for (int64_t d = 0; d < v; ++d)
        to[d] = to_bf16(to_f32(to[d]) * through_bf16(sigmoid(to_f32(z[d]))));
    }
  }
}
