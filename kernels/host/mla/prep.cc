// MLA's low-rank norms, and the latent row appended to the cache.
//
// kern_mla_prep, per row with x = (q_a | c | k_r | …):
//   q_lat = rms(q_a; q_norm);  cache row = (rms(c; kv_norm) | k_r)
//   in bf16 [rows, x_stride] x; in bf16 [q_lora] q_norm; in bf16 [kv_lora] kv_norm;
//   in i32 [rows] slot (page * page_tokens + offset); in i32 cu_seqlens; in i32 [seqs] seq_len;
//   inout state; out bf16 [rows, q_lora] q_lat;
//   i32 q_lora, kv_lora, rope, x_stride; f32 eps; i32 rank, ranks, rows, seqs
// A row is appended by rank (position mod ranks) only.
// grid: [any, 1, 1], the rows are divided over it. shared: 0.
// Rounding points: those of the RMS norm; k_r is copied.

#include "mla/cache.h"

using namespace kern::host;

extern "C" void kern_mla_prep(const kern_block* where, void* const* raw) {
  Args args(raw);
  const auto* x = args.pointer<const bf16>();
  const auto* q_norm = args.pointer<const bf16>();
  const auto* kv_norm = args.pointer<const bf16>();
  const auto* slot = args.pointer<const int32_t>();
  const auto* cu_seqlens = args.pointer<const int32_t>();
  const auto* seq_len = args.pointer<const int32_t>();
  auto* cache = args.pointer<bf16>();
  auto* q_lat = args.pointer<bf16>();
  const int64_t q_lora = args.i32(), kv_lora = args.i32(), rope = args.i32(), stride = args.i32();
  const float eps = args.f32();
  const int64_t rank = args.i32(), ranks = args.i32(), rows = args.i32(), seqs = args.i32();
  const Span mine = share_of(where, 0, rows);
  for (int64_t row = mine.first; row < mine.last; ++row) {
    const bf16* from = x + row * stride;
    rms_norm_row(from, q_norm, q_lat + row * q_lora, q_lora, eps);
    const int64_t seq = sequence_of(cu_seqlens, seqs, row);
    if (position_of(cu_seqlens, seq_len, seq, row) % ranks != rank) continue;
    bf16* to = cache + int64_t{slot[row]} * (kv_lora + rope);
    rms_norm_row(from + q_lora, kv_norm, to, kv_lora, eps);
    std::memcpy(to + kv_lora, from + q_lora + kv_lora, rope * sizeof(bf16));
  }
}
