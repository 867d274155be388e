// Attention of a rank's own positions over the latent pages, before any merge.
//
// kern_mla_attend, per row and head over the positions the rank holds, page by page:
//   s_j = (q_abs · row_j) * scale;  m = max_j s_j;  p_j = exp(s_j - m);  l = sum_j p_j
//   part = ( sum_j p_j c_j [kv_lora] | m | l ), f32; without positions: zeros, -infinity, 0
//   in bf16 [rows, heads, kv_lora + rope] q_abs; in state; in i32 [seqs, table_width] pages;
//   in i32 cu_seqlens; in i32 [seqs] seq_len; out f32 [heads, rows, kv_lora + 2] part;
//   i32 heads, kv_lora, rope, page_tokens, table_width; f32 scale; i32 rank, ranks, rows, seqs
// grid: [any, groups, 1]: rows are divided over x, heads over y.
// shared: 4 * (page_tokens * kv_lora + G * (page_tokens + kv_lora)), G = ceil(heads / groups).
// Rounding points: products of bf16 are summed in f32 (the matrix product's order for scores,
// position order for the latent sum, one rescale a page); p is not rounded. Pages are visited from
// position 0, so a row's bits do not depend on the call's cut or company. G is at most 256,
// page_tokens 1024.

#include "mla/cache.h"

using namespace kern::host;

namespace {

constexpr int64_t kPageMax = 1024;  // tokens of a page
constexpr int64_t kGroupMax = 256;  // heads of a block
constexpr float kNone = -std::numeric_limits<float>::infinity();

struct Attend {
  const kern_host_services* services;
  int64_t kv_lora, rope, page_tokens;
  float scale;
  float* latent;  // [page_tokens, kv_lora], a page in f32
  float* scores;  // [G, page_tokens]
  float* sums;    // [G, kv_lora]

  /// One page's first `count` rows for one head.
  void head_page(const float* s, int64_t count, float* sum, float* most, float* total) const {
    float p[kPageMax];
    float high = *most;
    for (int64_t j = 0; j < count; ++j) {
      p[j] = s[j] * scale;
      high = p[j] > high ? p[j] : high;
    }
    const float shrink = exp_f32(*most - high);
    float fresh = *total * shrink;
    for (int64_t j = 0; j < count; ++j) p[j] = exp_f32(p[j] - high);
    for (int64_t j = 0; j < count; ++j) fresh += p[j];
    for (int64_t c = 0; c < kv_lora; ++c) sum[c] *= shrink;
    int64_t j = 0;
    for (; j + 4 <= count; j += 4) {
      const float* l = latent + j * kv_lora;
      for (int64_t c = 0; c < kv_lora; ++c)
        sum[c] =
            (((sum[c] + p[j] * l[c]) + p[j + 1] * l[kv_lora + c]) + p[j + 2] * l[2 * kv_lora + c]) +
            p[j + 3] * l[3 * kv_lora + c];
    }
    for (; j < count; ++j)
      for (int64_t c = 0; c < kv_lora; ++c) sum[c] += p[j] * latent[j * kv_lora + c];
    *most = high;
    *total = fresh;
  }

  /// `count` heads' queries against the first `tokens` rows of one page.
  void page(const bf16* q, const bf16* rows, int64_t count, int64_t tokens, float* most,
            float* total) const {
    const int64_t width = kv_lora + rope;
    services->gemm_bf16_tn_f32(q, rows, scores, count, tokens, width, page_tokens, width);
    for (int64_t j = 0; j < tokens; ++j)
      for (int64_t c = 0; c < kv_lora; ++c) latent[j * kv_lora + c] = to_f32(rows[j * width + c]);
    for (int64_t g = 0; g < count; ++g)
      head_page(scores + g * page_tokens, tokens, sums + g * kv_lora, most + g, total + g);
  }
};

}  // namespace

extern "C" void kern_mla_attend(const kern_block* where, void* const* raw) {
  Args args(raw);
  Attend attend;
  attend.services = where->services;
  const auto* q = args.pointer<const bf16>();
  const auto* cache = args.pointer<const bf16>();
  const auto* pages = args.pointer<const int32_t>();
  const auto* cu_seqlens = args.pointer<const int32_t>();
  const auto* seq_len = args.pointer<const int32_t>();
  auto* part = args.pointer<float>();
  const int64_t heads = args.i32();
  attend.kv_lora = args.i32();
  attend.rope = args.i32();
  attend.page_tokens = args.i32();
  const int64_t table_width = args.i32();
  attend.scale = args.f32();
  const int64_t rank = args.i32(), ranks = args.i32(), rows = args.i32(), seqs = args.i32();

  const int64_t width = attend.kv_lora + attend.rope, page_tokens = attend.page_tokens;
  const Span mine = share_of(where, 0, rows), group = share_of(where, 1, heads);
  const int64_t count = group.last - group.first;
  attend.latent = static_cast<float*>(where->shared);
  attend.scores = attend.latent + page_tokens * attend.kv_lora;
  attend.sums = attend.scores + count * page_tokens;
  float most[kGroupMax], total[kGroupMax];
  for (int64_t row = mine.first; row < mine.last; ++row) {
    const int64_t seq = sequence_of(cu_seqlens, seqs, row);
    const int64_t held = positions_held(position_of(cu_seqlens, seq_len, seq, row), rank, ranks);
    std::fill(attend.sums, attend.sums + count * attend.kv_lora, 0.0F);
    std::fill(most, most + count, kNone);
    std::fill(total, total + count, 0.0F);
    for (int64_t from = 0; from < held; from += page_tokens) {
      const int64_t page = pages[seq * table_width + from / page_tokens];
      attend.page(q + (row * heads + group.first) * width, cache + page * page_tokens * width,
                  count, std::min(page_tokens, held - from), most, total);
    }
    for (int64_t g = 0; g < count; ++g) {
      float* to = part + ((group.first + g) * rows + row) * (attend.kv_lora + 2);
      std::memcpy(to, attend.sums + g * attend.kv_lora, attend.kv_lora * sizeof(float));
      to[attend.kv_lora] = most[g];
      to[attend.kv_lora + 1] = total[g];
    }
  }
}
