// RMS norms of rows.
//
// kern_rms:       out = bf(w * bf(x * s)),  s = (mean(x^2) + eps)^-1/2 in f32
//   in bf16 [rows, width] x; in bf16 [width] w; out bf16 [rows, width]; f32 eps; i32 width, rows
// kern_land_rms:  the same on x = bf(partial), the first `width` columns of an f32 [rows, stride]
//   in f32 partial; in bf16 [width] w; out bf16 [rows, width]; f32 eps; i32 stride, width, rows
//
// grid: [rows, 1, 1] or fewer, the rows are dealt over it. block: [ceil(width / 32 / 32) * 32, 1,
// 1] or more, at most 1024. shared: 0. width and stride are multiples of 8, width at most 32,768.
// Rounding points: bf(x * s), then bf of the product with w. kern_land_rms rounds the sum first.
// A row depends on its own row and the block size alone: the sum runs per thread, then by warps.

#include "common/numeric.cuh"
#include "common/reduce.cuh"
#include "ptx/memory.cuh"
#include "ptx/turn.cuh"

using namespace kern;

namespace {

constexpr int kVectors = 4;  // of 8 elements, a thread

/// Where thread `threadIdx.x` holds its `v`-th vector; past the row's end it holds none.
__device__ __forceinline__ int element(int v) {
  return (v * blockDim.x + threadIdx.x) * 8;
}

/// The norm of the row that the block's registers hold.
__device__ __forceinline__ void norm(const uint4 (&x)[kVectors], const bf16* weight, bf16* out,
                                     float eps, int width, float* shared) {
  float sum[1] = {0};
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (element(v) >= width) break;
    float value[8];
    unpack8(x[v], value);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[0] = fmaf(value[i], value[i], sum[0]);
  }
  block_sum(sum, shared);
  const float scale = inverse_rms(sum[0], width, eps);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (element(v) >= width) break;
    float value[8], w[8];
    unpack8(x[v], value);
    unpack8(load_shared(weight + element(v)), w);
#pragma unroll
    for (int i = 0; i < 8; ++i) value[i] = w[i] * through_bf16(value[i] * scale);
    store(out + element(v), pack8(value));
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(1024)
    kern_rms(const bf16* x, const bf16* weight, bf16* out, float eps, int width, int rows) {
  take_turn();
  __shared__ float shared[2][32];
  int turn = 0;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x, turn ^= 1) {
    uint4 held[kVectors];
#pragma unroll
    for (int v = 0; v < kVectors; ++v)
      if (element(v) < width) held[v] = load_once(x + row * width + element(v));
    norm(held, weight, out + row * width, eps, width, shared[turn]);
  }
}

extern "C" __global__ void __launch_bounds__(1024)
    kern_land_rms(const float* partial, const bf16* weight, bf16* out, float eps, int stride,
                  int width, int rows) {
  take_turn();
  __shared__ float shared[2][32];
  int turn = 0;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x, turn ^= 1) {
    uint4 held[kVectors];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (element(v) >= width) break;
      const float* from = partial + row * stride + element(v);
      const uint4 low = load_once(from), high = load_once(from + 4);
      const float value[8] = {__uint_as_float(low.x),  __uint_as_float(low.y),
                              __uint_as_float(low.z),  __uint_as_float(low.w),
                              __uint_as_float(high.x), __uint_as_float(high.y),
                              __uint_as_float(high.z), __uint_as_float(high.w)};
      held[v] = pack8(value);
    }
    norm(held, weight, out + row * width, eps, width, shared[turn]);
  }
}
