#include "synthetic.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kern/base/prng.h"

namespace kern::runtime {
namespace {

using manifest::Dtype;

constexpr double kVectorDeviation = 0x1p-6;
constexpr uint64_t kScaleExponent = 127 - 6;  // of e8m0: 2^-6

/// Normal to within a percent: the sum of four uniform numbers, at mean 0 and deviation 1.
double normal(Prng& prng) {
  const uint64_t word = prng.next();
  const uint64_t sum =
      (word & 0xFFFF) + (word >> 16 & 0xFFFF) + (word >> 32 & 0xFFFF) + (word >> 48);
  return (static_cast<double>(sum) - 2 * 0xFFFF) * std::sqrt(3.0) / 0x10000;
}

/// Rounded toward zero; what is too small for a normal number is zero, and none is too large.
uint16_t half_of(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto exponent = static_cast<int32_t>(bits >> 23 & 0xFF) - 127 + 15;
  const uint32_t sign = bits >> 16 & 0x8000;
  if (exponent < 1) return static_cast<uint16_t>(sign);
  return static_cast<uint16_t>(sign | static_cast<uint32_t>(exponent) << 10 | (bits >> 13 & 0x3FF));
}

template <class T>
void put(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof(value));
}

void put_float(std::byte* to, Dtype dtype, float value) {
  if (dtype == Dtype::f32) return put(to, value);
  if (dtype == Dtype::f16) return put(to, half_of(value));
  put(to, static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16));
}

}  // namespace

std::vector<std::byte> synthetic_block(const manifest::Buffer& buffer, int64_t bytes,
                                       uint64_t seed) {
  std::vector<std::byte> out(static_cast<size_t>(std::min(bytes, kSyntheticBlockBytes)));
  const auto width = static_cast<size_t>(manifest::size_of(buffer.dtype));
  const bool is_matrix = buffer.shape.size() > 1;
  const double mean = is_matrix ? 0 : 1;
  const double deviation =
      is_matrix ? 1 / std::sqrt(std::max<double>(1, buffer.shape.back().value)) : kVectorDeviation;
  Prng prng(seed);
  for (size_t at = 0; at + width <= out.size(); at += width) {
    std::byte* const to = out.data() + at;
    switch (buffer.dtype) {
      case Dtype::f32:
      case Dtype::bf16:
      case Dtype::f16:
        put_float(to, buffer.dtype, static_cast<float>(mean + deviation * normal(prng)));
        break;
      case Dtype::fp8e8m0:
        put(to, static_cast<uint8_t>(kScaleExponent - 1 + prng.below(3)));
        break;
      case Dtype::fp8e4m3:
        put(to, static_cast<uint8_t>(prng.next() & 0xBF));  // without the exponent's highest bit
        break;
      case Dtype::u8:
        put(to, static_cast<uint8_t>(prng.next()));
        break;
      case Dtype::i8:
      case Dtype::i32:
      case Dtype::u32:
      case Dtype::i64:
      case Dtype::u64:
        return out;
    }
  }
  return out;
}

}  // namespace kern::runtime
