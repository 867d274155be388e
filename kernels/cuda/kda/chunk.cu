// What the chunked delta rule reads: one record a chunk of 16 tokens and head.
//
// kern_kda_chunk, per chunk and head, from kern_kda_prep's q, k, v, beta and g = log alpha, with G
// the sum of g within the chunk up to and with a token:
//   kd = k e^G, qd = q e^G, kr = k e^(G_end - G);  A_ij = beta_i kd_i . k_j e^-G_j, j < i
//   solve = (I + A)^-1 diag(beta);  mix_ij = qd_i . k_j e^-G_j, j <= i
// params:
//   in bf16 [rows, x_stride] x: columns q | k | v, beta's b from column b_column;
//   in bf16 [rows, heads * dim] r; in f32 [heads * dim, taps] conv_q, conv_k, conv_v;
//   in f32 [heads] a_log; in f32 [heads * dim] dt_bias; in state; in i32 [seqs] lines;
//   in i32 cu_seqlens; in i32 [seqs] seq_len; out u8 [slots, heads, record] records;
//   i32 heads, dim, taps, x_stride, b_column; f32 lower_bound, l2_eps, q_scale; i32 rows, seqs
// where slots is rows / 16 + 2 seqs or more, and a record, as kda/chunk.cuh says, 132 dim + 1024
// bytes.
// grid: [slots, heads, 1]; block: [dim, 1, 1]; cluster: none; shared: 0.
// Rounding points: the convolution and SiLU are f32 with one rounding to bf16; kd, qd, kr, solve
// and mix round to bf16; the products behind A and mix take bf16 high and low halves (2^-17). Gates
// are at least -5 a token, so e^-G stays below e^80 in a chunk of 16.
// Defines: KDA_DIM, KDA_TAPS: the only dim and taps of the variant.
// build: that of kernels/README.md

#include "kda/chunk.cuh"
#include "ptx/async.cuh"

using namespace kern;
using namespace kern::kda;

namespace {

// A thread is a pair of channels and half the chunk's tokens.
constexpr int kPairs = kDim / 2, kHalf = kChunk / 2, kWarps = kDim / 32, kRowChunks = kDim / 8;
constexpr int kLanes = kPairs < 32 ? kPairs : 32;  // of a warp that share their tokens
constexpr int kGroups = kDim / kLanes;             // of such lanes; half of them a half
static_assert(kDim == 32 || kDim == 64 || kDim == 128, "whole warps share their tokens");

enum Tile { kKd, kQd, kKi, kKdLow, kKiLow, kKrTile, kVTile, kTiles };

struct Shared {
  // kd, qd and k e^-G; what rounding took from kd and k e^-G; kr; v
  __align__(128) unsigned char tiles[kTiles][Record::kTile];
  __align__(16) unsigned char solve[Record::kSquare], mix[Record::kSquare];
  __align__(16) float a[kChunk][kChunk + 4];  // A without beta
  float2 end[kPairs], decayed[kPairs];        // e^G_end; G after the first half
  float squares[kGroups][2 * kHalf], norms[2 * kChunk], beta[kChunk];
};

__device__ __forceinline__ float quick_exp(float x) {
  return fast::exp2(x * 1.44269504F);
}
__device__ __forceinline__ float quick_sigmoid(float x) {
  return fast::reciprocal(1.0F + quick_exp(-x));
}

/// Two channels; an odd row stride leaves their address odd.
__device__ __forceinline__ uint32_t pair_at(const bf16* at, bool aligned) {
  if (aligned) return __ldg(reinterpret_cast<const uint32_t*>(at));
  return __ldg(at) | uint32_t{__ldg(at + 1)} << 16;
}

struct Place {
  unsigned char* tile;
  int pair;
  __device__ void put_raw(int t, uint32_t value) const {
    *reinterpret_cast<uint32_t*>(tile + tile_at<kRowChunks>(t, pair / 4) + pair % 4 * 4) = value;
  }
  __device__ void put(int t, float low, float high) const { put_raw(t, to_bf16_pair(low, high)); }
};

/// One stream's two channels: the inputs before the thread's tokens, and theirs.
struct Inputs {
  uint32_t u[kKept + kHalf];

