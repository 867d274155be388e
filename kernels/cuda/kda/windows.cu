// The convolution windows after a call.
//
// kern_kda_windows: each window becomes the last taps - 1 inputs of (window, the call's rows)
//   in bf16 [rows, x_stride] x (columns q | k | v first); inout state; in i32 [seqs] lines;
//   in i32 cu_seqlens; i32 heads, dim, taps, x_stride
// kern_kda_windows_snapshot: also writes the windows at the last multiple of `boundary` positions
//   inside the call to line snapshot[seq] unless that is 0; after x_stride come
//   in i32 [seqs] snapshot, seq_len; i32 boundary
// grid: [seqs, heads, 1]; block: [dim, 1, 1]; cluster: none; shared: 0.
// Rounding points: none; values are copied.
// Defines: KDA_DIM, KDA_TAPS: the only dim and taps of the variant.
// build: that of kernels/README.md

#include "kda/line.cuh"

using namespace kern;
using namespace kern::kda;

namespace {

__device__ void write(const bf16* x, int64_t x_stride, unsigned char* state, const Line& line,
                      int from, int to, int64_t first, int rows) {
  const int64_t inner = line.inner(), c = int64_t{blockIdx.y} * kDim + threadIdx.x;
#pragma unroll
  for (int stream = 0; stream < 3; ++stream) {
    const bf16* old = line.window(state, from, stream) + c;
    bf16 kept[kKept];
#pragma unroll
    for (int tap = 0; tap < kKept; ++tap) {
      const int at = rows - kKept + tap;  // row of the call; negative: still in the window
      kept[tap] =
          at >= 0 ? x[(first + at) * x_stride + stream * inner + c] : old[(kKept + at) * inner];
    }
    bf16* fresh = line.window(state, to, stream) + c;
#pragma unroll
    for (int tap = 0; tap < kKept; ++tap) fresh[tap * inner] = kept[tap];
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kDim)
    kern_kda_windows(const bf16* x, unsigned char* state, const int32_t* lines,
                     const int32_t* cu_seqlens, int heads, int dim, int taps, int x_stride) {
  const int seq = blockIdx.x, first = cu_seqlens[seq], rows = cu_seqlens[seq + 1] - first;
  write(x, x_stride, state, {heads}, lines[seq], lines[seq], first, rows);
}

extern "C" __global__ void __launch_bounds__(kDim)
    kern_kda_windows_snapshot(const bf16* x, unsigned char* state, const int32_t* lines,
                              const int32_t* cu_seqlens, int heads, int dim, int taps, int x_stride,
                              const int32_t* snapshot, const int32_t* seq_len, int boundary) {
  const int seq = blockIdx.x, first = cu_seqlens[seq], rows = cu_seqlens[seq + 1] - first;
  if (snapshot[seq] != 0) {
    const int inside = rows_to_boundary(seq_len[seq], rows, boundary);
    if (inside > 0) write(x, x_stride, state, {heads}, lines[seq], snapshot[seq], first, inside);
  }
  write(x, x_stride, state, {heads}, lines[seq], lines[seq], first, rows);
}
