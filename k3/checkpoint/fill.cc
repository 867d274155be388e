#include "checkpoint/fill.h"

#include <bit>
#include <cmath>

#include "kern/base/sha256.h"

namespace k3 {

using How = Filling::How;

namespace {

/// Levels of dt_bias from the slowest head to the fastest: decays a token from about 0.99 to 0.01.
constexpr double kSlowest = -6, kFastest = 2;

uint64_t seed_of(const std::string& name, uint64_t seed) {
  const kern::Digest digest = kern::sha256(kern::as_bytes(name));
  uint64_t word;
  std::memcpy(&word, digest.data(), sizeof word);
  return word ^ (seed * 0x9E3779B97F4A7C15ULL);
}

uint16_t bf16_of(double value) {
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

/// The nearest E2M1 code of a magnitude, the smaller among equals, with the sign in bit 3.
uint8_t e2m1_of(double value) {
  constexpr double kBetween[] = {0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5};
  const double size = std::fabs(value);
  uint8_t code = 0;
  while (code < 7 && size > kBetween[code]) ++code;
  return static_cast<uint8_t>(code | (value < 0 ? 8 : 0));
}

}  // namespace

TensorFiller::TensorFiller(const TensorPlan& plan, uint64_t seed)
    : plan_(plan), prng_(seed_of(plan.name, seed)) {
  for (const int64_t extent : plan.shape) elements_ *= extent;
}

int64_t TensorFiller::bytes_total() const {
  return elements_ * (plan_.dtype == "F32" ? 4 : plan_.dtype == "BF16" ? 2 : 1);
}

/// Sum of four 16-bit uniforms, scaled to variance 1: bounded by 3.5 and free of libm.
double TensorFiller::normal() {
  uint64_t bits = prng_.next();
  int64_t sum = -2 * 65535;
  for (int i = 0; i < 4; ++i, bits >>= 16) sum += static_cast<int64_t>(bits & 0xFFFF);
  return static_cast<double>(sum) / 65536 * 1.7320508075688772;
}

double TensorFiller::value(int64_t index) {
  const Filling& f = plan_.filling;
  switch (f.how) {
    case How::uniform:
      return f.mean + f.deviation * (2 * prng_.unit() - 1);
    case How::taps: {
      const bool last = index % plan_.shape.back() == plan_.shape.back() - 1;
      return (last ? f.mean : 0) + f.deviation * normal();
    }
    case How::decay:
      return index < f.heads ? f.mean + f.deviation * (2 * prng_.unit() - 1) : 0;
    case How::step_bias: {
      const int64_t head = index / (elements_ / f.heads);
      const double place = (static_cast<double>(head) + 0.5) / static_cast<double>(f.heads);
      return kSlowest + (kFastest - kSlowest) * place + f.deviation * normal();
    }
    default:
      return f.mean + f.deviation * normal();
  }
}

uint8_t TensorFiller::byte() {
  const Filling& f = plan_.filling;
  if (f.how == How::exponents) {  // one exponent below, two at and one above the mean
    constexpr int kSteps[] = {-1, 0, 0, 1};
    return static_cast<uint8_t>(127 + static_cast<int>(f.mean) + kSteps[prng_.below(4)]);
  }
  const uint8_t low = e2m1_of(f.deviation * normal());
  return static_cast<uint8_t>(low | (e2m1_of(f.deviation * normal()) << 4));
}

kern::ByteSpan TensorFiller::next(int64_t bytes_max) {
  const int64_t width = bytes_total() / elements_;
  const int64_t count = std::min(elements_ - at_, bytes_max / width);
  piece_.resize(static_cast<size_t>(count * width));
  for (int64_t i = 0; i < count; ++i, ++at_) {
    std::byte* to = piece_.data() + i * width;
    if (width == 4) {
      const auto v = static_cast<float>(value(at_));
      std::memcpy(to, &v, sizeof v);
    } else if (width == 2) {
      const uint16_t v = bf16_of(value(at_));
      std::memcpy(to, &v, sizeof v);
    } else {
      *to = std::byte{byte()};
    }
  }
  return piece_;
}

}  // namespace k3
