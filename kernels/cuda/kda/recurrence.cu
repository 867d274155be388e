// The gated delta rule, token by token in f32.
//
// kern_kda_recurrence, per sequence and head, S the line's rec [v][k], row by row:
//   S[v][k] *= alpha[k];  e[v] = beta (value[v] - sum_k S[v][k] key[k])
//   S[v][k] += e[v] key[k];  o[v] = sum_k S[v][k] q[k]
// params:
//   in f32 [rows, heads * dim] q, k, v, alpha; in f32 [rows, heads] beta; inout state;
//   in i32 [seqs] lines; in i32 cu_seqlens; out f32 [rows, heads * dim] o; i32 heads, dim, taps
// kern_kda_recurrence_snapshot: the same, and S at the last multiple of `boundary` positions inside
//   the call also goes to line snapshot[seq] unless that is 0; after taps come
//   in i32 [seqs] snapshot, seq_len; i32 boundary
// grid: [seqs, heads, dim / 32]; block: [256, 1, 1]; cluster: none; shared: 0.
// Rounding points: none; sums over k run over eight lanes and a fixed tree.
// The state after n tokens depends on those tokens alone, not on where calls were cut.
// Defines: KDA_DIM, KDA_TAPS: the only dim and taps of the variant.
// build: that of kernels/README.md

#include "kda/line.cuh"

using namespace kern;
using namespace kern::kda;

namespace {

// Eight lanes hold one value row; lane l holds k = 32 i + 4 l … + 3.
constexpr int kThreads = 256, kLanes = 8, kSlice = kThreads / kLanes;
constexpr int kQuads = kDim / (4 * kLanes), kStage = 8;  // tokens staged together

struct Stage {
  float q[kStage][kDim], k[kStage][kDim], alpha[kStage][kDim], v[kStage][kSlice], beta[kStage];
};

struct Inputs {
  const float *q, *k, *v, *alpha, *beta;
};

__device__ void copy4(float* to, const float* from) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from));
}

/// Copies `count` tokens from token `token` of the call into a stage.
__device__ void fetch(Stage& to, const Inputs& in, int64_t token, int count, const Line& line,
                      int head, int slice) {
  const int64_t inner = line.inner();
  for (int i = threadIdx.x; i < count * (kDim / 4); i += kThreads) {
    const int t = i / (kDim / 4), d = i % (kDim / 4) * 4;
    const int64_t at = (token + t) * inner + int64_t{head} * kDim + d;
    copy4(&to.q[t][d], in.q + at);
    copy4(&to.k[t][d], in.k + at);
    copy4(&to.alpha[t][d], in.alpha + at);
  }
  for (int i = threadIdx.x; i < count * (kSlice / 4); i += kThreads) {
    const int t = i / (kSlice / 4), d = i % (kSlice / 4) * 4;
    copy4(&to.v[t][d], in.v + (token + t) * inner + int64_t{head} * kDim + slice * kSlice + d);
  }
  if (threadIdx.x < count)
    to.beta[threadIdx.x] = in.beta[(token + threadIdx.x) * line.heads + head];
  asm volatile("cp.async.commit_group;");
}

__device__ float row_sum(float value) {
#pragma unroll
  for (int half = kLanes / 2; half > 0; half /= 2)
    value += __shfl_xor_sync(0xFFFFFFFF, value, half);
  return value;
}

__device__ float dot(const float4* a, const float* b, int lane) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    const float4 c = *reinterpret_cast<const float4*>(b + i * 4 * kLanes + 4 * lane);
    sum += a[i].x * c.x;
    sum += a[i].y * c.y;
    sum += a[i].z * c.z;
    sum += a[i].w * c.w;
  }
  return row_sum(sum);
}

/// One token on this thread's part of the state; returns o of its value row.
__device__ float step(float4* s, const Stage& in, int t, int value_row, int lane) {
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    const auto a = *reinterpret_cast<const float4*>(in.alpha[t] + i * 4 * kLanes + 4 * lane);
    s[i].x *= a.x, s[i].y *= a.y, s[i].z *= a.z, s[i].w *= a.w;
  }
  const float e = in.beta[t] * (in.v[t][value_row] - dot(s, in.k[t], lane));
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    const auto key = *reinterpret_cast<const float4*>(in.k[t] + i * 4 * kLanes + 4 * lane);
    s[i].x += e * key.x, s[i].y += e * key.y, s[i].z += e * key.z, s[i].w += e * key.w;
  }
  return dot(s, in.q[t], lane);
}

__device__ void run(const Inputs& in, unsigned char* state, int line_index, int first, int rows,
                    float* o, int heads, int snapshot_line, int snapshot_rows) {
  __shared__ __align__(16) Stage stages[2];
  const Line line{heads};
  const int head = blockIdx.y, slice = blockIdx.z;
  const int value_row = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const int64_t at = int64_t{slice * kSlice + value_row} * kDim + 4 * lane;
  float* rec = line.rec(state, line_index, head) + at;
  float4 s[kQuads];
#pragma unroll
  for (int i = 0; i < kQuads; ++i) s[i] = *reinterpret_cast<float4*>(rec + i * 4 * kLanes);

  fetch(stages[0], in, first, min(kStage, rows), line, head, slice);
  for (int base = 0; base < rows; base += kStage) {
    const int buffer = base / kStage & 1, count = min(kStage, rows - base);
    if (base + kStage < rows) {
      fetch(stages[buffer ^ 1], in, first + base + kStage, min(kStage, rows - base - kStage), line,
            head, slice);
      asm volatile("cp.async.wait_group 1;");
    } else {
      asm volatile("cp.async.wait_group 0;");
    }
    __syncthreads();
    for (int t = 0; t < count; ++t) {
      const float value = step(s, stages[buffer], t, value_row, lane);
      if (lane == 0)
        o[(int64_t{first} + base + t) * line.inner() + int64_t{head} * kDim + slice * kSlice +
          value_row] = value;
      if (base + t + 1 == snapshot_rows) {
        float* copy = line.rec(state, snapshot_line, head) + at;
#pragma unroll
        for (int i = 0; i < kQuads; ++i) *reinterpret_cast<float4*>(copy + i * 4 * kLanes) = s[i];
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kQuads; ++i) *reinterpret_cast<float4*>(rec + i * 4 * kLanes) = s[i];
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    kern_kda_recurrence(const float* q, const float* k, const float* v, const float* alpha,
                        const float* beta, unsigned char* state, const int32_t* lines,
                        const int32_t* cu_seqlens, float* o, int heads, int dim, int taps) {
  const int seq = blockIdx.x, first = cu_seqlens[seq], rows = cu_seqlens[seq + 1] - first;
  if (rows == 0) return;
  run({q, k, v, alpha, beta}, state, lines[seq], first, rows, o, heads, 0, 0);
}

extern "C" __global__ void __launch_bounds__(kThreads)
    kern_kda_recurrence_snapshot(const float* q, const float* k, const float* v, const float* alpha,
                                 const float* beta, unsigned char* state, const int32_t* lines,
                                 const int32_t* cu_seqlens, float* o, int heads, int dim, int taps,
                                 const int32_t* snapshot, const int32_t* seq_len, int boundary) {
  const int seq = blockIdx.x, first = cu_seqlens[seq], rows = cu_seqlens[seq + 1] - first;
  if (rows == 0) return;
  const int to = snapshot[seq];
  run({q, k, v, alpha, beta}, state, lines[seq], first, rows, o, heads, to,
      to == 0 ? 0 : rows_to_boundary(seq_len[seq], rows, boundary));
}
