#pragma once
/// MXFP4 weights: byte j of a row holds element 2j in its low nibble and 2j + 1 in its high one,
/// each sign | E2M1 magnitude; one E8M0 byte a 32 elements multiplies by 2^(byte - 127), 255 is
/// NaN. Every value is exact in bf16 except where the exponent underflows.

#include <cstdint>

#include "common/numeric.h"

namespace kern::host {

inline constexpr int64_t kMxGroup = 32;

inline float e8m0(uint8_t byte) {
  if (byte == 255) return std::numeric_limits<float>::quiet_NaN();
  return std::bit_cast<float>(byte == 0 ? 0x00400000U : uint32_t{byte} << 23);
}

/// One row of `count` elements, a multiple of 32.
inline void expand_mxfp4(const uint8_t* packed, const uint8_t* scales, int64_t count, bf16* out) {
  constexpr float kValues[16] = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                                 -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};
  for (int64_t group = 0; group < count / kMxGroup; ++group) {
    const float scale = e8m0(scales[group]);
    bf16 scaled[16];
    for (int i = 0; i < 16; ++i) scaled[i] = to_bf16(kValues[i] * scale);
    const uint8_t* bytes = packed + group * (kMxGroup / 2);
    bf16* to = out + group * kMxGroup;
    for (int64_t j = 0; j < kMxGroup / 2; ++j) {
      to[2 * j] = scaled[bytes[j] & 15];
      to[2 * j + 1] = scaled[bytes[j] >> 4];
    }
  }
}

}  // namespace kern::host
