// The two ends of the routed experts.
//
// kern_moe_interleave:  x = z with every 8 columns in the order 0 4 1 5 2 6 3 7, as the experts'
//   products read them
//   in bf16 [rows, width] z; out bf16 [rows, width] x; i32 width, rows
// kern_moe_combine:     partial[row] = sum over local picks, in ascending expert order, of weight *
// y
//   in bf16 [rows, top_k, width] y; in i32 [rows, top_k] place; in f32 [rows, top_k] weights; out
//   f32 [rows, stride] partial (its own first `width` columns); i32 width, top_k, stride, rows
//
// kern_moe_interleave stands where the host gathers rows by expert: the products find a pick's row
// through row_of instead.
// grid: [rows, 1, 1] or fewer, the rows are dealt over it. block: [any multiple of 32, 1, 1].
// shared: 0. width and stride are multiples of 8, top_k is at most 64.
// Rounding points: products and sums f32, each rounded, as the host module's: equal bytes for equal
// y.

#include "common/numeric.cuh"
#include "ptx/memory.cuh"
#include "ptx/turn.cuh"

using namespace kern;

extern "C" __global__ void __launch_bounds__(1024)
    kern_moe_interleave(const bf16* z, bf16* x, int width, int rows) {
  take_turn();
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x)
    for (int column = threadIdx.x * 8; column < width; column += blockDim.x * 8) {
      const uint4 in = load_once(z + row * width + column);
      store(x + row * width + column,
            {__byte_perm(in.x, in.z, 0x5410), __byte_perm(in.x, in.z, 0x7632),
             __byte_perm(in.y, in.w, 0x5410), __byte_perm(in.y, in.w, 0x7632)});
    }
}

extern "C" __global__ void __launch_bounds__(512)
    kern_moe_combine(const bf16* y, const int32_t* place, const float* weights, float* partial,
                     int width, int top_k, int stride, int rows) {
  take_turn();
  constexpr int kAtOnce = 4;
  constexpr uint32_t kAll = 0xFFFFFFFFU;
  const int lane = threadIdx.x % 32;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    // a lane holds a pick or two, and the warp walks the local ones
    int from[2];
    float weight[2];
    uint32_t local[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int pick = half * 32 + lane;
      from[half] = pick < top_k ? __ldg(place + row * top_k + pick) : -1;
      weight[half] = pick < top_k ? __ldg(weights + row * top_k + pick) : 0.0F;
      local[half] = __ballot_sync(kAll, from[half] >= 0);
    }
    for (int base = 0; base < width; base += blockDim.x * 8) {
      const int column = base + threadIdx.x * 8;
      float sum[8] = {};
#pragma unroll
      for (int half = 0; half < 2; ++half)
        for (uint32_t left = local[half]; left != 0;) {
          uint4 value[kAtOnce];
          float share[kAtOnce];
          bool present[kAtOnce];
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) {
            const int source = left != 0 ? __ffs(left) - 1 : 0;
            present[i] = left != 0;
            left &= left - 1;
            share[i] = __shfl_sync(kAll, weight[half], source);
            const int64_t at = __shfl_sync(kAll, from[half], source);
            if (present[i] && column < width) value[i] = load_once(y + at * width + column);
          }
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) {
            if (!present[i]) break;
            float term[8];
            unpack8(value[i], term);
#pragma unroll
            for (int c = 0; c < 8; ++c) sum[c] = __fadd_rn(sum[c], __fmul_rn(share[i], term[c]));
          }
        }
      if (column < width) {
        float* to = partial + row * stride + column;
        *reinterpret_cast<float4*>(to) = {sum[0], sum[1], sum[2], sum[3]};
        *reinterpret_cast<float4*>(to + 4) = {sum[4], sum[5], sum[6], sum[7]};
      }
    }
  }
}
