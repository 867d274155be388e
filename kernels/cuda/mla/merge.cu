// The parts of all ranks merged, carried out of latent space, and gated.
//
// kern_mla_merge, per row and own head, parts r in rank order, W_UV = kv_b rows
// head * (nope + v) + nope … + v:
//   M = max_r m_r;  w_r = exp(m_r - M);  o_c = bf( (sum_r w_r acc_r) / (sum_r w_r l_r) )
//   o = bf(W_UV o_c);  y = bf( o * bf(sigmoid(z)) )
// params:
//   in f32 [ranks, heads, rows, kv_lora + 2] parts; in bf16 kv_b (all heads);
//   in bf16 [rows, x_stride] x (z from column z_column); out bf16 [rows, heads * v] y;
//   i32 heads (own), nope, v, kv_lora, x_stride, z_column, rank, ranks, rows
// grid: [heads, ceil_div(rows, MLA_ROWS), 1], z = 2 where MLA_ROWS is 16 and v above 64;
// block: [256, 1, 1]; cluster: none; shared: MLA_ROWS * kv_lora * 2 + 128 * s * (v / z), where s
// is kv_lora / 64, at most 3 where MLA_ROWS is 64.
// Rounding points: latent output, v output, sigmoid and product each round to bf16; the division is
// a product with the rounded reciprocal. A part without positions (l = 0) takes no part.
// ranks is at most 32.
// Defines: MLA_LORA, MLA_NOPE, MLA_V: the only sizes of the variant; MLA_ROWS, rows of a block: 16
// or 64, of no influence on the result.
// build: that of kernels/README.md

#include "common/numeric.cuh"
#include "mla/cache.cuh"
#include "mma/tile.cuh"
#include "ptx/async.cuh"
#include "ptx/turn.cuh"

using namespace kern;
using namespace kern::mla;

#ifndef MLA_ROWS
#define MLA_ROWS 16
#endif

namespace kern::mla {

/// Maximum and total of the lane's rank. Its constant stays in the module under its name, so the
/// namespace has one: an unnamed one's would tell the folder of the build.
__device__ __forceinline__ float2 end_of(const float* parts, int64_t rank_stride, int ranks) {
  const int lane = threadIdx.x % 32;
  if (lane >= ranks) return {kNone, 0};
  return *reinterpret_cast<const float2*>(parts + lane * rank_stride + kLora);
}

}  // namespace kern::mla

namespace {

constexpr int kThreads = 256, kRows = MLA_ROWS, kChunks = kLora / 8;
constexpr int kVBlock = kRows == 16 && kV > 64 ? kV / 2 : kV;  // columns of a block
constexpr int kStep = 64, kSteps = kLora / kStep;              // of the sum over the latent
constexpr int kStages = kRows == 16 ? kSteps : kSteps < 3 ? kSteps : 3;  // W_UV under way
constexpr int kStage = kVBlock * kStep * 2;
constexpr int kWarpsM = kRows / 16, kWarpsN = 8 / kWarpsM;
constexpr int kCols = kVBlock / kWarpsN < 8 ? 8 : kVBlock / kWarpsN, kTiles = kCols / 8;
static_assert(kRows == 16 || kRows == 64);

/// The parts of kAhead ranks at one row, a lane's columns: asked for together.
constexpr int kAhead = kRows == 16 ? 2 : 1;
struct Parts {
  float2 value[kAhead][kLora / 64];

  __device__ __forceinline__ void load(const float* parts, int64_t rank_stride, int first,
                                       int ranks) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int a = 0; a < kAhead; ++a)
#pragma unroll
      for (int i = 0; i < kLora / 64; ++i)
        value[a][i] = first + a < ranks ? *reinterpret_cast<const float2*>(
                                              parts + (first + a) * rank_stride + 64 * i + 2 * lane)
                                        : float2{0, 0};
  }
};

/// One row's parts merged and rounded, by one warp. `first`: those of the first ranks.
__device__ __forceinline__ void merge_row(const float* parts, int64_t rank_stride, int ranks,
                                          Parts first, float2 end, uint32_t tile, int row) {
  const int lane = threadIdx.x % 32;
  float2 sums[kLora / 64] = {};
  float most = end.y != 0 ? end.x : kNone;
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFF, most, step));
  const float own = fast::exp_f32(end.x - most);
  float total = 0;
  for (int base = 0; base < ranks; base += kAhead) {
    if (base > 0) first.load(parts, rank_stride, base, ranks);
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      if (base + a >= ranks) break;
      const float weight = __shfl_sync(0xFFFFFFFF, own, base + a);
      const float count = __shfl_sync(0xFFFFFFFF, end.y, base + a);
      if (count == 0) continue;
      total += weight * count;
#pragma unroll
      for (int i = 0; i < kLora / 64; ++i) {
        sums[i].x += weight * first.value[a][i].x;
        sums[i].y += weight * first.value[a][i].y;
      }
    }
  }
  const float scale = 1.0F / total;
