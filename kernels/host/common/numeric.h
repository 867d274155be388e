#pragma once
/// Numbers of the host kernels: bf16, sums in a fixed order, and elementary functions that give the
/// same bits on every machine (no libm, no contraction, no reassociation).
/// Determinism: a result depends on the arguments alone; `lane_sum` on n and the terms alone.

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace kern::host {

using bf16 = uint16_t;  ///< raw bits

inline float to_f32(bf16 value) {
  return std::bit_cast<float>(uint32_t{value} << 16);
}

/// Nearest even; a NaN stays a NaN.
inline bf16 to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40;
  return static_cast<bf16>((bits & 0x7FFFFFFF) > 0x7F800000 ? quiet : rounded);
}

/// `value` rounded to bf16 and back.
inline float through_bf16(float value) {
  return to_f32(to_bf16(value));
}

// ---- sums ----

using F4 = float __attribute__((vector_size(16)));

/// Reads four consecutive values.
struct Four {
  F4 operator()(const float* p, int64_t i) const {
    F4 value;
    std::memcpy(&value, p + i, sizeof value);
    return value;
  }
  F4 operator()(const bf16* p, int64_t i) const {
    uint16_t __attribute__((vector_size(8))) raw;
    std::memcpy(&raw, p + i, sizeof raw);
    using U4 = uint32_t __attribute__((vector_size(16)));
    return std::bit_cast<F4>(__builtin_convertvector(raw, U4) << 16);
  }
};

/// Reads one.
struct One {
  float operator()(const float* p, int64_t i) const { return p[i]; }
  float operator()(const bf16* p, int64_t i) const { return to_f32(p[i]); }
};

/// Sum over i < n of term(at, i), where the term reads its operands with `at(p, i)` and works on
/// one value or four alike. Term i goes to lane i mod 16; the lanes are added as a fixed tree.
template <class Term>
inline float lane_sum(int64_t n, Term term) {
  F4 quads[4] = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int q = 0; q < 4; ++q) quads[q] += term(Four{}, i + 4 * q);
  float lanes[16];
  std::memcpy(lanes, quads, sizeof lanes);
  for (int lane = 0; i < n; ++i, ++lane) lanes[lane] += term(One{}, i);
  for (int half = 8; half > 0; half /= 2)
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  return lanes[0];
}

template <class A, class B>
inline float dot(const A* a, const B* b, int64_t n) {
  return lane_sum(n, [=](auto at, int64_t i) { return at(a, i) * at(b, i); });
}

// ---- elementary functions ----

namespace detail {
inline constexpr float kLog2E = 1.44269504F;
inline constexpr float kLn2High = 0.693359375F;        // 9 bits: n * high is exact
inline constexpr float kLn2Low = -2.12194440e-4F;      // ln 2 - high
inline constexpr float kRoundToInteger = 12582912.0F;  // 1.5 * 2^23

/// x = n ln 2 + r, |r| <= ln 2 / 2. For |x| < 2^21.
struct Reduced {
  float r;
  uint32_t n;  // two's complement, so that far arguments wrap instead of overflowing
};
inline Reduced reduce(float x) {
  const float shifted = x * kLog2E + kRoundToInteger;
  const float whole = shifted - kRoundToInteger;
  return {(x - whole * kLn2High) - whole * kLn2Low,
          std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kRoundToInteger)};
}
/// e^r - 1 on the reduced range: Taylor to r^7, relative error below 2^-25.
inline float expm1_reduced(float r) {
  float p = 1.0F / 5040;
  p = p * r + 1.0F / 720;
  p = p * r + 1.0F / 120;
  p = p * r + 1.0F / 24;
  p = p * r + 1.0F / 6;
  p = p * r + 0.5F;
  return p * r * r + r;
}
inline float power_of_two(uint32_t n) {
  return std::bit_cast<float>((n + 127) << 23);
}
}  // namespace detail

/// e^x within 2 ulp; 0 below -87.3, infinity above 88.3, NaN for NaN.
inline float exp_f32(float x) {
  const auto [r, n] = detail::reduce(x);
  const float value = (detail::expm1_reduced(r) + 1) * detail::power_of_two(n);
  const float high = x > 88.3F ? std::numeric_limits<float>::infinity() : value;
  return x < -87.3F ? 0.0F : high;
}

inline float sigmoid(float x) {
  return 1.0F / (1.0F + exp_f32(-x));
}

inline float silu(float x) {
  return x / (1.0F + exp_f32(-x));
}

/// tanh x within 4 ulp, small arguments included: em1 / (em1 + 2) with em1 = e^(2|x|) - 1.
inline float tanh_f32(float x) {
  const float size = std::fabs(x);
  const float bounded = size > 10.0F ? 10.0F : size;
  const auto [r, n] = detail::reduce(2 * bounded);
  const float scale = detail::power_of_two(n);
  const float em1 = detail::expm1_reduced(r) * scale + (scale - 1.0F);
  return std::copysign(em1 / (em1 + 2.0F), x);
}

/// beta tanh(g / beta) sigmoid(g) * linear tanh(u / linear), all f32.
inline float situ(float gate, float up, float beta, float linear_beta) {
  return (beta * tanh_f32(gate / beta) * sigmoid(gate)) *
         (linear_beta * tanh_f32(up / linear_beta));
}

/// 1 / sqrt(sum / n + eps): the scale of an RMS norm.
inline float inverse_rms(float sum_of_squares, int64_t n, float eps) {
  return 1.0F / std::sqrt(sum_of_squares / static_cast<float>(n) + eps);
}

/// out = bf(weight * bf(x * scale)), scale over the whole row: rounds before it multiplies by the
/// weight. `out` may be `in`.
inline void rms_norm_row(const bf16* in, const bf16* weight, bf16* out, int64_t width, float eps) {
  const float scale = inverse_rms(dot(in, in, width), width, eps);
  for (int64_t i = 0; i < width; ++i)
    out[i] = to_bf16(to_f32(weight[i]) * through_bf16(to_f32(in[i]) * scale));
}

}  // namespace kern::host
