// What the delta rule reads, for every row: convolved and normalised q, k, v, the decay and beta.
//
// kern_kda_prep, per row t and channel c = head * dim + d, u the projections, w the taps:
//   y[c] = sum_{i < taps} w[c][i] * u_{t - taps + 1 + i}[c]   inputs before the call: the line's
//   window q, k, v = bf(y * sigmoid(y)) q = q / (sum_d q^2 + l2_eps)^1/2 * q_scale,  k = k / (sum_d
//   k^2 + l2_eps)^1/2 alpha[c] = exp( lower_bound * sigmoid( exp(a_log[head]) * (r[c] + dt_bias[c])
//   ) ) beta[head] = sigmoid(b[head])
// params:
//   in bf16 [rows, x_stride] x: columns q | k | v (heads * dim each), beta's b from column
//   b_column; in bf16 [rows, heads * dim] r; in f32 [heads * dim, taps] conv_q, conv_k, conv_v; in
//   f32 [heads] a_log; in f32 [heads * dim] dt_bias; in state; in i32 [seqs] lines; in i32
//   cu_seqlens; out f32 [rows, heads * dim] q, k, v, alpha; out f32 [rows, heads] beta; i32 heads,
//   dim, taps, x_stride, b_column; f32 lower_bound, l2_eps, q_scale; i32 rows, seqs
// grid: [any, 1, 1], the rows are divided over it. shared: 0.
// Rounding points: the convolution and SiLU are f32 with one rounding to bf16; from there on f32:
// the normalised q and k are not rounded, nor are decay and beta.

#include "common/args.h"
#include "common/numeric.h"
#include "kda/line.h"

using namespace kern::host;

namespace {

struct Prep {
  KdaLine line;
  const bf16* x;
  int64_t x_stride;
  const std::byte* state;

  /// Convolution and SiLU of one stream's row into `out`.
  void convolve(int stream, const float* taps, int64_t row, int64_t in_call, int64_t line_index,
                float* out) const {
    const int64_t inner = line.inner();
    const bf16* window = line.window(state, line_index, stream);
    for (int64_t c = 0; c < inner; ++c) out[c] = 0;
    for (int64_t i = 0; i < line.taps; ++i) {
      const int64_t back = line.taps - 1 - i;  // rows before this one
      const bf16* u = back <= in_call ? x + (row - back) * x_stride + stream * inner
                                      : window + (in_call + i) * inner;
      for (int64_t c = 0; c < inner; ++c) out[c] += taps[c * line.taps + i] * to_f32(u[c]);
    }
    for (int64_t c = 0; c < inner; ++c) out[c] = through_bf16(silu(out[c]));
  }

  void normalise(float* rows, float eps, float scale) const {
    for (int64_t head = 0; head < line.heads; ++head) {
      float* v = rows + head * line.dim;
      const float size = std::sqrt(dot(v, v, line.dim) + eps);
      for (int64_t d = 0; d < line.dim; ++d) v[d] = v[d] / size * scale;
    }
  }
};

}  // namespace

extern "C" void kern_kda_prep(const kern_block* where, void* const* raw) {
  Args args(raw);
  Prep prep;
  prep.x = args.pointer<const bf16>();
  const auto* r = args.pointer<const bf16>();
  const float* conv[3];
  for (auto& taps : conv) taps = args.pointer<const float>();
  const auto* a_log = args.pointer<const float>();
  const auto* dt_bias = args.pointer<const float>();
  prep.state = args.pointer<const std::byte>();
  const auto* lines = args.pointer<const int32_t>();
  const auto* cu_seqlens = args.pointer<const int32_t>();
  float* out[3];
  for (auto& stream : out) stream = args.pointer<float>();
  auto* alpha = args.pointer<float>();
  auto* beta = args.pointer<float>();
  prep.line.heads = args.i32();
  prep.line.dim = args.i32();
  prep.line.taps = args.i32();
  prep.x_stride = args.i32();
  const int64_t b_column = args.i32();
  const float lower_bound = args.f32(), l2_eps = args.f32(), q_scale = args.f32();
  const int64_t rows = args.i32(), seqs = args.i32();

  const int64_t heads = prep.line.heads, dim = prep.line.dim, inner = prep.line.inner();
  const Span mine = share_of(where, 0, rows);
  for (int64_t row = mine.first; row < mine.last; ++row) {
    const int64_t seq = sequence_of(cu_seqlens, seqs, row);
    for (int s = 0; s < 3; ++s)
      prep.convolve(s, conv[s], row, row - cu_seqlens[seq], lines[seq], out[s] + row * inner);
    prep.normalise(out[0] + row * inner, l2_eps, q_scale);
    prep.normalise(out[1] + row * inner, l2_eps, 1.0F);
    for (int64_t head = 0; head < heads; ++head) {
      const float rate = exp_f32(a_log[head]);
      for (int64_t c = head * dim; c < (head + 1) * dim; ++c)
        alpha[row * inner + c] =
            exp_f32(lower_bound * sigmoid(rate * (to_f32(r[row * inner + c]) + dt_bias[c])));
      beta[row * heads + head] = sigmoid(to_f32(prep.x[row * prep.x_stride + b_column + head]));
    }
  }
}