#pragma unroll
  for (int i = 0; i < kLora / 64; ++i)
    store_shared(tile + tile_at<kChunks>(row, 8 * i + lane / 4) + lane % 4 * 4,
                 to_bf16_pair(sums[i].x * scale, sums[i].y * scale));
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, 2)
    kern_mla_merge(const float* parts, const bf16* kv_b, const bf16* x, bf16* y, int heads,
                   int nope, int v, int kv_lora, int x_stride, int z_column, int rank, int ranks,
                   int rows) {
  extern __shared__ __align__(128) unsigned char shared[];
  const uint32_t a = shared_address(shared), b = a + kRows * kLora * 2;
  const int head = blockIdx.x, first = blockIdx.y * kRows, count = min(kRows, rows - first);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int v_from = blockIdx.z * kVBlock;
  const bf16* w = kv_b + ((int64_t{rank} * heads + head) * (kNope + kV) + kNope + v_from) * kLora;

  const auto fetch = [&](int step) {  // kVBlock rows x kStep columns of W_UV
    const uint32_t to = b + step % kStages * kStage;
    for (int i = threadIdx.x; step < kSteps && i < kVBlock * kStep / 8; i += kThreads) {
      const int row = i / (kStep / 8), chunk = i % (kStep / 8);
      copy16(to + tile_at<kStep / 8>(row, chunk),
             w + int64_t{row} * kLora + step * kStep + chunk * 8);
    }
    copies_commit();
  };
  let_next_start();
#pragma unroll
  for (int step = 0; step < kStages; ++step) fetch(step);
  wait_for_earlier();

  // ---- the parts ----
  const int64_t rank_stride = int64_t{heads} * rows * kPart;
  const float* own = parts + (int64_t{head} * rows + first) * kPart;
  Parts next;
  float2 end = {kNone, 0};
  if (warp < count) {
    next.load(own + warp * kPart, rank_stride, 0, ranks);
    end = end_of(own + warp * kPart, rank_stride, ranks);
  }
  for (int row = warp; row < kRows; row += 8) {
    if (row < count) {
      const Parts now = next;
      const float2 end_now = end;
      if (row + 8 < count) {
        next.load(own + (row + 8) * kPart, rank_stride, 0, ranks);
        end = end_of(own + (row + 8) * kPart, rank_stride, ranks);
      }
      merge_row(own + row * kPart, rank_stride, ranks, now, end_now, a, row);
    } else {
      for (int i = lane; i < kChunks; i += 32)
        *reinterpret_cast<uint4*>(shared + tile_at<kChunks>(row, i)) = {};
    }
  }

  // ---- out of latent space ----
  const int m = warp / kWarpsN * 16, n = warp % kWarpsN * kCols;
  float sums[kTiles][4] = {};
  for (int step = 0; step < kSteps; ++step) {
    copies_wait<kStages - 1>();
    __syncthreads();
    const uint32_t from = b + step % kStages * kStage;
#pragma unroll
    for (int k = 0; k < kStep && n < kVBlock; k += 16) {
      const Quad left =
          load_matrix(a + tile_at<kChunks>(m + lane % 16, (step * kStep + k) / 8 + lane / 16));
#pragma unroll
      for (int j = 0; j < kTiles; j += 2) {
        // rows n … + 15 (two tiles), both halves of k; a lone tile reads its rows twice
        const int row = n + j * 8 + (kTiles > 1 ? lane / 16 * 8 : 0) + lane % 8;
        const Quad right = load_matrix(from + tile_at<kStep / 8>(row, k / 8 + lane / 8 % 2));
        mma(sums[j], left, right.r[0], right.r[1]);
        if (kTiles > 1) mma(sums[j + 1], left, right.r[2], right.r[3]);
      }
    }
    if (kStages < kSteps) {
      __syncthreads();
      fetch(step + kStages);
    } else {
      copies_commit();
    }
  }

  // ---- the gate ----
#pragma unroll
  for (int j = 0; j < kTiles; ++j)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = m + 8 * half + lane / 4, column = n + 8 * j + lane % 4 * 2;
      if (row >= count || column >= kVBlock) continue;
      const bf16* z = x + int64_t{first + row} * x_stride + z_column + head * kV + v_from + column;
      const uint32_t gate = *reinterpret_cast<const uint32_t*>(z);
      const uint32_t o = to_bf16_pair(sums[j][2 * half], sums[j][2 * half + 1]);
      *reinterpret_cast<uint32_t*>(y + int64_t{first + row} * heads * kV + head * kV + v_from +
                                   column) =
          to_bf16_pair(low_f32(o) * through_bf16(fast::sigmoid(low_f32(gate))),
                       high_f32(o) * through_bf16(fast::sigmoid(high_f32(gate))));
    }
}
