// Queries carried into latent space.
//
// kern_mla_absorb, per row and head, W_UK = kv_b rows head * (nope + v) … + nope:
//   q_abs = ( bf(sum_d q_n[d] W_UK[d]) | q_r )
//   in bf16 [rows, heads * (nope + rope)] q (per head q_n | q_r);
//   in bf16 [heads * (nope + v), kv_lora] kv_b; out bf16 [rows, heads, kv_lora + rope] q_abs;
//   i32 heads, nope, rope, v, kv_lora, rows
// grid: [heads, any, 1], the rows are divided over y. shared: kRows * kv_lora * 4 with kRows = 8.
// Rounding points: the sum over d runs in ascending order in f32 and rounds once.

#include "common/args.h"
#include "common/numeric.h"

using namespace kern::host;

extern "C" void kern_mla_absorb(const kern_block* where, void* const* raw) {
  constexpr int64_t kRows = 8;
  Args args(raw);
  const auto* q = args.pointer<const bf16>();
  const auto* kv_b = args.pointer<const bf16>();
  auto* q_abs = args.pointer<bf16>();
  const int64_t heads = args.i32(), nope = args.i32(), rope = args.i32(), v = args.i32();
  const int64_t kv_lora = args.i32(), rows = args.i32();
  const int64_t head = where->index[0];
  const bf16* w_uk = kv_b + head * (nope + v) * kv_lora;
  auto* sums = static_cast<float*>(where->shared);
  const Span mine = share_of(where, 1, rows);
  for (int64_t base = mine.first; base < mine.last; base += kRows) {
    const int64_t count = std::min(kRows, mine.last - base);
    std::fill(sums, sums + count * kv_lora, 0.0F);
    for (int64_t d = 0; d < nope; ++d) {
      const bf16* w = w_uk + d * kv_lora;
      for (int64_t i = 0; i < count; ++i) {
        const float factor = to_f32(q[((base + i) * heads + head) * (nope + rope) + d]);
        float* sum = sums + i * kv_lora;
        for (int64_t c = 0; c < kv_lora; ++c) sum[c] += factor * to_f32(w[c]);
      }
    }
    for (int64_t i = 0; i < count; ++i) {
      const bf16* q_r = q + ((base + i) * heads + head) * (nope + rope) + nope;
      bf16* to = q_abs + ((base + i) * heads + head) * (kv_lora + rope);
      for (int64_t c = 0; c < kv_lora; ++c) to[c] = to_bf16(sums[i * kv_lora + c]);
      std::memcpy(to + kv_lora, q_r, rope * sizeof(bf16));
    }
  }
}
