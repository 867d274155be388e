#pragma once
/// MXFP4 weights as bf16 operands. A 32-bit word holds eight E2M1 numbers, element i in nibble i;
/// an E8M0 byte s multiplies 32 of them by 2^(s - 127), 255 is NaN.
///
/// A nibble's exponent and mantissa, put at the low end of bf16's, make a number 2^126 too small
/// (subnormals included), so one exact product with 2^(s - 1) decodes it. Scales above 128 would
/// overflow that factor and take a second one.

#include <stdint.h>

namespace kern {

/// The factor, twice, that decodes a group of scale s, or the part of it that fits.
__device__ __forceinline__ uint32_t mx_factor(uint32_t s) {
  const uint32_t bits = s == 255 ? 0x7FC0U : ((s < 128 ? s : 128) + 126) << 7;
  return bits * 0x00010001U;
}
/// The rest of it: 1 for a scale up to 128.
__device__ __forceinline__ uint32_t mx_rest(uint32_t s) {
  return ((s < 128 ? 127 : s - 1) << 7) * 0x00010001U;
}

__device__ __forceinline__ uint32_t mul_bf16_pair(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

/// Elements (0, 4), (1, 5), (2, 6), (3, 7) of a word, each a pair of bf16, of a group of scale s.
/// kFar: s may be above 128.
template <bool kFar>
__device__ __forceinline__ void decode_mxfp4(uint32_t word, uint32_t s, uint32_t (&pair)[4]) {
  // n * 4160 puts a nibble's sign at bit 15 and its other bits at 8 … 6, and more that is masked
  constexpr uint32_t kLow = 0x000F000FU, kNext = 0x00F000F0U, kKept = 0x81C081C0U;
  const uint32_t upper = word >> 8, factor = mx_factor(s);
  pair[0] = (word & kLow) * 4160U & kKept;
  pair[1] = (word & kNext) * 260U & kKept;
  pair[2] = (upper & kLow) * 4160U & kKept;
  pair[3] = (upper & kNext) * 260U & kKept;
#pragma unroll
  for (int i = 0; i < 4; ++i) pair[i] = mul_bf16_pair(pair[i], factor);
  if (kFar) {
    const uint32_t rest = mx_rest(s);
#pragma unroll
    for (int i = 0; i < 4; ++i) pair[i] = mul_bf16_pair(pair[i], rest);
  }
}

}  // namespace kern
