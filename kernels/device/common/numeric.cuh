#pragma once
/// Numbers of the device kernels. Two sets of elementary functions: those that give the host
/// modules' very bits (IEEE operations only, never contracted: for what decides, such as routing),
/// and fast ones within 2^-17 (for what is rounded to bf16 next).
/// Determinism: a result depends on the arguments alone.

#include <stdint.h>

namespace kern {

/// Raw bf16 bits, as on the host.
using bf16 = uint16_t;

__device__ __forceinline__ float to_f32(bf16 value) {
  return __uint_as_float(uint32_t{value} << 16);
}

/// Nearest even; a NaN stays a NaN. `low` is the pair's first element in memory.
__device__ __forceinline__ uint32_t to_bf16_pair(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ __forceinline__ bf16 to_bf16(float value) {
  uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
__device__ __forceinline__ float through_bf16(float value) {
  return to_f32(to_bf16(value));
}

__device__ __forceinline__ float low_f32(uint32_t pair) {
  return __uint_as_float(pair << 16);
}
__device__ __forceinline__ float high_f32(uint32_t pair) {
  return __uint_as_float(pair & 0xFFFF0000U);
}

/// Eight bf16 of 16 bytes as f32, and back.
__device__ __forceinline__ void unpack8(const uint4& raw, float (&value)[8]) {
  const uint32_t pairs[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    value[2 * i] = low_f32(pairs[i]);
    value[2 * i + 1] = high_f32(pairs[i]);
  }
}
__device__ __forceinline__ uint4 pack8(const float (&value)[8]) {
  return {to_bf16_pair(value[0], value[1]), to_bf16_pair(value[2], value[3]),
          to_bf16_pair(value[4], value[5]), to_bf16_pair(value[6], value[7])};
}

/// 1 / sqrt(sum / n + eps): the scale of an RMS norm.
__device__ __forceinline__ float inverse_rms(float sum_of_squares, int n, float eps) {
  return __frcp_rn(__fsqrt_rn(__fdiv_rn(sum_of_squares, static_cast<float>(n)) + eps));
}

// ---- the host's bits ----

namespace twin {

/// x = n ln 2 + r, |r| <= ln 2 / 2. For |x| < 2^21.
struct Reduced {
  float r;
  uint32_t n;
};
__device__ __forceinline__ Reduced reduce(float x) {
  constexpr float kLog2E = 1.44269504F;
  constexpr float kLn2High = 0.693359375F;
  constexpr float kLn2Low = -2.12194440e-4F;
  constexpr float kRoundToInteger = 12582912.0F;
  const float shifted = __fadd_rn(__fmul_rn(x, kLog2E), kRoundToInteger);
  const float whole = __fsub_rn(shifted, kRoundToInteger);
  return {__fsub_rn(__fsub_rn(x, __fmul_rn(whole, kLn2High)), __fmul_rn(whole, kLn2Low)),
          __float_as_uint(shifted) - __float_as_uint(kRoundToInteger)};
}
__device__ __forceinline__ float expm1_reduced(float r) {
  float p = 1.0F / 5040;
  p = __fadd_rn(__fmul_rn(p, r), 1.0F / 720);
  p = __fadd_rn(__fmul_rn(p, r), 1.0F / 120);
  p = __fadd_rn(__fmul_rn(p, r), 1.0F / 24);
  p = __fadd_rn(__fmul_rn(p, r), 1.0F / 6);
  p = __fadd_rn(__fmul_rn(p, r), 0.5F);
  return __fadd_rn(__fmul_rn(__fmul_rn(p, r), r), r);
}
__device__ __forceinline__ float power_of_two(uint32_t n) {
  return __uint_as_float((n + 127) << 23);
}

/// e^x within 2 ulp; 0 below -87.3, infinity above 88.3, NaN for NaN.
__device__ __forceinline__ float exp_f32(float x) {
  const Reduced at = reduce(x);
  const float value = __fmul_rn(__fadd_rn(expm1_reduced(at.r), 1.0F), power_of_two(at.n));
  const float high = x > 88.3F ? __uint_as_float(0x7F800000U) : value;
  return x < -87.3F ? 0.0F : high;
}
__device__ __forceinline__ float sigmoid(float x) {
  return __frcp_rn(__fadd_rn(1.0F, exp_f32(-x)));
}

}  // namespace twin

// ---- fast ----

namespace fast {

__device__ __forceinline__ float exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// e^x; relative error |x| 2^-24, which is what rounding x log2 e costs.
__device__ __forceinline__ float exp_f32(float x) {
  return exp2(x * 1.44269504F);
}

__device__ __forceinline__ float sigmoid(float x) {
  return reciprocal(1.0F + exp_f32(-x));
}

/// tanh x = above / below within 2^-20, small arguments included.
struct Ratio {
  float above, below;
};
__device__ __forceinline__ Ratio tanh_ratio(float x) {
  const float size = fabsf(x);
  const float e = exp_f32(2 * (size > 10.0F ? 10.0F : size));
  const bool is_small = size < 0.05F;
  const float cubic = fmaf(x * x * x, -1.0F / 3, x);
  return {is_small ? cubic : copysignf(e - 1.0F, x), is_small ? 1.0F : e + 1.0F};
}

/// beta tanh(g / beta) sigmoid(g) * linear tanh(u / linear), given 1 / beta, 1 / linear and
/// beta * linear.
__device__ __forceinline__ float situ(float gate, float up, float per_beta, float per_linear_beta,
                                      float betas) {
  const Ratio g = tanh_ratio(gate * per_beta), u = tanh_ratio(up * per_linear_beta);
  const float both = (g.above * u.above) * reciprocal(g.below * u.below);
  return (betas * both) * sigmoid(gate);
}

}  // namespace fast

}  // namespace kern
