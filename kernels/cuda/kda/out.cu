// KDA's output norm and gate.
//
// kern_kda_out, per row and head:
//   scale = (mean_d(o^2) + eps)^-1/2
//   y[d] = bf( o[d] * scale * o_norm[d] * sigmoid(z[head * dim + d]) )
// params:
//   in f32 [rows, heads * dim] o; in bf16 [rows, x_stride] x (z from column z_column);
//   in f32 [dim] o_norm; out bf16 [rows, heads * dim] y;
//   i32 heads, dim, x_stride, z_column; f32 eps; i32 rows
// grid: [rows, ceil_div(heads, 8), 1]; block: [256, 1, 1]; cluster: none; shared: 0.
// Rounding points: f32 inside, one rounding.
// Defines: KDA_DIM: the only dim of the variant.
// build: that of kernels/README.md

#include "kda/line.cuh"

using namespace kern;
using namespace kern::kda;

namespace {

constexpr int kEach = kDim / 32;  // consecutive channels a lane
static_assert(kEach == 1 || kEach == 4, "a lane reads one channel, or four at once");

__device__ __forceinline__ void read(float (&to)[kEach], const float* from) {
  if constexpr (kEach == 4) {
    const float4 all = *reinterpret_cast<const float4*>(from);
    to[0] = all.x, to[1] = all.y, to[2] = all.z, to[3] = all.w;
  } else {
    to[0] = *from;
  }
}
__device__ __forceinline__ void read(float (&to)[kEach], const bf16* from, bool aligned) {
  if constexpr (kEach == 4) {
    if (aligned) {
      const uint2 all = *reinterpret_cast<const uint2*>(from);
      to[0] = low_f32(all.x), to[1] = high_f32(all.x);
      to[2] = low_f32(all.y), to[3] = high_f32(all.y);
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) to[i] = to_f32(from[i]);
}
__device__ __forceinline__ void write(bf16* to, const float (&from)[kEach]) {
  if constexpr (kEach == 4)
    *reinterpret_cast<uint2*>(to) = {to_bf16_pair(from[0], from[1]),
                                     to_bf16_pair(from[2], from[3])};
  else
    *to = to_bf16(from[0]);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(256)
    kern_kda_out(const float* o, const bf16* x, const float* o_norm, bf16* y, int heads, int dim,
                 int x_stride, int z_column, float eps, int rows) {
  const int64_t row = blockIdx.x;
  const int head = blockIdx.y * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (head >= heads) return;
  const int64_t at = (row * heads + head) * kDim + lane * kEach;
  const bf16* from = x + row * x_stride + z_column + head * kDim + lane * kEach;
  float value[kEach], weight[kEach], z[kEach];
  read(z, from, (x_stride | z_column) % 4 == 0);
  read(value, o + at);
  read(weight, o_norm + lane * kEach);
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) squares = fmaf(value[i], value[i], squares);
  const float scale = rsqrtf(warp_sum(squares) / kDim + eps);
#pragma unroll
  for (int i = 0; i < kEach; ++i) value[i] *= scale * weight[i] * fast::sigmoid(z[i]);
  write(y + at, value);
}