  /// `at`: the first token's; it is row `in_call` of the sequence's call, which has `count` more.
  __device__ __forceinline__ void load(const bf16* at, int64_t stride, bool aligned, int in_call,
                                       int count, const bf16* window, int64_t inner) {
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      const int back = kKept - i;
      u[i] = count <= 0        ? 0
             : back <= in_call ? pair_at(at - back * stride, aligned)
                               : *reinterpret_cast<const uint32_t*>(window + (in_call + i) * inner);
    }
#pragma unroll
    for (int t = 0; t < kHalf; ++t)
      u[kKept + t] = t < count ? pair_at(at + t * stride, aligned) : 0;
  }

  /// Convolution, SiLU and rounding of token t.
  __device__ __forceinline__ uint32_t convolved(int t, const float* taps, int count) const {
    float low = 0, high = 0;
#pragma unroll
    for (int i = 0; i < kTaps; ++i) {
      low = fmaf(taps[i], low_f32(u[t + i]), low);
      high = fmaf(taps[kTaps + i], high_f32(u[t + i]), high);
    }
    const uint32_t y = to_bf16_pair(low * quick_sigmoid(low), high * quick_sigmoid(high));
    return t < count ? y : 0;
  }
};

__device__ __forceinline__ float2 both_of(uint32_t pair) {
  return {low_f32(pair), high_f32(pair)};
}

/// Of 2 kLeft values a lane, keeps half and adds the partner's, until one is left.
template <int kLeft, int kBit>
__device__ __forceinline__ void fold(float (&value)[2 * kHalf], int lane) {
  const bool upper = (lane & kBit) != 0;
#pragma unroll
  for (int i = 0; i < kLeft; ++i) {
    const float sent = upper ? value[i] : value[i + kLeft];
    value[i] = (upper ? value[i + kLeft] : value[i]) + __shfl_xor_sync(0xFFFFFFFF, sent, kBit);
  }
  if constexpr (kLeft > 1) fold<kLeft / 2, kBit / 2>(value, lane);
}

/// The squares of kHalf tokens' q and k summed over the warp's lanes that share the tokens; the
/// lane that gets sum i of q (even) or k (odd) leaves it in `to[i]`.
__device__ __forceinline__ void sum_squares(const float2 (&q)[kHalf], const float2 (&k)[kHalf],
                                            float* to) {
  float value[2 * kHalf];
#pragma unroll
  for (int t = 0; t < kHalf; ++t) {
    value[2 * t] = fmaf(q[t].x, q[t].x, q[t].y * q[t].y);
    value[2 * t + 1] = fmaf(k[t].x, k[t].x, k[t].y * k[t].y);
  }
  const int lane = threadIdx.x % kLanes;
  fold<kHalf, kLanes / 2>(value, lane);
  if (kLanes == 32) value[0] += __shfl_xor_sync(0xFFFFFFFF, value[0], 1);
  to[kLanes == 32 ? lane / 2 : lane] = value[0];
}

/// Eight columns of left[16 x dim] (k e^-G)[16 x dim]^T, one warp; with the low halves if asked.
template <bool kLow>
__device__ __forceinline__ void product(const Shared& s, int left, int column, float (&sum)[4]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k) {
    const uint32_t at = tile_at<kRowChunks>(lane % 16, 2 * k + lane / 16);
    const Quad a = load_matrix(shared_address(s.tiles[left]) + at);
    // both halves of k of eight rows: matrices 0 and 1 high, 2 and 3 low
    const Quad b = load_matrix(shared_address(s.tiles[lane < 16 ? kKi : kKiLow]) +
                               tile_at<kRowChunks>(column + lane % 8, 2 * k + lane / 8 % 2));
    if (kLow) {
      const Quad a_low = load_matrix(shared_address(s.tiles[kKdLow]) + at);
      mma(sum, a_low, b.r[0], b.r[1]);
      mma(sum, a, b.r[2], b.r[3]);
    }
    mma(sum, a, b.r[0], b.r[1]);
  }
}

/// (I + A)^-1 diag(beta) by forward substitution: a thread a column.
__device__ __forceinline__ void solve(Shared& s) {
  const int j = threadIdx.x;
  float column[kChunk];
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    float sum = 0;
#pragma unroll
    for (int m = 0; m < i; m += 4) {
      const float4 a = *reinterpret_cast<const float4*>(&s.a[i][m]);
      sum = fmaf(a.x, column[m], sum);
      if (m + 1 < i) sum = fmaf(a.y, column[m + 1], sum);
      if (m + 2 < i) sum = fmaf(a.z, column[m + 2], sum);
      if (m + 3 < i) sum = fmaf(a.w, column[m + 3], sum);
    }
    column[i] = (i == j ? 1.0F : 0.0F) - s.beta[i] * sum;
  }
