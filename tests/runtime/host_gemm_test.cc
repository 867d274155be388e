#include "kern/runtime/host_gemm.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <vector>

#include "kern/base/prng.h"

using namespace kern;
using namespace kern::runtime;

namespace {

float to_float(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

/// bf16 values around 1 with either sign; every so often a zero.
std::vector<uint16_t> random_bf16(int64_t count, uint64_t seed) {
  Prng prng(seed);
  std::vector<uint16_t> out(static_cast<size_t>(count));
  for (uint16_t& v : out) {
    const uint64_t bits = prng.next();
    v = bits % 17 == 0 ? 0 : static_cast<uint16_t>((bits & 0x80FF) | 0x3F00);
  }
  return out;
}

/// The sum as the header defines it, written out: 16 lanes over k, then the tree.
float defined_sum(const uint16_t* a, const uint16_t* w, int64_t k) {
  float lanes[16] = {};
  for (int64_t i = 0; i < k; ++i) lanes[i % 16] += to_float(a[i]) * to_float(w[i]);
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  return lanes[0];
}

struct Shape {
  int64_t m, n, k;
};
const Shape kShapes[] = {{1, 1, 1},   {1, 4, 16},   {2, 3, 15},   {3, 5, 17},
                         {4, 7, 64},  {5, 9, 130},  {6, 1, 31},   {7, 8, 256},
                         {13, 6, 48}, {17, 21, 99}, {1, 33, 1000}};

}  // namespace

TEST_CASE("every instruction set gives the sum that the header defines, bit for bit",
          "[runtime][gemm]") {
  for (const Shape& s : kShapes) {
    const auto a = random_bf16(s.m * s.k, 1), w = random_bf16(s.n * s.k, 2);
    for (const Isa isa : supported_isas()) {
      std::vector<float> c(static_cast<size_t>(s.m * s.n), -1.f);
      gemm_tile(isa, {a.data(), w.data(), c.data(), s.m, s.n, s.k, s.n, s.k, GemmStore::f32},
                {0, s.m, 0, s.n});
      INFO(to_string(isa) << " " << s.m << "x" << s.n << "x" << s.k);
      bool same = true;
      for (int64_t row = 0; row < s.m; ++row)
        for (int64_t col = 0; col < s.n; ++col) {
          const float want = defined_sum(&a[row * s.k], &w[col * s.k], s.k);
          same = same && std::memcmp(&want, &c[row * s.n + col], sizeof(want)) == 0;
        }
      CHECK(same);
    }
  }
}

TEST_CASE("a row's bits do not depend on the rows and columns computed with it",
          "[runtime][gemm]") {
  const Shape s{19, 23, 333};
  const auto a = random_bf16(s.m * s.k, 3), w = random_bf16(s.n * s.k, 4);
  for (const Isa isa : supported_isas()) {
    std::vector<uint16_t> whole(static_cast<size_t>(s.m * s.n)), parts(whole.size());
    gemm_tile(isa, {a.data(), w.data(), whole.data(), s.m, s.n, s.k, s.n, s.k}, {0, s.m, 0, s.n});
    const Gemm gemm{a.data(), w.data(), parts.data(), s.m, s.n, s.k, s.n, s.k};
    for (int64_t row = 0; row < s.m; row += 5)
      for (int64_t col = 0; col < s.n; col += 7)
        gemm_tile(isa, gemm, {row, std::min(row + 5, s.m), col, std::min(col + 7, s.n)});
    CHECK(whole == parts);
    std::vector<uint16_t> alone(static_cast<size_t>(s.n));
    for (int64_t row = 0; row < s.m; ++row) {
      host_services(isa).gemm_bf16_tn(&a[row * s.k], w.data(), alone.data(), 1, s.n, s.k, s.n, s.k);
      CHECK(std::equal(alone.begin(), alone.end(), whole.begin() + row * s.n));
    }
  }
}

TEST_CASE("row strides leave what lies between rows alone", "[runtime][gemm]") {
  const Shape s{3, 5, 20};
  const int64_t a_stride = 27, c_stride = 9;
  const auto a = random_bf16(s.m * a_stride, 5), w = random_bf16(s.n * s.k, 6);
  for (const Isa isa : supported_isas()) {
    std::vector<float> c(static_cast<size_t>(s.m * c_stride), 77.f);
    host_services(isa).gemm_bf16_tn_f32(a.data(), w.data(), c.data(), s.m, s.n, s.k, c_stride,
                                        a_stride);
    for (int64_t row = 0; row < s.m; ++row)
      for (int64_t col = 0; col < c_stride; ++col)
        CHECK(c[row * c_stride + col] ==
              (col < s.n ? defined_sum(&a[row * a_stride], &w[col * s.k], s.k) : 77.f));
  }
}

TEST_CASE("adding to C rounds once, after the sum", "[runtime][gemm]") {
  const uint16_t a[2] = {0x3F80, 0x3F80};  // 1, 1
  const uint16_t w[2] = {0x3B80, 0x3B80};  // 2^-8 twice: too small for bf16 beside 1 when alone
  for (const Isa isa : supported_isas()) {
    uint16_t c = 0x3F80;
    gemm_tile(isa, {a, w, &c, 1, 1, 2, 1, 2, GemmStore::bf16_add}, {0, 1, 0, 1});
    CHECK(c == 0x3F81);  // 1 + 2^-7
  }
}

TEST_CASE("a sum is rounded to the nearest bf16, ties to even, and a NaN stays one",
          "[runtime][gemm]") {
  const auto rounded = [](uint16_t first, uint16_t second) {
    const uint16_t a[2] = {0x3F80, 0x3F80};
    const uint16_t w[2] = {first, second};
    uint16_t c = 0;
    gemm_tile(supported_isas().back(), {a, w, &c, 1, 1, 2, 1, 2}, {0, 1, 0, 1});
    return c;
  };
  CHECK(rounded(0x3F80, 0x3B80) == 0x3F80);  // 1 + 2^-8 lies half way: to the even 1
  CHECK(rounded(0x3F81, 0x3B80) == 0x3F82);  // 1 + 2^-7 + 2^-8: to the even above
  CHECK(rounded(0x7F80, 0x3F80) == 0x7F80);
  CHECK((rounded(0x7F80, 0xFF80) & 0x7FFF) > 0x7F80);
}
