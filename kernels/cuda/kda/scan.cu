// The gated delta rule, a chunk of 16 tokens at a step: tensor cores, the state in f32 registers.
//
// kern_kda_scan_snapshot, per sequence and head, S the line's rec [v][k], over the records of
// kern_kda_chunk, in order:
//   U = solve (V - kd S^T);  O = qd S^T + mix U
//   S[v][k] = S[v][k] e^G_end[k] + sum_j U_j[v] kr_j[k]
// and S at the last multiple of `boundary` positions inside the call also goes to line
// snapshot[seq] unless that is 0.
// params:
//   in u8 [slots, heads, record] records; inout state; in i32 [seqs] lines; in i32 cu_seqlens;
//   out f32 [rows, heads * dim] o; i32 heads, dim, taps; in i32 [seqs] snapshot, seq_len;
//   i32 boundary (a multiple of 16)
// grid: [seqs, heads, dim / (16 KDA_WARPS)]; block: [32 KDA_WARPS + 32, 1, 1]; cluster: none;
// shared: KDA_STAGES * (132 dim + 1024) + 128.
// Rounding points: S and V - kd S^T and U round to bf16 where they enter a product; the state, all
// sums and the output are f32. Chunks are counted from the start of the sequence, so the bytes do
// not depend on where calls were cut if cuts are multiples of 16.
// Defines: KDA_DIM, KDA_TAPS: the only dim and taps of the variant; KDA_WARPS, value rows a block
// by 16, and KDA_STAGES, records under way: of no influence on the result.
// build: that of kernels/README.md

#include "kda/chunk.cuh"
#include "ptx/async.cuh"

using namespace kern;
using namespace kern::kda;

#ifndef KDA_WARPS
#define KDA_WARPS 4
#endif
#ifndef KDA_STAGES
#define KDA_STAGES 4
#endif

namespace {

constexpr int kWarps = KDA_WARPS, kStages = KDA_STAGES, kThreads = 32 * kWarps + 32;
constexpr int kTiles = kDim / 8, kSteps = kDim / 16, kRowChunks = kDim / 8;
static_assert(kDim % (16 * kWarps) == 0 && kStages >= 2);

/// The chunk's state update and outputs for 16 value rows, one warp.
struct Rows {
  float s[kTiles][4];  // S rows lane / 4 and + 8, columns 8 j + lane % 4 * 2 and + 1

  __device__ Quad fragment(int step) const {
    return {{to_bf16_pair(s[2 * step][0], s[2 * step][1]),
             to_bf16_pair(s[2 * step][2], s[2 * step][3]),
             to_bf16_pair(s[2 * step + 1][0], s[2 * step + 1][1]),
             to_bf16_pair(s[2 * step + 1][2], s[2 * step + 1][3])}};
  }

