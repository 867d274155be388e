// Attention of a rank's own positions over the latent pages, before any merge: for few rows.
//
// kern_mla_attend_split: part as kern_mla_attend's. Of the t = ceil(h / 64) tiles of a row's h
//   held positions a run has max(4, ceil(t / 120)), a segment four runs, a row at most 30
//   segments. The four blocks of a cluster take its runs and merge them in ascending order:
//   M = max_r m_r;  w_r = exp(m_r - M);  (sum_r w_r sums_r | M | sum_r w_r l_r)
//   A row of one segment is done with that; those of a longer row go to `segments`.
//   params as kern_mla_attend's, then before map
//   out f32 [rows, 30, heads, kv_lora + 2] segments
// kern_mla_attend_join merges the segments of longer rows into part the same way:
//   in f32 segments; in i32 cu_seqlens; in i32 [seqs] seq_len; inout f32 part;
//   i32 heads, rank, ranks, rows, seqs
// grid: [120, 1, 1] or any multiple of 4; block: [384, 1, 1]; cluster: [4, 1, 1];
// shared: 231,616 at 96 heads, 124,096 at 8. join: grid [rows, heads, 1], block [128, 1, 1].
// Rounding points: those of kern_mla_attend in a run; the merges are f32. How a row is divided
// follows from h alone, so its bits do not depend on the call's cut, company or grid.
// Defines: MLA_LORA, MLA_ROPE, MLA_HEADS: the only sizes of the variant. page_tokens is 64, rows at
// most 256.
// build: that of kernels/README.md

#include "mla/attend.cuh"
#include "ptx/turn.cuh"

using namespace kern;
using namespace kern::mla;

namespace {

constexpr int kCluster = 4, kSegmentsMax = 30, kRowsMax = 256, kShare = kHeads / kCluster;
constexpr int kRunTiles = 4;  // at least
static_assert(kHeads % kCluster == 0);

__device__ __forceinline__ void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}

/// Tiles that a block of a cluster takes.
__device__ __forceinline__ int run_of(int held) {
  constexpr int kRuns = kSegmentsMax * kCluster;
  return max(kRunTiles, ((held + kPage - 1) / kPage + kRuns - 1) / kRuns);
}
__device__ __forceinline__ int segments_of(int held) {
  const int tiles = (held + kPage - 1) / kPage, segment = kCluster * run_of(held);
  return max(1, (tiles + segment - 1) / segment);
}

struct Rows {
  const int32_t *cu_seqlens, *seq_len;
  int rank, ranks, rows, seqs;

  __device__ int held(int row, int seq) const {
    return positions_held(position_of(cu_seqlens, seq_len, seq, row), rank, ranks);
  }
};

/// Of every row, its sequence, the positions it sees, and the segments up to and with it.
struct Table {
  int seq[kRowsMax], held[kRowsMax], upto[kRowsMax];

  /// By the whole block.
  __device__ void fill(const Rows& all) {
    const int row = threadIdx.x, lane = row % 32;
    int count = 0;
    if (row < all.rows) {
      seq[row] = sequence_of(all.cu_seqlens, all.seqs, row);
      held[row] = all.held(row, seq[row]);
      count = segments_of(held[row]);
    }
    int sum = count;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(0xFFFFFFFF, sum, step);
      if (lane >= step) sum += other;
    }
    if (row < kRowsMax) upto[row] = sum;
    __syncthreads();
    int before = 0;
    for (int w = 0; w < row / 32 && w < kRowsMax / 32; ++w) before += upto[32 * w + 31];
    __syncthreads();
    if (row < kRowsMax) upto[row] += before;
    __syncthreads();
  }

  /// The `item`-th segment of the call, as block `block` of its cluster sees it; false when there
  /// are fewer. All lanes of a warp ask alike.
  __device__ bool segment(int item, int block, int rows, Work& work) const {
    const int lane = threadIdx.x % 32;
    int row = 0;
    uint32_t beyond = 0;
    for (; row < rows && beyond == 0; row += 32)
      beyond = __ballot_sync(0xFFFFFFFF, row + lane < rows && item < upto[row + lane]);
    if (beyond == 0) return false;
    work.row = row - 32 + __ffs(beyond) - 1;
    work.seq = seq[work.row];
    work.held = held[work.row];
    work.segments = segments_of(work.held);
    work.segment = item - (upto[work.row] - work.segments);
    const int tiles = (work.held + kPage - 1) / kPage, run = run_of(work.held);
    work.first = min((work.segment * kCluster + block) * run, tiles);
    work.last = min(work.first + run, tiles);
    return true;
  }
};

