// A whole KDA step: convolution, norms and gates, delta rule, output norm and gate, windows.
//
// kern_kda_decode, per sequence and head, row by row: kern_kda_prep's q, k, v, alpha, beta, then
//   S[v][k] *= alpha[k];  e[v] = beta (value[v] - sum_k S[v][k] key[k]);  S[v][k] += e[v] key[k]
//   o[v] = sum_k S[v][k] q[k];  y = bf( o (mean(o^2) + eps)^-1/2 o_norm sigmoid(z) )
// and the line's windows become the last taps - 1 inputs. One row a sequence is what it is for;
// more are right and slow.
// params:
//   in bf16 [rows, x_stride] x: columns q | k | v, z from z_column, beta's b from b_column;
//   in bf16 [rows, heads * dim] r; in f32 [heads * dim, taps] conv_q, conv_k, conv_v;
//   in f32 [heads] a_log; in f32 [heads * dim] dt_bias; in f32 [dim] o_norm; inout state;
//   in i32 [seqs] lines; in i32 cu_seqlens; out bf16 [rows, heads * dim] y;
//   i32 heads, dim, taps, x_stride, b_column, z_column; f32 lower_bound, l2_eps, q_scale, eps;
//   i32 rows, seqs
// grid: [seqs, heads, 1]; block: [8 dim but at most 512, 1, 1]; cluster: none; shared: 0.
// Rounding points: q, k, v after SiLU and y round to bf16; the rest is f32. Sums over k run over
// eight lanes and a fixed tree.
// Defines: KDA_DIM, KDA_TAPS: the only dim and taps of the variant.
// build: that of kernels/README.md

#include "kda/line.cuh"
#include "ptx/memory.cuh"
#include "ptx/turn.cuh"

using namespace kern;
using namespace kern::kda;

namespace {

// Eight lanes hold a value row; lane l holds k = 32 i + 4 l … + 3.
constexpr int kLanes = 8, kThreads = kDim * kLanes < 512 ? kDim * kLanes : 512;
constexpr int kGroups = kThreads / kLanes, kRowsEach = kDim / kGroups;
constexpr int kQuads = kDim / (4 * kLanes), kWarps = kDim / 32;
static_assert(kDim % kGroups == 0 && 4 * kDim <= kThreads);

struct Shared {
  float q[kDim], k[kDim], v[kDim], alpha[kDim], gate[kDim], o[kDim];
  float squares[2][kWarps], beta;
};

__device__ float row_sum(float value) {
#pragma unroll
  for (int half = kLanes / 2; half > 0; half /= 2)
    value += __shfl_xor_sync(0xFFFFFFFF, value, half);
  return value;
}

__device__ float4 quad(const float* from, int i, int lane) {
  return *reinterpret_cast<const float4*>(from + i * 4 * kLanes + 4 * lane);
}

__device__ float dot(float4 a, float4 b, float sum) {
  sum += a.x * b.x;
  sum += a.y * b.y;
  sum += a.z * b.z;
  return sum + a.w * b.w;
}

/// The delta rule on this thread's rows.
__device__ void step(float4 (&s)[kRowsEach][kQuads], Shared& in, int group, int lane) {
  float before[kRowsEach] = {}, after[kRowsEach] = {};
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    const float4 a = quad(in.alpha, i, lane), key = quad(in.k, i, lane);
#pragma unroll
    for (int j = 0; j < kRowsEach; ++j) {
      s[j][i].x *= a.x, s[j][i].y *= a.y, s[j][i].z *= a.z, s[j][i].w *= a.w;
      before[j] = dot(s[j][i], key, before[j]);
    }
  }
  float e[kRowsEach];
#pragma unroll
  for (int j = 0; j < kRowsEach; ++j)
    e[j] = in.beta * (in.v[group + j * kGroups] - row_sum(before[j]));
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    const float4 key = quad(in.k, i, lane), query = quad(in.q, i, lane);
#pragma unroll
    for (int j = 0; j < kRowsEach; ++j) {
      s[j][i].x += e[j] * key.x, s[j][i].y += e[j] * key.y;
      s[j][i].z += e[j] * key.z, s[j][i].w += e[j] * key.w;
      after[j] = dot(s[j][i], query, after[j]);
    }
  }