  /// `record` in shared memory; `values`: the chunk of 8 value columns the warp begins with.
  /// o: [token tile][…], value rows lane / 4 and + 8, tokens 8 i + lane % 4 * 2 and + 1.
  __device__ void step(uint32_t record, int values, float (&o)[2][4]) {
    const int lane = threadIdx.x % 32;
    float seen[2][2][4] = {};
    const int right_row = lane / 16 * 8 + lane % 8, right_half = lane / 8 % 2;
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      const Quad a = fragment(k);
      const Quad b =
          load_matrix(record + Record::kKd + tile_at<kRowChunks>(right_row, 2 * k + right_half));
      mma(seen[k % 2][0], a, b.r[0], b.r[1]);
      mma(seen[k % 2][1], a, b.r[2], b.r[3]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) o[0][i] = o[1][i] = 0;
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      const Quad a = fragment(k);
      const Quad b =
          load_matrix(record + Record::kQd + tile_at<kRowChunks>(right_row, 2 * k + right_half));
      mma(o[0], a, b.r[0], b.r[1]);
      mma(o[1], a, b.r[2], b.r[3]);
    }
    // V transposed: tokens 0-7 and 8-15 by value rows 0-7 and 8-15
    const Quad v = load_matrix_trans(
        record + Record::kV + tile_at<kRowChunks>(lane / 16 * 8 + lane % 8, values + lane / 8 % 2));
    Quad e;
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // i: token tile i / 2, value rows + 8 (i % 2)
      const float* x = seen[0][i / 2] + i % 2 * 2;
      const float* y = seen[1][i / 2] + i % 2 * 2;
      e.r[i] = to_bf16_pair(low_f32(v.r[i]) - (x[0] + y[0]), high_f32(v.r[i]) - (x[1] + y[1]));
    }
    float u[2][4] = {};
    const uint32_t square = right_row * 32 + right_half * 16;
    const Quad solve = load_matrix(record + Record::kSolve + square);
    mma(u[0], e, solve.r[0], solve.r[1]);
    mma(u[1], e, solve.r[2], solve.r[3]);
    const Quad w = {{to_bf16_pair(u[0][0], u[0][1]), to_bf16_pair(u[0][2], u[0][3]),
                     to_bf16_pair(u[1][0], u[1][1]), to_bf16_pair(u[1][2], u[1][3])}};
#pragma unroll
    for (int j = 0; j < kTiles; j += 2) {
      const Quad b =
          load_matrix_trans(record + Record::kKr + tile_at<kRowChunks>(lane % 16, j + lane / 16));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float x, y;
        asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                     : "=f"(x), "=f"(y)
                     : "r"(record + Record::kEnd + (8 * (j + i) + lane % 4 * 2) * 4)
                     : "memory");
        s[j + i][0] *= x, s[j + i][1] *= y, s[j + i][2] *= x, s[j + i][3] *= y;
        mma(s[j + i], w, b.r[2 * i], b.r[2 * i + 1]);
      }
    }
    const Quad mix = load_matrix(record + Record::kMix + square);
    mma(o[0], w, mix.r[0], mix.r[1]);
    mma(o[1], w, mix.r[2], mix.r[3]);
  }

  __device__ void load(const float* rec) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < kTiles; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 value = *reinterpret_cast<const float2*>(rec + (lane / 4 + 8 * half) * kDim +
                                                              8 * j + lane % 4 * 2);
        s[j][2 * half] = value.x, s[j][2 * half + 1] = value.y;
      }
  }
  __device__ void store(float* rec) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < kTiles; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        *reinterpret_cast<float2*>(rec + (lane / 4 + 8 * half) * kDim + 8 * j + lane % 4 * 2) = {
            s[j][2 * half], s[j][2 * half + 1]};
  }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    kern_kda_scan_snapshot(const unsigned char* records, unsigned char* state, const int32_t* lines,
                           const int32_t* cu_seqlens, float* o, int heads, int dim, int taps,
                           const int32_t* snapshot, const int32_t* seq_len, int boundary) {
  extern __shared__ __align__(128) unsigned char memory[];
  const uint32_t shared = shared_address(memory), barriers = shared + kStages * Record::kBytes;
  const auto full = [&](int stage) { return barriers + 8 * stage; };
  const auto empty = [&](int stage) { return barriers + 8 * (kStages + stage); };
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      barrier_init(full(stage), 1);
      barrier_init(empty(stage), 32 * kWarps);
    }
    fence_async();
  }
  __syncthreads();

  const int seq = blockIdx.x, head = blockIdx.y;
  const Sequence sequence = Sequence::of(cu_seqlens, seq_len, seq);
  const int chunks = sequence.rows == 0 ? 0 : sequence.chunks();
  int stage = 0;
  uint32_t parity = 0;
  const auto next = [&] {
    if (++stage == kStages) stage = 0, parity ^= 1;
  };

  if (threadIdx.x >= 32 * kWarps) {  // ---- the loading warp ----
    const int64_t stride = int64_t{heads} * Record::kBytes;
    const unsigned char* from = records + sequence.slot * stride + int64_t{head} * Record::kBytes;
    for (int chunk = 0; chunk < chunks; ++chunk, from += stride) {
      barrier_wait(empty(stage), parity ^ 1);
      if (threadIdx.x % 32 == 0) {
        barrier_expect(full(stage), Record::kBytes);
        copy_bulk(shared + stage * Record::kBytes, from, Record::kBytes, full(stage));
      }
      next();
    }
    return;
  }
  if (chunks == 0) return;

  // ---- 16 value rows a warp ----
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int value = (blockIdx.z * kWarps + warp) * 16;
  const Line line{heads};
  const int64_t inner = line.inner();
  float* rec = line.rec(state, lines[seq], head) + value * kDim;
  int snapshot_rows = 0;
  if (snapshot[seq] != 0) snapshot_rows = rows_to_boundary(seq_len[seq], sequence.rows, boundary);
  Rows rows;
  rows.load(rec);
  float* to = o + sequence.first * inner + head * kDim + value + lane / 4;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const ChunkRows at = sequence.chunk(chunk);
    float out[2][4];
    barrier_wait(full(stage), parity);
    rows.step(shared + stage * Record::kBytes, value / 8, out);
    // The record before this one: what was read of it has been used, not only asked for. Each lane
    // speaks for its own reads.
    if (chunk > 0) barrier_arrive(empty(stage == 0 ? kStages - 1 : stage - 1));
    next();
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int token = i / 4 * 8 + lane % 4 * 2 + i % 2;
      if (token < at.count) to[(at.first + token) * inner + i / 2 % 2 * 8] = out[i / 4][i % 4];
    }
    if (at.first + at.count == snapshot_rows)
      rows.store(line.rec(state, snapshot[seq], head) + value * kDim);
  }
  rows.store(rec);
}
