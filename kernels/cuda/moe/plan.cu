// Where each pick of an expert goes: picks grouped by expert, in row order, and cut into tiles.
//
// kern_moe_plan:  place[row, i] = position of that pick among all local picks, by expert then row;
//   -1 when the expert is another rank's; first[e] = position of expert e's first pick;
//   row_of[position] = row; tiles = (expert, first position, picks) of the equal parts, multiples
//   of 8 but for the last, into which an expert's picks are cut so that none has more than
//   tile_rows, by expert, tile_count of them in i32 [rows, top_k] ids; out i32 [experts + 1] first;
//   out i32 [rows, top_k] place; out i32 [rows, top_k] row_of; out i32 [rows, top_k, 3] tiles; out
//   i32 [1] tile_count; i32 experts, top_k, rank, rows, tile_rows (a multiple of 8)
//
// The host's launch has no row_of, tiles, tile_count and tile_rows: there a block is an expert's.
// grid: [8, 1, 1]. cluster: [8, 1, 1]. block: [1024, 1, 1]. shared: (experts * 34 + 2) * 4.
// experts is at most 1,024. Integers alone: bytes are the host module's.

#include "ptx/cluster.cuh"
#include "ptx/turn.cuh"

using namespace kern;

namespace {

constexpr int kBlocks = 8, kThreads = 1024, kWarps = kThreads / 32;
constexpr int kAtOnce = 4;  // picks a lane asks for before it uses the first
constexpr uint32_t kAll = 0xFFFFFFFFU;

/// Exclusive sums over the block of two counts a thread, and the totals. Three barriers.
__device__ __forceinline__ void scan(int& a, int& b, int& a_total, int& b_total) {
  __shared__ int warp_a[kWarps], warp_b[kWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int run_a = a, run_b = b;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int from_a = __shfl_up_sync(kAll, run_a, distance);
    const int from_b = __shfl_up_sync(kAll, run_b, distance);
    if (lane >= distance) run_a += from_a, run_b += from_b;
  }
  if (lane == 31) warp_a[warp] = run_a, warp_b[warp] = run_b;
  __syncthreads();
  int before_a = 0, before_b = 0;
  a_total = b_total = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w == warp) before_a = a_total, before_b = b_total;
    a_total += warp_a[w], b_total += warp_b[w];
  }
  a = before_a + run_a - a, b = before_b + run_b - b;
  __syncthreads();
}

}  // namespace

extern "C" __global__ void __cluster_dims__(kBlocks, 1, 1) __launch_bounds__(kThreads, 1)
    kern_moe_plan(const int32_t* ids, int32_t* first, int32_t* place, int32_t* row_of,
                  int32_t* tiles, int32_t* tile_count, int experts, int top_k, int rank, int rows,
                  int tile_rows) {
  take_turn();
  extern __shared__ int32_t shared[];
  const int lane = threadIdx.x % 32, warp = __shfl_sync(kAll, threadIdx.x / 32, 0);
  const int block = static_cast<int>(cluster_rank());
  int32_t* counts = shared + warp * experts;   // this warp's picks of each expert
  int32_t* total = shared + kWarps * experts;  // this block's
  int32_t* base = total + experts;             // position of this block's first pick of it
  const int64_t picks = int64_t{rows} * top_k;
  const int64_t share = (picks + kBlocks * kThreads - 1) / (kBlocks * kThreads) * 32;
  const int64_t begin = (int64_t{block} * kWarps + warp) * share;
  const int64_t end = begin + share < picks ? begin + share : picks;
  const auto local = [&](int64_t pick) {
    const int e = pick < end ? ids[pick] - rank * experts : -1;
    return e >= 0 && e < experts ? e : -1;
  };

  // ---- how many picks of each expert: a warp, a block ----
  for (int i = threadIdx.x; i < kWarps * experts; i += kThreads) shared[i] = 0;
  __syncthreads();
  for (int64_t pick = begin + lane; pick < end; pick += 32 * kAtOnce) {
    int own[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) own[i] = local(pick + 32 * i);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (own[i] >= 0) atomicAdd(&counts[own[i]], 1);
  }
  __syncthreads();
  for (int e = threadIdx.x; e < experts; e += kThreads) {
    int run = 0;
    for (int w = 0; w < kWarps; ++w) {
      const int here = shared[w * experts + e];
      shared[w * experts + e] = run;
      run += here;
    }
    total[e] = run;
  }
  cluster_sync();

  // ---- where each expert begins, and where this block's picks of it do ----
  const int e = threadIdx.x;
  int before = 0, all = 0;
  if (e < experts)
    for (int b = 0; b < kBlocks; ++b) {
      if (b == block) before = all;
      all += static_cast<int>(read_u32(in_block(&total[e], b)));
    }
  cluster_sync();  // no block may end, or go on writing, while another reads
  const int wanted = (all + tile_rows - 1) / tile_rows;
  const int piece = wanted > 0 ? ((all + wanted - 1) / wanted + 7) / 8 * 8 : 8;
  int at = all, tile = (all + piece - 1) / piece, at_total, tile_total;
  scan(at, tile, at_total, tile_total);
  if (e < experts) {
    base[e] = at + before;
    if (block == 0) {
      first[e] = at;
      for (int from = 0; from < all; from += piece, ++tile) {
        tiles[3 * tile] = e;
        tiles[3 * tile + 1] = at + from;
        tiles[3 * tile + 2] = min(piece, all - from);
      }
    }
  }
  if (block == 0 && e == 0) {
    first[experts] = at_total;
    *tile_count = tile_total;
  }
  __syncthreads();

  // ---- every pick its place, in order ----
  for (int64_t from = begin; from < end; from += 32 * kAtOnce) {
    int own[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) own[i] = local(from + 32 * i + lane);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (from + 32 * i >= end) break;
      const int64_t pick = from + 32 * i + lane;
      const int expert = own[i];
      const uint32_t alike = __match_any_sync(kAll, expert);
      if (expert >= 0) {
        const int position = base[expert] + counts[expert] + __popc(alike & ((1U << lane) - 1));
        place[pick] = position;
        row_of[position] = static_cast<int32_t>(static_cast<uint32_t>(pick) / top_k);
      } else if (pick < end) {
        place[pick] = -1;
      }
      __syncwarp();
      if (expert >= 0 && __ffs(alike) - 1 == lane) counts[expert] += __popc(alike);
      __syncwarp();
    }
  }
}