__device__ __forceinline__ uint32_t remote(uint32_t shared, int block) {
  uint32_t mapped;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(shared), "r"(block));
  return mapped;
}

/// This block's share of the heads, from every block of the cluster in ascending order. `weights`:
/// shared memory of this block, [kShare][kCluster] and then [kShare] pairs (m, l).
__device__ __forceinline__ void merge_cluster(uint32_t shared, float* weights, int block, float* to,
                                              int64_t head_stride) {
  auto* ends = reinterpret_cast<float2*>(weights + kShare * kCluster);
  const int thread = threadIdx.x;
  if (thread < kShare) {
    const int head = block * kShare + thread;
    float2 end[kCluster];
    float most = kNone, total = 0;
#pragma unroll
    for (int b = 0; b < kCluster; ++b)
      asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];"
                   : "=f"(end[b].x), "=f"(end[b].y)
                   : "r"(remote(shared, b) + kAtEnd + head * 8)
                   : "memory");
#pragma unroll
    for (int b = 0; b < kCluster; ++b)
      if (end[b].y != 0 && end[b].x > most) most = end[b].x;
#pragma unroll
    for (int b = 0; b < kCluster; ++b) {
      const float weight = end[b].y != 0 ? fast::exp2((end[b].x - most) * kLog2E) : 0;
      weights[thread * kCluster + b] = weight;
      if (end[b].y != 0) total += weight * end[b].y;
    }
    ends[thread] = {most, total};
  }
  group_barrier(1, kConsumers);
  // Several loads of every block under way before any is used.
  constexpr int kQuads = kLora / 4, kTurns = kShare * kQuads / kConsumers, kDeep = 3;
  static_assert(kShare * kQuads % kConsumers == 0);
  uint32_t from[kCluster];
#pragma unroll
  for (int b = 0; b < kCluster; ++b) from[b] = remote(shared, b);
  for (int turn = 0; turn < kTurns; turn += kDeep) {
    float4 value[kDeep][kCluster];
#pragma unroll
    for (int d = 0; d < kDeep; ++d) {
      if (turn + d >= kTurns) break;
      const int i = thread + (turn + d) * kConsumers;
      const uint32_t at = ((block * kShare + i / kQuads) * kPitch + i % kQuads * 4) * 4;
#pragma unroll
      for (int b = 0; b < kCluster; ++b)
        asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(value[d][b].x), "=f"(value[d][b].y), "=f"(value[d][b].z),
                       "=f"(value[d][b].w)
                     : "r"(from[b] + at)
                     : "memory");
    }
