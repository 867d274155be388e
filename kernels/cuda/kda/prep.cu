// What the delta rule reads, for every row: convolved and normalised q, k, v, the decay and beta.
//
// kern_kda_prep, per row t and channel c = head * dim + d, u the projections, w the taps:
//   y[c] = sum_{i < taps} w[c][i] u_{t - taps + 1 + i}[c];  q, k, v = bf(y sigmoid(y))
//   q, k = q, k / (sum_d q, k^2 + l2_eps)^1/2, q times q_scale;  beta = sigmoid(b)
//   alpha[c] = exp(lower_bound sigmoid(exp(a_log[head]) (r[c] + dt_bias[c])))
// params:
//   in bf16 [rows, x_stride] x: columns q | k | v, beta's b from column b_column;
//   in bf16 [rows, heads * dim] r; in f32 [heads * dim, taps] conv_q, conv_k, conv_v;
//   in f32 [heads] a_log; in f32 [heads * dim] dt_bias; in state; in i32 [seqs] lines;
//   in i32 cu_seqlens; out f32 [rows, heads * dim] q, k, v, alpha; out f32 [rows, heads] beta;
//   i32 heads, dim, taps, x_stride, b_column; f32 lower_bound, l2_eps, q_scale; i32 rows, seqs
// grid: [ceil_div(rows, 32), heads, 1]; block: [dim, 1, 1]; cluster: none; shared: 0.
// Rounding points: the convolution and SiLU are f32 with one rounding to bf16; then f32.
// Defines: KDA_DIM, KDA_TAPS: the only dim and taps of the variant.
// build: that of kernels/README.md

#include "kda/line.cuh"

using namespace kern;
using namespace kern::kda;

namespace {

constexpr int kRows = 32, kWarps = kDim / 32;

}  // namespace

extern "C" __global__ void __launch_bounds__(kDim)
    kern_kda_prep(const bf16* x, const bf16* r, const float* conv_q, const float* conv_k,
                  const float* conv_v, const float* a_log, const float* dt_bias,
                  const unsigned char* state, const int32_t* lines, const int32_t* cu_seqlens,
                  float* q, float* k, float* v, float* alpha, float* beta, int heads, int dim,
                  int taps, int x_stride, int b_column, float lower_bound, float l2_eps,
                  float q_scale, int rows, int seqs) {
  __shared__ float squares[2][2][kWarps];
  const int head = blockIdx.y, d = threadIdx.x;
  const Line line{heads};
  const int64_t inner = line.inner(), c = int64_t{head} * kDim + d, stride = x_stride;
  const int first = blockIdx.x * kRows, last = min(first + kRows, rows);
  const float rate = fast::exp_f32(a_log[head]), bias = dt_bias[c];
  const float* conv[3] = {conv_q, conv_k, conv_v};
  float w[3][kTaps];
#pragma unroll
  for (int s = 0; s < 3; ++s)
#pragma unroll
    for (int i = 0; i < kTaps; ++i) w[s][i] = conv[s][c * kTaps + i];

  History history[3];
  int seq = sequence_of(cu_seqlens, seqs, first), end = cu_seqlens[seq + 1];
  for (int row = first; row < last; ++row) {
    if (row == first || row == end) {
      while (row >= end) end = cu_seqlens[++seq + 1];
      const int in_call = row - cu_seqlens[seq], at = lines[seq];
#pragma unroll
      for (int s = 0; s < 3; ++s)
        history[s].load(x + row * stride + s * inner + c, stride, in_call,
                        line.window(state, at, s) + c, inner);
    }
    float value[3];
#pragma unroll
    for (int s = 0; s < 3; ++s)
      value[s] = history[s].next(to_f32(x[row * stride + s * inner + c]), w[s]);
    const int64_t to = row * inner + c;
    alpha[to] = decay(to_f32(r[to]), bias, rate, lower_bound);
    v[to] = value[2];
    if (d == 0)
      beta[int64_t{row} * heads + head] = fast::sigmoid(to_f32(x[row * stride + b_column + head]));
    float total[2];
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      total[s] = warp_sum(value[s] * value[s]);
      if (kWarps > 1 && d % 32 == 0) squares[row & 1][s][d / 32] = total[s];
    }
    if (kWarps > 1) {
      __syncthreads();
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        total[s] = 0;
#pragma unroll
        for (int i = 0; i < kWarps; ++i) total[s] += squares[row & 1][s][i];
      }
    }
    q[to] = __fdividef(value[0], sqrtf(total[0] + l2_eps)) * q_scale;
    k[to] = __fdividef(value[1], sqrtf(total[1] + l2_eps));
  }
}
