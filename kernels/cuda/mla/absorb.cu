// Queries carried into latent space.
//
// kern_mla_absorb, per row and head, W_UK = kv_b rows head * (nope + v) … + nope:
//   q_abs = ( bf(sum_d q_n[d] W_UK[d]) | q_r )
// params:
//   in bf16 [rows, heads * (nope + rope)] q (per head q_n | q_r);
//   in bf16 [heads * (nope + v), kv_lora] kv_b; out bf16 [rows, heads, kv_lora + rope] q_abs;
//   i32 heads, nope, rope, v, kv_lora, rows
// grid: [heads, ceil_div(rows, 256), kv_lora / min(kv_lora, 128)]; block: [256, 1, 1];
// cluster: none; shared: 256 max(nope, c) + 2 nope c with c = min(kv_lora, 128).
// Rounding points: the sum over d runs in f32 in the tensor cores, 16 at a time in ascending order,
// and rounds once.
// Defines: MLA_LORA, MLA_ROPE, MLA_NOPE, MLA_V: the only sizes of the variant.
// build: that of kernels/README.md

#include "common/numeric.cuh"
#include "mla/cache.cuh"
#include "mma/tile.cuh"
#include "ptx/async.cuh"
#include "ptx/turn.cuh"

using namespace kern;
using namespace kern::mla;

namespace {

constexpr int kThreads = 256, kRows = 64, kSpan = 256, kCols = kLora < 128 ? kLora : 128;
constexpr int kAChunks = kNope / 8, kBChunks = kCols / 8, kTiles = kCols / 32;  // n8 tiles a warp
constexpr int kBuffer = kRows * (kNope > kCols ? kNope : kCols) * 2;  // queries, then their result

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, 3)
    kern_mla_absorb(const bf16* q, const bf16* kv_b, bf16* q_abs, int heads, int nope, int rope,
                    int v, int kv_lora, int rows) {
  extern __shared__ __align__(128) unsigned char shared[];
  const uint32_t buffers = shared_address(shared), b = buffers + 2 * kBuffer;
  const int head = blockIdx.x, column = blockIdx.z * kCols;
  const int first = blockIdx.y * kSpan, last = min(first + kSpan, rows);
  const int64_t row_stride = int64_t{heads} * (kNope + kRope), to_stride = int64_t{heads} * kWidth;
  const bf16* from = q + int64_t{head} * (kNope + kRope);
  bf16* to = q_abs + int64_t{head} * kWidth;
  const auto fetch = [&](int base, int buffer) {
    const uint32_t a = buffers + buffer * kBuffer;
    for (int i = threadIdx.x; i < kRows * kAChunks; i += kThreads) {
      const int row = base + i / kAChunks, chunk = i % kAChunks;
      const bool valid = row < last;
      copy16(a + tile_at<kAChunks>(i / kAChunks, chunk),
             from + (valid ? row : 0) * row_stride + chunk * 8, valid);
    }
    copies_commit();
  };

  // ---- W_UK's columns stay, the rows pass ----
  let_next_start();
  const bf16* w = kv_b + int64_t{head} * (kNope + kV) * kLora + column;
  for (int i = threadIdx.x; i < kNope * kBChunks; i += kThreads) {
    const int d = i / kBChunks, chunk = i % kBChunks;
    copy16(b + tile_at<kBChunks>(d, chunk), w + int64_t{d} * kLora + chunk * 8);
  }
  wait_for_earlier();
  fetch(first, 0);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int m = warp / 4 * 32, n = warp % 4 * (kCols / 4);  // of 32 rows x kCols / 4 columns
  for (int base = first, buffer = 0; base < last; base += kRows, buffer ^= 1) {
    const uint32_t a = buffers + buffer * kBuffer;
    if (base + kRows < last) {
      fetch(base + kRows, buffer ^ 1);
      copies_wait<1>();
    } else {
      copies_wait<0>();
    }
    __syncthreads();
    float sums[2][kTiles][4] = {};
#pragma unroll
    for (int k = 0; k < kNope; k += 16) {
      Quad left[2];
#pragma unroll
      for (int i = 0; i < 2; ++i)
        left[i] = load_matrix(a + tile_at<kAChunks>(m + 16 * i + lane % 16, k / 8 + lane / 16));
#pragma unroll
      for (int j = 0; j < kTiles; j += 2) {
        const Quad right =
            load_matrix_trans(b + tile_at<kBChunks>(k + lane % 16, n / 8 + j + lane / 16));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          mma(sums[i][j], left[i], right.r[0], right.r[1]);
          mma(sums[i][j + 1], left[i], right.r[2], right.r[3]);
        }
      }
    }

    // ---- through shared memory, so that stores are whole lines ----
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < kTiles; ++j)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          store_shared(
              a + tile_at<kBChunks>(m + 16 * i + 8 * half + lane / 4, n / 8 + j) + lane % 4 * 4,
              to_bf16_pair(sums[i][j][2 * half], sums[i][j][2 * half + 1]));
    __syncthreads();
    const int count = min(kRows, last - base);
    for (int i = threadIdx.x; i < count * kBChunks; i += kThreads) {
      const int row = i / kBChunks, chunk = i % kBChunks;
      *reinterpret_cast<uint4*>(to + (base + row) * to_stride + column + chunk * 8) =
          *reinterpret_cast<const uint4*>(shared + buffer * kBuffer +
                                          tile_at<kBChunks>(row, chunk));
    }
    if (column == 0)
      for (int i = threadIdx.x; i < count * (kRope / 8); i += kThreads) {
        const int row = base + i / (kRope / 8), chunk = i % (kRope / 8);
        *reinterpret_cast<uint4*>(to + row * to_stride + kLora + chunk * 8) =
            *reinterpret_cast<const uint4*>(from + row * row_stride + kNope + chunk * 8);
      }
    __syncthreads();
  }
}