#pragma unroll
  for (int j = 0; j < kRowsEach; ++j) {
    const float value = row_sum(after[j]);
    if (lane == 0) in.o[group + j * kGroups] = value;
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, 2)
    kern_kda_decode(const bf16* x, const bf16* r, const float* conv_q, const float* conv_k,
                    const float* conv_v, const float* a_log, const float* dt_bias,
                    const float* o_norm, unsigned char* state, const int32_t* lines,
                    const int32_t* cu_seqlens, bf16* y, int heads, int dim, int taps, int x_stride,
                    int b_column, int z_column, float lower_bound, float l2_eps, float q_scale,
                    float eps, int rows, int seqs) {
  __shared__ __align__(16) Shared shared;
  const int seq = blockIdx.x, head = blockIdx.y;
  let_next_start();
  if (seq == 0 && threadIdx.x < 3 * kDim) {  // the taps, for every sequence
    const int stream = threadIdx.x / kDim, channel = head * kDim + threadIdx.x % kDim;
    const float* taps_of = stream == 0 ? conv_q : stream == 1 ? conv_k : conv_v;
    prefetch_l2(taps_of + channel * kTaps);
  }
  wait_for_earlier();
  const int first = cu_seqlens[seq], last = cu_seqlens[seq + 1];
  if (first == last) return;
  const int line_index = lines[seq];
  const Line line{heads};
  const int inner = heads * kDim, base = head * kDim;

  // ---- the state: every load is under way before anything is used ----
  const int group = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const auto rec_of = [&](unsigned char* at, int index) {
    return line.rec(at, index, head) + group * kDim + 4 * lane;
  };
  const float* rec = rec_of(state, line_index);
  float4 s[kRowsEach][kQuads];
#pragma unroll
  for (int j = 0; j < kRowsEach; ++j)
#pragma unroll
    for (int i = 0; i < kQuads; ++i)
      s[j][i] = __ldcs(reinterpret_cast<const float4*>(rec + j * kGroups * kDim + i * 4 * kLanes));

  // ---- a thread is a channel of q, k, v or the decay ----
  const int part = threadIdx.x / kDim, d = threadIdx.x % kDim, c = base + d;

  for (int row = first; row < last; ++row) {
    // ---- what the row brings ----
    const bf16* at = x + row * int64_t{x_stride};
    float value = 0;
    if (part < 3) {
      const float* w = (part == 0 ? conv_q : part == 1 ? conv_k : conv_v) + c * kTaps;
      bf16* window = line.window(state, line_index, part) + c;
      History history;
      history.load(at + part * inner + c, x_stride, row - first, window, inner);
      value = history.next(to_f32(at[part * inner + c]), w);
      if (row + 1 == last)
#pragma unroll
        for (int i = 0; i < kKept; ++i) window[i * inner] = to_bf16(history.u[i]);
      if (part == 2) shared.v[d] = value;
    } else if (part == 3) {
      shared.alpha[d] = decay(to_f32(r[int64_t{row} * inner + c]), dt_bias[c],
                              fast::exp_f32(a_log[head]), lower_bound);
      shared.gate[d] = o_norm[d] * fast::sigmoid(to_f32(at[z_column + c]));
      if (d == 0) shared.beta = fast::sigmoid(to_f32(at[b_column + head]));
    }
    if (part < 2) {
      const float squares = warp_sum(value * value);
      if (d % 32 == 0) shared.squares[part][d / 32] = squares;
    }
    __syncthreads();
    if (part < 2) {
      float total = 0;
#pragma unroll
      for (int i = 0; i < kWarps; ++i) total += shared.squares[part][i];
      const float unit = value * rsqrtf(total + l2_eps);
      if (part == 0)
        shared.q[d] = unit * q_scale;
      else
        shared.k[d] = unit;
    }
    __syncthreads();

    step(s, shared, group, lane);
    if (row + 1 == last) {
#pragma unroll
      for (int j = 0; j < kRowsEach; ++j)
#pragma unroll
        for (int i = 0; i < kQuads; ++i)
          __stcs(reinterpret_cast<float4*>(rec_of(state, line_index) + j * kGroups * kDim +
                                           i * 4 * kLanes),
                 s[j][i]);
    }
    __syncthreads();

    // ---- norm and gate ----
    if (threadIdx.x < 32) {
      float o[kWarps], squares = 0;
#pragma unroll
      for (int i = 0; i < kWarps; ++i) {
        o[i] = shared.o[threadIdx.x + 32 * i];
        squares += o[i] * o[i];
      }
      const float scale = rsqrtf(warp_sum(squares) / kDim + eps);
#pragma unroll
      for (int i = 0; i < kWarps; ++i) {
        const int to = threadIdx.x + 32 * i;
        y[int64_t{row} * inner + base + to] = to_bf16(o[i] * scale * shared.gate[to]);
      }
    }
    if (row + 1 < last) __syncthreads();
  }
}
