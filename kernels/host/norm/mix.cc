// Attention residuals: a softmax mix over the bank's rows and the running stream, then the RMS norm
// that always follows it.
//
//   sources V_0 … V_{n-1} (bank), V_n (stream)
//   s_j = sum_d (V_j[d] * (mean(V_j^2) + eps)^-1/2) * (score_norm[d] * score_proj[d])      f32
//   p = softmax_j(s)                                                                        f32
//   a = bf(sum_j p_j V_j), j ascending;  out = bf(w * bf(a * (mean(a^2) + eps)^-1/2))
//
// kern_mix_rms:       one output row a stream row
//   in bf16 [rows, width] stream; in bf16 [width] score_norm, score_proj, w; out bf16 [rows,
//   width]; f32 eps; i32 width, rows, n; then n times in bf16 [rows, width] bank
// kern_mix_rms_last:  only the last row of each sequence, packed
//   in bf16 [rows, width] stream; in bf16 [width] score_norm, score_proj, w; in i32 cu_seqlens;
//   out bf16 [seqs, width]; f32 eps; i32 width, seqs, n; then n times in bf16 [rows, width] bank
//
// grid: [any, 1, 1], the rows are divided over it. shared: width * 4.
// n is at most 32 (kSourcesMax - 1).
// Rounding points: the product score_norm * score_proj stays f32; the mix rounds once, before its
// norm.

#include "common/args.h"
#include "common/numeric.h"

using namespace kern::host;

namespace {

constexpr int kSourcesMax = 33;

struct Mix {
  const bf16* score_norm;
  const bf16* score_proj;
  const bf16* weight;
  float eps;
  int64_t width;
  int n;
  const bf16* sources[kSourcesMax];  // the bank, then the stream

  float score(const bf16* v) const {
    const float scale = inverse_rms(dot(v, v, width), width, eps);
    return lane_sum(width, [&](auto at, int64_t i) {
      return (at(v, i) * scale) * (at(score_norm, i) * at(score_proj, i));
    });
  }

  void row(int64_t from, bf16* out, float* sum) const {
    float p[kSourcesMax];
    float most = -std::numeric_limits<float>::infinity(), total = 0;
    for (int j = 0; j <= n; ++j) {
      p[j] = score(sources[j] + from * width);
      most = p[j] > most ? p[j] : most;
    }
    for (int j = 0; j <= n; ++j) total += p[j] = exp_f32(p[j] - most);
    for (int64_t i = 0; i < width; ++i) sum[i] = 0;
    for (int j = 0; j <= n; ++j) {
      const bf16* v = sources[j] + from * width;
      const float share = p[j] / total;
      for (int64_t i = 0; i < width; ++i) sum[i] += share * to_f32(v[i]);
    }
    for (int64_t i = 0; i < width; ++i) out[i] = to_bf16(sum[i]);
    rms_norm_row(out, weight, out, width, eps);
  }
};

}  // namespace

extern "C" void kern_mix_rms(const kern_block* where, void* const* raw) {
  Args args(raw);
  Mix mix;
  const auto* stream = args.pointer<const bf16>();
  mix.score_norm = args.pointer<const bf16>();
  mix.score_proj = args.pointer<const bf16>();
  mix.weight = args.pointer<const bf16>();
  auto* out = args.pointer<bf16>();
  mix.eps = args.f32();
  mix.width = args.i32();
  const int64_t rows = args.i32();
  mix.n = args.i32();
  for (int j = 0; j < mix.n; ++j) mix.sources[j] = args.pointer<const bf16>();
  mix.sources[mix.n] = stream;
  const Span mine = share_of(where, 0, rows);
  for (int64_t row = mine.first; row < mine.last; ++row)
    mix.row(row, out + row * mix.width, static_cast<float*>(where->shared));
}

extern "C" void kern_mix_rms_last(const kern_block* where, void* const* raw) {
  Args args(raw);
  Mix mix;
  const auto* stream = args.pointer<const bf16>();
  mix.score_norm = args.pointer<const bf16>();
  mix.score_proj = args.pointer<const bf16>();
  mix.weight = args.pointer<const bf16>();
  const auto* cu_seqlens = args.pointer<const int32_t>();
  auto* out = args.pointer<bf16>();
  mix.eps = args.f32();
  mix.width = args.i32();
  const int64_t seqs = args.i32();
  mix.n = args.i32();
  for (int j = 0; j < mix.n; ++j) mix.sources[j] = args.pointer<const bf16>();
  mix.sources[mix.n] = stream;
  const Span mine = share_of(where, 0, seqs);
  for (int64_t seq = mine.first; seq < mine.last; ++seq)
    mix.row(cu_seqlens[seq + 1] - 1, out + seq * mix.width, static_cast<float*>(where->shared));
}