#pragma unroll
    for (int d = 0; d < kDeep; ++d) {
      if (turn + d >= kTurns) break;
      const int i = thread + (turn + d) * kConsumers, own = i / kQuads, quad = i % kQuads;
      float4 sum = {0, 0, 0, 0};
#pragma unroll
      for (int b = 0; b < kCluster; ++b) {
        const float weight = weights[own * kCluster + b];
        if (weight == 0) continue;  // nothing seen, or too far below
        sum.x += weight * value[d][b].x, sum.y += weight * value[d][b].y;
        sum.z += weight * value[d][b].z, sum.w += weight * value[d][b].w;
      }
      float* out = to + (block * kShare + own) * head_stride;
      *reinterpret_cast<float2*>(out + 4 * quad) = {sum.x, sum.y};
      *reinterpret_cast<float2*>(out + 4 * quad + 2) = {sum.z, sum.w};
      if (quad == 0) *reinterpret_cast<float2*>(out + kLora) = ends[own];
    }
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    kern_mla_attend_split(const bf16* q_abs, const bf16* cache, const int32_t* pages,
                          const int32_t* cu_seqlens, const int32_t* seq_len, float* part, int heads,
                          int kv_lora, int rope, int page_tokens, int table_width, float scale,
                          int rank, int ranks, int rows, int seqs, float* segments,
                          const __grid_constant__ TensorMap map) {
  take_turn();
  extern __shared__ unsigned char dynamic[];
  const uint32_t shared = prepare(dynamic);
  unsigned char* memory = dynamic + (shared - shared_address(dynamic));
  auto& table = *reinterpret_cast<Table*>(memory + kAtRows);
  if (rows > kRowsMax) __trap();
  table.fill({cu_seqlens, seq_len, rank, ranks, rows, seqs});
  const int block = blockIdx.x % kCluster, clusters = gridDim.x / kCluster;
  int item = blockIdx.x / kCluster;
  Work work;
  Ring ring;
  if (threadIdx.x >= kConsumers) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    for (; table.segment(item, block, rows, work); item += clusters) {
      load_tiles(&map, pages + int64_t{work.seq} * table_width, work, shared, ring);
      __syncwarp();
      cluster_barrier();
      cluster_barrier();
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    Consumer consumer{shared};
    for (; table.segment(item, block, rows, work); item += clusters) {
      if (work.first < work.last)
        load_queries(q_abs + int64_t{work.row} * (kHeads * kWidth), shared);
      consumer.clear();
      consumer.tiles(work, scale, ring);
      consumer.leave((work.last - work.first) & 1);
      cluster_barrier();
      // Again, so that it holds no registers while the tensor cores need them.
      table.segment(item, block, rows, work);
      const bool is_whole = work.segments == 1;
      float* to = is_whole ? part + int64_t{work.row} * kPart
                           : segments + (int64_t{work.row} * kSegmentsMax + work.segment) *
                                            (kHeads * kPart);
      merge_cluster(shared, reinterpret_cast<float*>(memory + kAtP), block, to,
                    is_whole ? int64_t{rows} * kPart : kPart);
      fence_async();  // what the threads leave here is overwritten by copies
      cluster_barrier();
    }
  }
}

extern "C" __global__ void __launch_bounds__(128)
    kern_mla_attend_join(const float* segments, const int32_t* cu_seqlens, const int32_t* seq_len,
                         float* part, int heads, int rank, int ranks, int rows, int seqs) {
  take_turn();
  const int row = blockIdx.x, head = blockIdx.y;
  const Rows all{cu_seqlens, seq_len, rank, ranks, rows, seqs};
  const int count = segments_of(all.held(row, sequence_of(cu_seqlens, seqs, row)));
  if (count == 1) return;
  const float* from = segments + (int64_t{row} * kSegmentsMax * kHeads + head) * kPart;
  float most = kNone, total = 0;
  for (int i = 0; i < count; ++i) most = fmaxf(most, from[i * (kHeads * kPart) + kLora]);
  float2 sums[kLora / 256 + 1] = {};
  for (int i = 0; i < count; ++i) {
    const float* one = from + i * (kHeads * kPart);
    const float weight = fast::exp2((one[kLora] - most) * kLog2E);
    total += weight * one[kLora + 1];
#pragma unroll
    for (int j = 0; j < kLora / 256 + 1; ++j) {
      const int pair = threadIdx.x + 128 * j;
      if (pair >= kLora / 2) continue;
      const float2 value = *reinterpret_cast<const float2*>(one + 2 * pair);
      sums[j].x += weight * value.x;
      sums[j].y += weight * value.y;
    }
  }
  float* to = part + (int64_t{head} * rows + row) * kPart;
#pragma unroll
  for (int j = 0; j < kLora / 256 + 1; ++j) {
    const int pair = threadIdx.x + 128 * j;
    if (pair < kLora / 2) *reinterpret_cast<float2*>(to + 2 * pair) = sums[j];
  }
  if (threadIdx.x == 0) *reinterpret_cast<float2*>(to + kLora) = {most, total};
}
