#include "common/numeric.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "entry.h"

namespace {

/// Distance to the exact value in units of the last place of its f32.
double ulps(float got, double exact) {
  const auto near = static_cast<float>(exact);
  const double step = std::nextafter(std::fabs(near), INFINITY) - std::fabs(near);
  return std::fabs(got - exact) / step;
}

template <class Function, class Exact>
double worst(double low, double high, Function function, Exact exact) {
  double most = 0;
  const int steps = 200000;
  for (int i = 0; i <= steps; ++i) {
    const auto x = static_cast<float>(low + (high - low) * i / steps);
    most = std::max(most, ulps(function(x), exact(double{x})));
  }
  return most;
}

}  // namespace

using kern::host::exp_f32;
using kern::host::sigmoid;
using kern::host::tanh_f32;

TEST_CASE("elementary functions are within their documented error", "[kernels][numeric]") {
  const auto exp = [](double x) { return std::exp(x); };
  CHECK(worst(-87, 88, exp_f32, exp) <= 2);
  CHECK(worst(-0.5, 0.5, exp_f32, exp) <= 2);
  const auto tanh = [](double x) { return std::tanh(x); };
  CHECK(worst(-12, 12, tanh_f32, tanh) <= 4);
  CHECK(worst(-0.4, 0.4, tanh_f32, tanh) <= 4);
  CHECK(worst(1e-6, 1e-4, tanh_f32, tanh) <= 4);
  CHECK(worst(-80, 80, sigmoid, [](double x) { return 1 / (1 + std::exp(-x)); }) <= 4);
}

TEST_CASE("elementary functions end where they should", "[kernels][numeric]") {
  CHECK(exp_f32(0) == 1);
  CHECK(exp_f32(-INFINITY) == 0);
  CHECK(exp_f32(-1e30F) == 0);
  CHECK(exp_f32(-1e7F) == 0);
  CHECK(exp_f32(89) == INFINITY);
  CHECK(exp_f32(INFINITY) == INFINITY);
  CHECK(std::isnan(exp_f32(NAN)));
  CHECK(sigmoid(-INFINITY) == 0);
  CHECK(sigmoid(INFINITY) == 1);
  CHECK(tanh_f32(0) == 0);
  CHECK(tanh_f32(50) == 1);
  CHECK(tanh_f32(-INFINITY) == -1);
  CHECK(std::isnan(tanh_f32(NAN)));
}

TEST_CASE("rounding to bf16 is to nearest even and keeps NaN", "[kernels][numeric]") {
  using kern::host::to_bf16;
  CHECK(to_bf16(1.0F + 1.0F / 256) == 0x3F80);  // half way, down to even
  CHECK(to_bf16(1.0F + 3.0F / 256) == 0x3F82);  // half way, up to even
  CHECK(to_bf16(1.0F + 1.0F / 256 + 1.0F / 65536) == 0x3F81);
  CHECK(to_bf16(3.4e38F) == 0x7F80);
  CHECK(to_bf16(-INFINITY) == 0xFF80);
  const auto low_nan = std::bit_cast<float>(0x7F800001U);  // its payload lies in the cut bits
  CHECK(std::isnan(kern::host::to_f32(to_bf16(low_nan))));
}

TEST_CASE("a lane sum takes every length in the documented order", "[kernels][numeric]") {
  kern::Prng prng(3);
  for (int64_t n = 0; n <= 70; ++n) {
    const auto a = kern_test::uniform(prng, n + 1, -1, 1),
               b = kern_test::uniform(prng, n + 1, -1, 1);
    float lanes[16] = {};
    for (int64_t i = 0; i < n; ++i) lanes[i % 16] += a[i] * b[i];
    for (int half = 8; half > 0; half /= 2)
      for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    CHECK(kern::host::dot(a.data(), b.data(), n) == lanes[0]);
  }
}