#pragma unroll
  for (int i = 0; i < kChunk; ++i)
    *reinterpret_cast<bf16*>(s.solve + (i * kChunk + j) * 2) = to_bf16(column[i] * s.beta[j]);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kDim)
    kern_kda_chunk(const bf16* x, const bf16* r, const float* conv_q, const float* conv_k,
                   const float* conv_v, const float* a_log, const float* dt_bias,
                   const unsigned char* state, const int32_t* lines, const int32_t* cu_seqlens,
                   const int32_t* seq_len, unsigned char* records, int heads, int dim, int taps,
                   int x_stride, int b_column, float lower_bound, float l2_eps, float q_scale,
                   int rows, int seqs) {
  __shared__ Shared s;
  const int slot = blockIdx.x, head = blockIdx.y, thread = threadIdx.x;
  const int pair = thread % kPairs, half = thread / kPairs;

  // ---- which chunk ----
  int seq = 0;
  for (int high = seqs - 1; seq < high;) {
    const int middle = (seq + high + 1) / 2;
    if (Sequence::slot_of(cu_seqlens, middle) <= slot)
      seq = middle;
    else
      high = middle - 1;
  }
  const Sequence sequence = Sequence::of(cu_seqlens, seq_len, seq);
  if (slot - sequence.slot >= sequence.chunks()) return;
  const ChunkRows chunk = sequence.chunk(slot - sequence.slot);
  const Line line{heads};
  const int64_t inner = line.inner(), first = sequence.first + chunk.first;
  const int c = head * kDim + 2 * pair, from = half * kHalf, count = chunk.count - from;

  // ---- q, k, v and the decays' logarithms ----
  const bf16* at = x + (first + from) * x_stride + c;
  const bool aligned = x_stride % 2 == 0;
  const int line_index = lines[seq], in_call = chunk.first + from;
  Inputs inputs[3];
#pragma unroll
  for (int stream = 0; stream < 3; ++stream)
    inputs[stream].load(at + stream * inner, x_stride, aligned, in_call, count,
                        line.window(state, line_index, stream) + c, inner);
  uint32_t gate[kHalf];
#pragma unroll
  for (int t = 0; t < kHalf; ++t)
    gate[t] = t < count ? pair_at(r + (first + from + t) * inner + c, true) : 0;
  const bf16 beta_input =
      thread < chunk.count ? __ldg(x + (first + thread) * x_stride + b_column + head) : bf16{0};
  float2 q[kHalf], k[kHalf];
  const float* conv[3] = {conv_q, conv_k, conv_v};
#pragma unroll
  for (int stream = 2; stream >= 0; --stream) {
    float taps_of[2 * kTaps];
#pragma unroll
    for (int i = 0; i < 2 * kTaps; ++i) taps_of[i] = __ldg(conv[stream] + c * kTaps + i);
#pragma unroll
    for (int t = 0; t < kHalf; ++t) {
      const uint32_t y = inputs[stream].convolved(t, taps_of, count);
      if (stream == 0) q[t] = both_of(y);
      if (stream == 1) k[t] = both_of(y);
      if (stream == 2) Place{s.tiles[kVTile], pair}.put_raw(from + t, y);
    }
  }
  const float rate = fast::exp_f32(a_log[head]);
  const float2 bias = {dt_bias[c], dt_bias[c + 1]};
  float2 decayed[kHalf], sum = {0, 0};
#pragma unroll
  for (int t = 0; t < kHalf; ++t) {
    if (t < count) {
      sum.x += lower_bound * quick_sigmoid(rate * (low_f32(gate[t]) + bias.x));
      sum.y += lower_bound * quick_sigmoid(rate * (high_f32(gate[t]) + bias.y));
    }
    decayed[t] = sum;
  }
  if (half == 0) s.decayed[pair] = sum;
  sum_squares(q, k, s.squares[thread / kLanes]);
  if (thread < kChunk)
    s.beta[thread] = thread < chunk.count ? quick_sigmoid(to_f32(beta_input)) : 0;
  __syncthreads();
  if (thread < 2 * kChunk) {  // sum i of the tokens' q and k, over the warps of its half
    float squares = l2_eps;
#pragma unroll
    for (int group = 0; group < kGroups / 2; ++group)
      squares += s.squares[thread / kChunk * (kGroups / 2) + group][thread % kChunk];
    s.norms[thread] = rsqrtf(squares);
  }
  __syncthreads();

  // ---- what enters the products ----
  const float2 before = half == 0 ? float2{0, 0} : s.decayed[pair];
#pragma unroll
  for (int t = 0; t < kHalf; ++t) {
    const float q_unit = s.norms[2 * (from + t)] * q_scale, k_unit = s.norms[2 * (from + t) + 1];
    const float2 grown = {quick_exp(-(before.x + decayed[t].x)),
                          quick_exp(-(before.y + decayed[t].y))};
    const float2 shrunk = {fast::reciprocal(grown.x), fast::reciprocal(grown.y)};
    Place{s.tiles[kQd], pair}.put(from + t, q[t].x * q_unit * shrunk.x, q[t].y * q_unit * shrunk.y);
    const float2 unit = {k[t].x * k_unit, k[t].y * k_unit};
    const auto both = [&](int high, int low, float x, float y) {
      const uint32_t rounded = to_bf16_pair(x, y);
      Place{s.tiles[high], pair}.put_raw(from + t, rounded);
      Place{s.tiles[low], pair}.put(from + t, x - low_f32(rounded), y - high_f32(rounded));
    };
    both(kKd, kKdLow, unit.x * shrunk.x, unit.y * shrunk.y);
    k[t] = {unit.x * grown.x, unit.y * grown.y};
    both(kKi, kKiLow, k[t].x, k[t].y);
  }
  if (half == 1) s.end[pair] = {quick_exp(before.x + sum.x), quick_exp(before.y + sum.y)};
  __syncthreads();
  const float2 end = s.end[pair];
#pragma unroll
  for (int t = 0; t < kHalf; ++t)
    Place{s.tiles[kKrTile], pair}.put(from + t, k[t].x * end.x, k[t].y * end.y);

  // ---- A and mix ----
  const int warp = thread / 32, lane = thread % 32;
  for (int job = warp; job < 4; job += kWarps) {
    float part[4] = {};
    const int column = job % 2 * 8, row = lane / 4, to = column + lane % 4 * 2;
    if (job < 2) {
      product<true>(s, kKd, column, part);
#pragma unroll
      for (int i = 0; i < 4; ++i) s.a[row + i / 2 * 8][to + i % 2] = part[i];
    } else {
      product<false>(s, kQd, column, part);
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const int below = row + i * 4;
        *reinterpret_cast<uint32_t*>(s.mix + (below * kChunk + to) * 2) =
            to_bf16_pair(to <= below ? part[i] : 0, to + 1 <= below ? part[i + 1] : 0);
      }
    }
  }
  __syncthreads();

  // ---- the record: one warp solves while the others copy ----
  unsigned char* out = records + (int64_t{slot} * heads + head) * Record::kBytes;
  const auto copy = [&](int to, const void* source, int bytes, int index, int threads) {
    for (int i = index * 16; i < bytes; i += threads * 16)
      *reinterpret_cast<uint4*>(out + to + i) =
          *reinterpret_cast<const uint4*>(static_cast<const unsigned char*>(source) + i);
  };
  constexpr int kCopiers = kWarps > 1 ? kDim - 32 : kDim;
  if (kWarps == 1 || warp > 0) {
    const int index = kWarps > 1 ? thread - 32 : thread;
    copy(Record::kKd, s.tiles[kKd], Record::kTile, index, kCopiers);
    copy(Record::kQd, s.tiles[kQd], Record::kTile, index, kCopiers);
    copy(Record::kKr, s.tiles[kKrTile], Record::kTile, index, kCopiers);
    copy(Record::kV, s.tiles[kVTile], Record::kTile, index, kCopiers);
    copy(Record::kMix, s.mix, Record::kSquare, index, kCopiers);
    copy(Record::kEnd, s.end, kDim * 4, index, kCopiers);
  }
  if (warp == 0) {
    if (lane < kChunk) solve(s);
    __syncwarp();
    copy(Record::kSolve, s.solve, Record::kSquare, lane, 32);
  }
}
