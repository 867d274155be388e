#include <catch2/catch.hpp>
#include <cmath>

#include "entry.h"

using namespace kern_test;

namespace {

constexpr double kEps = 1e-5;

/// The definition, in f64, with the model's rounding points.
std::vector<double> rms_norm(const std::vector<double>& x, const Bf16& w) {
  double squares = 0;
  for (const double v : x) squares += v * v;
  const double scale = 1 / std::sqrt(squares / static_cast<double>(x.size()) + kEps);
  std::vector<double> y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = rounded(widen(w[i]) * rounded(x[i] * scale));
  return y;
}

std::vector<double> row_of(const Bf16& rows, size_t width, size_t row) {
  std::vector<double> values(width);
  for (size_t i = 0; i < width; ++i) values[i] = widen(rows[row * width + i]);
  return values;
}

/// Two bf16 steps at the size of `reference`: a rounding that falls the other way, twice.
constexpr double kTwoSteps = 2.0 / 128;

struct Mix {
  size_t width, rows;
  Bf16 stream, score_norm, score_proj, weight;
  std::vector<Bf16> bank;

  Mix(kern::Prng& prng, size_t width, size_t rows, size_t n) : width(width), rows(rows) {
    stream = normal_bf16(prng, rows * width, 3);
    score_norm = normal_bf16(prng, width, 1);
    score_proj = normal_bf16(prng, width, 1 / std::sqrt(static_cast<double>(width)));
    weight = normal_bf16(prng, width, 1);
    for (size_t j = 0; j < n; ++j) bank.push_back(normal_bf16(prng, rows * width, 1.0 + 2.0 * j));
  }

  Bf16 run(uint32_t blocks) const {
    Bf16 out(rows * width);
    Entry entry("norm", "kern_mix_rms");
    entry.buffer(stream).buffer(score_norm).buffer(score_proj).buffer(weight).buffer(out);
    entry.f32(kEps).i32(width).i32(rows).i32(bank.size());
    for (const Bf16& b : bank) entry.buffer(b);
    entry.run({blocks}, width * 4);
    return out;
  }

  std::vector<double> want(size_t row) const {
    std::vector<std::vector<double>> sources;
    for (const Bf16& b : bank) sources.push_back(row_of(b, width, row));
    sources.push_back(row_of(stream, width, row));
    std::vector<double> p;
    double total = 0;
    for (const auto& v : sources) {
      double squares = 0, score = 0;
      for (const double x : v) squares += x * x;
      const double scale = 1 / std::sqrt(squares / static_cast<double>(width) + kEps);
      for (size_t i = 0; i < width; ++i)
        score += v[i] * scale * widen(score_norm[i]) * widen(score_proj[i]);
      p.push_back(std::exp(score));
      total += p.back();
    }
    std::vector<double> mixed(width, 0);
    for (size_t j = 0; j < sources.size(); ++j)
      for (size_t i = 0; i < width; ++i) mixed[i] += p[j] / total * sources[j][i];
    for (double& v : mixed) v = rounded(v);
    return rms_norm(mixed, weight);
  }
};

}  // namespace

TEST_CASE("an rms norm rounds before it multiplies by the weight", "[kernels][norm]") {
  kern::Prng prng(1);
  for (const size_t width : {7u, 64u, 129u, 7168u}) {
    const size_t rows = 5;
    const Bf16 x = normal_bf16(prng, rows * width, 20), w = normal_bf16(prng, width, 1);
    Bf16 out(x.size());
    Entry("norm", "kern_rms")
        .buffer(x)
        .buffer(w)
        .buffer(out)
        .f32(kEps)
        .i32(width)
        .i32(rows)
        .run({3});
    size_t apart = 0;
    for (size_t row = 0; row < rows; ++row) {
      const auto want = rms_norm(row_of(x, width, row), w);
      for (size_t i = 0; i < width; ++i) apart += widen(out[row * width + i]) != want[i];
    }
    CHECK(apart <= rows * width / 500);  // only where f32 and f64 round to different sides
  }
}

TEST_CASE("a landed sum is rounded once before its norm", "[kernels][norm]") {
  kern::Prng prng(2);
  const size_t rows = 3, width = 96, stride = 160;
  const F32 partial = uniform(prng, rows * stride, -4, 4);
  const Bf16 w = normal_bf16(prng, width, 1);
  Bf16 out(rows * width), landed(rows * width);
  for (size_t row = 0; row < rows; ++row)
    for (size_t i = 0; i < width; ++i) landed[row * width + i] = narrow(partial[row * stride + i]);
  Entry("norm", "kern_land_rms")
      .buffer(partial)
      .buffer(w)
      .buffer(out)
      .f32(kEps)
      .i32(stride)
      .i32(width)
      .i32(rows)
      .run({2});
  Bf16 want(rows * width);
  Entry("norm", "kern_rms")
      .buffer(landed)
      .buffer(w)
      .buffer(want)
      .f32(kEps)
      .i32(width)
      .i32(rows)
      .run({1});
  CHECK(out == want);
}

TEST_CASE("the residual mix scores normalised rows and mixes raw ones", "[kernels][norm]") {
  kern::Prng prng(3);
  for (const size_t n : {1u, 3u, 8u}) {
    const Mix mix(prng, 256, 6, n);
    const Bf16 out = mix.run(4);
    std::vector<double> want;
    for (size_t row = 0; row < mix.rows; ++row) {
      const auto one = mix.want(row);
      want.insert(want.end(), one.begin(), one.end());
    }
    CHECK(difference(out, want).relative < 1e-3);
    CHECK(difference(out, want).largest < 8 * kTwoSteps);
  }
}

TEST_CASE("a row of a mix does not depend on its company or on the grid", "[kernels][norm]") {
  kern::Prng prng(4);
  const Mix mix(prng, 192, 9, 5);
  const Bf16 whole = mix.run(3);
  CHECK(mix.run(9) == whole);
  Mix one = mix;
  one.rows = 1;
  const auto cut = [&](Bf16& rows) { rows.assign(rows.begin() + 4 * 192, rows.begin() + 5 * 192); };
  cut(one.stream);
  for (Bf16& b : one.bank) cut(b);
  CHECK(one.run(1) == Bf16(whole.begin() + 4 * 192, whole.begin() + 5 * 192));
}

TEST_CASE("the head's mix takes each sequence's last row", "[kernels][norm]") {
  kern::Prng prng(5);
  const Mix mix(prng, 64, 7, 2);
  const Bf16 whole = mix.run(1);
  const I32 cu_seqlens = {0, 3, 4, 7};
  Bf16 out(3 * 64), want;
  Entry entry("norm", "kern_mix_rms_last");
  entry.buffer(mix.stream).buffer(mix.score_norm).buffer(mix.score_proj).buffer(mix.weight);
  entry.buffer(cu_seqlens).buffer(out).f32(kEps).i32(64).i32(3).i32(2);
  entry.buffer(mix.bank[0]).buffer(mix.bank[1]).run({2}, 64 * 4);
  for (const size_t row : {2u, 3u, 6u})
    want.insert(want.end(), whole.begin() + row * 64, whole.begin() + (row + 1) * 64);
  CHECK(out == want);
}

TEST_CASE("a NaN stays in its own row", "[kernels][norm]") {
  kern::Prng prng(6);
  Mix mix(prng, 64, 4, 2);
  const Bf16 clean = mix.run(2);
  mix.stream[2 * 64 + 5] = 0x7FC0;
  const Bf16 dirty = mix.run(2);
  for (size_t i = 0; i < dirty.size(); ++i) {
    const bool poisoned = i / 64 == 2;
    CHECK(std::isnan(widen(dirty[i])) == poisoned);
    if (!poisoned) CHECK(dirty[i] == clean[i]);
  }
}

TEST_CASE("the stream takes sums rounded once and adds rounded each", "[kernels][norm]") {
  kern::Prng prng(7);
  const size_t rows = 4, width = 48, stride = 80;
  const Bf16 before = normal_bf16(prng, rows * width, 2),
             routed = normal_bf16(prng, rows * width, 1);
  const F32 partial = uniform(prng, rows * stride, -1, 1),
            flat = uniform(prng, rows * width, -1, 1);
  Bf16 land(rows * width), add = land, moe = land;
  Entry("norm", "kern_land").buffer(flat).buffer(land).i32(width).i32(rows).run({3});
  Entry("norm", "kern_land_add")
      .buffer(flat)
      .buffer(before)
      .buffer(add)
      .i32(width)
      .i32(rows)
      .run({3});
  Entry("norm", "kern_land_moe")
      .buffer(routed)
      .buffer(partial)
      .buffer(before)
      .buffer(moe)
      .i32(stride)
      .i32(width)
      .i32(rows)
      .run({3});
  for (size_t row = 0; row < rows; ++row)
    for (size_t i = 0; i < width; ++i) {
      const size_t at = row * width + i;
      CHECK(land[at] == narrow(flat[at]));
      CHECK(add[at] == narrow(widen(before[at]) + rounded(flat[at])));
      const double f = rounded(widen(routed[at]) + rounded(partial[row * stride + i]));
      CHECK(moe[at] == narrow(widen(before[at]) + f));
    }
}

TEST_CASE("tokens fetch their rows and the bank keeps a copy", "[kernels][norm]") {
  kern::Prng prng(8);
  const Bf16 table = normal_bf16(prng, 10 * 24, 1);
  const I32 token = {9, 0, 3, 3};
  Bf16 out(4 * 24), copy(4 * 24);
  Entry("norm", "kern_embed").buffer(token).buffer(table).buffer(out).i32(24).i32(4).run({4});
  for (size_t row = 0; row < 4; ++row)
    for (size_t i = 0; i < 24; ++i) CHECK(out[row * 24 + i] == table[token[row] * 24 + i]);
  Entry("norm", "kern_copy_rows").buffer(out).buffer(copy).i32(24).i32(4).run({3});
  CHECK(copy == out);
}

TEST_CASE("the activation is two saturating halves with one rounding", "[kernels][act]") {
  const size_t width = 4000;
  Bf16 in(2 * width), out(width);
  kern::Prng prng(9);
  const F32 gate = uniform(prng, width, -40, 40), up = uniform(prng, width, -200, 200);
  for (size_t i = 0; i < width; ++i) {
    // small, ordinary and saturating arguments
    const double scale = i % 3 == 0 ? 1e-3 : i % 3 == 1 ? 0.05 : 1;
    in[i] = narrow(gate[i] * scale);
    in[width + i] = narrow(up[i] * scale);
  }
  Entry("act", "kern_situ").buffer(in).buffer(out).f32(4).f32(25).i32(width).i32(1).run({1});
  size_t apart = 0;
  for (size_t i = 0; i < width; ++i) {
    const double g = widen(in[i]), u = widen(in[width + i]);
    const double want = 4 * std::tanh(g / 4) / (1 + std::exp(-g)) * 25 * std::tanh(u / 25);
    CHECK(std::fabs(widen(out[i]) - want) <= std::fabs(want) / 250 + 1e-30);
    CHECK(std::fabs(widen(out[i])) <= 100);
    apart += out[i] != narrow(want);
  }
  CHECK(apart < width / 1000);
}
