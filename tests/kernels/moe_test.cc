#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "entry.h"

using namespace kern_test;

namespace {

constexpr double kValues[16] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6};

/// One packed matrix a expert, [expert][out][in], and what it stands for.
struct Packed {
  size_t out, in;
  std::vector<uint8_t> nibbles, scales;

  Packed(kern::Prng& prng, size_t experts, size_t out, size_t in) : out(out), in(in) {
    nibbles.resize(experts * out * in / 2);
    scales.resize(experts * out * in / 32);
    for (uint8_t& byte : nibbles) byte = static_cast<uint8_t>(prng.below(256));
    for (uint8_t& byte : scales) byte = static_cast<uint8_t>(121 + prng.below(4));
  }
  /// Element `i` of row `o`: byte i / 2, low nibble first; scale of its 32.
  double at(size_t expert, size_t o, size_t i) const {
    const size_t row = expert * out + o;
    const uint8_t byte = nibbles[(row * in + i) / 2];
    const double scale = std::exp2(static_cast<double>(scales[(row * in + i) / 32]) - 127);
    return kValues[i % 2 == 0 ? byte & 15 : byte >> 4] * scale;
  }
  std::vector<double> times(size_t expert, const std::vector<double>& x) const {
    std::vector<double> y(out, 0);
    for (size_t o = 0; o < out; ++o) {
      for (size_t i = 0; i < in; ++i) y[o] += at(expert, o, i) * x[i];
      y[o] = rounded(y[o]);
    }
    return y;
  }
};

double situ(double g, double u) {
  return 4 * std::tanh(g / 4) / (1 + std::exp(-g)) * 25 * std::tanh(u / 25);
}

struct Experts {
  size_t count, top_k, width, inter;
  Packed w1, w3, w2;

  Experts(kern::Prng& prng, size_t count, size_t top_k, size_t width, size_t inter)
      : count(count),
        top_k(top_k),
        width(width),
        inter(inter),
        w1(prng, count, inter, width),
        w3(prng, count, inter, width),
        w2(prng, count, width, inter) {}

  /// The five launches of one rank; `partial` has `stride` columns.
  F32 run(const Bf16& z, const I32& ids, const F32& weights, size_t ranks = 1, size_t rank = 0,
          uint32_t tiles = 2) const {
    const size_t rows = z.size() / width, own = count / ranks, stride = width + 5;
    I32 first(own + 1), place(rows * top_k);
    Bf16 x(rows * top_k * width), act(rows * top_k * inter), up = act, y = x;
    F32 partial(rows * stride, -7);
    const auto slice = [&](const std::vector<uint8_t>& all) {
      return std::vector<uint8_t>(all.begin() + all.size() / count * own * rank,
                                  all.begin() + all.size() / count * own * (rank + 1));
    };
    const auto p1 = slice(w1.nibbles), s1 = slice(w1.scales), p3 = slice(w3.nibbles),
               s3 = slice(w3.scales), p2 = slice(w2.nibbles), s2 = slice(w2.scales);
    Entry("moe", "kern_moe_plan")
        .buffer(ids)
        .buffer(first)
        .buffer(place)
        .i32(own)
        .i32(top_k)
        .i32(rank)
        .i32(rows)
        .run({1});
    Entry("moe", "kern_moe_gather")
        .buffer(z)
        .buffer(place)
        .buffer(x)
        .i32(width)
        .i32(top_k)
        .i32(rows)
        .run({3});
    Entry gate("moe", "kern_moe_up");
    gate.buffer(x).buffer(first).buffer(p1).buffer(s1).buffer(p3).buffer(s3).buffer(act).buffer(up);
    gate.i32(width).i32(inter).f32(4).f32(25);
    gate.run({static_cast<uint32_t>(own), tiles}, (inter / tiles + 1) * width * 2);
    Entry down("moe", "kern_moe_down");
    down.buffer(act).buffer(first).buffer(p2).buffer(s2).buffer(y).i32(width).i32(inter);
    down.run({static_cast<uint32_t>(own), tiles}, (width / tiles + 1) * inter * 2);
    Entry("moe", "kern_moe_combine")
        .buffer(y)
        .buffer(place)
        .buffer(weights)
        .buffer(partial)
        .i32(width)
        .i32(top_k)
        .i32(stride)
        .i32(rows)
        .run({3});
    for (size_t row = 0; row < rows; ++row)
      for (size_t i = width; i < stride; ++i) CHECK(partial[row * stride + i] == -7);
    F32 sums;
    for (size_t row = 0; row < rows; ++row)
      sums.insert(sums.end(), partial.begin() + row * stride,
                  partial.begin() + row * stride + width);
    return sums;
  }

  std::vector<double> want(const Bf16& z, const I32& ids, const F32& weights) const {
    std::vector<double> sums;
    for (size_t row = 0; row < z.size() / width; ++row) {
      std::vector<double> x(width), sum(width, 0);
      for (size_t i = 0; i < width; ++i) x[i] = widen(z[row * width + i]);
      for (size_t k = 0; k < top_k; ++k) {
        const size_t e = ids[row * top_k + k];
        const auto g = w1.times(e, x), u = w3.times(e, x);
        std::vector<double> a(inter);
        for (size_t i = 0; i < inter; ++i) a[i] = rounded(situ(g[i], u[i]));
        const auto y = w2.times(e, a);
        for (size_t i = 0; i < width; ++i) sum[i] += double{weights[row * top_k + k]} * y[i];
      }
      sums.insert(sums.end(), sum.begin(), sum.end());
    }
    return sums;
  }
};

struct Routed {
  I32 ids;
  F32 weights;
};

Routed route(const F32& logits, const F32& bias, size_t top_k, uint32_t blocks = 2,
             bool renormalize = true, double scaling = 1) {
  const size_t experts = bias.size(), rows = logits.size() / experts;
  Routed routed{I32(rows * top_k), F32(rows * top_k)};
  Entry("moe", "kern_router")
      .buffer(logits)
      .buffer(bias)
      .buffer(routed.ids)
      .buffer(routed.weights)
      .i32(experts)
      .i32(top_k)
      .i32(renormalize)
      .f32(scaling)
      .i32(rows)
      .run({blocks}, experts * 4);
  return routed;
}

}  // namespace

TEST_CASE("the router chooses by biased score and weighs by the plain one", "[kernels][moe]") {
  kern::Prng prng(31);
  const size_t experts = 96, top_k = 8, rows = 40;
  const F32 logits = uniform(prng, rows * experts, -3, 3), bias = uniform(prng, experts, -2, 2);
  const Routed got = route(logits, bias, top_k);
  for (size_t row = 0; row < rows; ++row) {
    std::vector<std::pair<double, int32_t>> order;
    for (size_t e = 0; e < experts; ++e) {
      const double s = 1 / (1 + std::exp(-double{logits[row * experts + e]}));
      order.emplace_back(-(s + bias[e]), static_cast<int32_t>(e));
    }
    std::sort(order.begin(), order.end());
    I32 chosen;
    for (size_t k = 0; k < top_k; ++k) chosen.push_back(order[k].second);
    std::sort(chosen.begin(), chosen.end());
    double sum = 1e-20;
    for (const int32_t e : chosen) sum += 1 / (1 + std::exp(-double{logits[row * experts + e]}));
    for (size_t k = 0; k < top_k; ++k) {
      CHECK(got.ids[row * top_k + k] == chosen[k]);
      const double s = 1 / (1 + std::exp(-double{logits[row * experts + chosen[k]]}));
      CHECK(got.weights[row * top_k + k] == Approx(s / sum).epsilon(1e-5));
    }
  }
}

TEST_CASE("equal scores go to the lower expert", "[kernels][moe]") {
  const F32 logits = {0, 1, 1, 0, 1, 1, 0, 0}, bias(8, 0.0F);
  CHECK(route(logits, bias, 3).ids == I32{1, 2, 4});
  CHECK(route(F32(8, -50.0F), bias, 2).ids == I32{0, 1});
}

TEST_CASE("scores below every plain one still fill the choice", "[kernels][moe]") {
  const F32 logits(6, 0.0F), bias = {-9, -3, -5, -7, -4, -8};
  CHECK(route(logits, bias, 3).ids == I32{1, 2, 4});
}

TEST_CASE("weights keep their size when they are not renormalised", "[kernels][moe]") {
  const F32 logits = {0, 20, -20}, bias(3, 0.0F);
  const Routed got = route(logits, bias, 2, 1, false, 3);
  CHECK(got.ids == I32{0, 1});
  CHECK(got.weights[0] == Approx(1.5));
  CHECK(got.weights[1] == Approx(3));
}

TEST_CASE("a row of NaN logits still names experts and carries NaN weights", "[kernels][moe]") {
  kern::Prng prng(32);
  F32 logits = uniform(prng, 3 * 8, -1, 1);
  const F32 bias = uniform(prng, 8, -1, 1);
  const Routed clean = route(logits, bias, 2);
  std::fill(logits.begin() + 8, logits.begin() + 16, std::numeric_limits<float>::quiet_NaN());
  const Routed dirty = route(logits, bias, 2);
  CHECK(dirty.ids[2] == 0);
  CHECK(dirty.ids[3] == 1);
  CHECK(std::isnan(dirty.weights[2]));
  for (const size_t i : {0u, 1u, 4u, 5u}) {
    CHECK(dirty.ids[i] == clean.ids[i]);
    CHECK(dirty.weights[i] == clean.weights[i]);
  }
}

TEST_CASE("the low nibble holds the even element and every scale its own 32", "[kernels][moe]") {
  // One expert, W1 = one nonzero element a row; x picks positions apart.
  const size_t width = 64, inter = 32;
  kern::Prng prng(33);
  Experts experts(prng, 1, 1, width, inter);
  const auto clear = [](Packed& w) { std::fill(w.nibbles.begin(), w.nibbles.end(), 0); };
  clear(experts.w1), clear(experts.w3), clear(experts.w2);
  std::fill(experts.w2.scales.begin(), experts.w2.scales.end(), 127);
  // row 0 of W1: element 5 (high nibble of byte 2) is 3, element 34 (low nibble of byte 17) is -1
  experts.w1.nibbles[2] = 5 << 4;
  experts.w1.nibbles[17] = 10;
  experts.w1.scales[0] = 127;
  experts.w1.scales[1] = 129;
  experts.w3.nibbles[0] = 7;  // row 0: element 0 is 6
  experts.w3.scales[0] = 127;
  experts.w2.nibbles[0] = 2;  // output 0 takes act 0 times 1
  Bf16 z(2 * width, 0);
  z[0] = narrow(1), z[5] = narrow(1);                  // row 0: gate 3, up 6
  z[width] = narrow(1), z[width + 34] = narrow(-0.5);  // row 1: gate -0.5 * -1 * 4 = 2, up 6
  const F32 got = experts.run(z, {0, 0}, {1, 1}, 1, 0, 1);
  CHECK(got[0] == widen(narrow(situ(3, 6))));
  CHECK(got[width] == widen(narrow(situ(2, 6))));
  CHECK(std::count(got.begin(), got.end(), 0.0F) == static_cast<long>(2 * width - 2));
}

TEST_CASE("routed experts agree with their definition in double precision", "[kernels][moe]") {
  kern::Prng prng(34);
  const Experts experts(prng, 8, 3, 64, 96);
  const Bf16 z = normal_bf16(prng, 11 * 64, 1);
  const F32 logits = uniform(prng, 11 * 8, -2, 2), bias(8, 0.0F);
  const Routed routed = route(logits, bias, 3);
  const F32 got = experts.run(z, routed.ids, routed.weights);
  CHECK(difference(got, experts.want(z, routed.ids, routed.weights)).relative < 2e-3);
}

TEST_CASE("a row's experts give the same bytes in any company and tiling", "[kernels][moe]") {
  kern::Prng prng(35);
  const Experts experts(prng, 6, 2, 64, 64);
  const Bf16 z = normal_bf16(prng, 9 * 64, 1);
  const Routed routed = route(uniform(prng, 9 * 6, -2, 2), F32(6, 0.0F), 2);
  const F32 whole = experts.run(z, routed.ids, routed.weights);
  CHECK(experts.run(z, routed.ids, routed.weights, 1, 0, 5) == whole);
  for (size_t row = 0; row < 9; ++row) {
    const Bf16 one(z.begin() + row * 64, z.begin() + (row + 1) * 64);
    const I32 ids(routed.ids.begin() + row * 2, routed.ids.begin() + row * 2 + 2);
    const F32 weights(routed.weights.begin() + row * 2, routed.weights.begin() + row * 2 + 2);
    CHECK(experts.run(one, ids, weights) ==
          F32(whole.begin() + row * 64, whole.begin() + (row + 1) * 64));
  }
}

TEST_CASE("ranks' parts add up to the whole, in latent space", "[kernels][moe]") {
  kern::Prng prng(36);
  const Experts experts(prng, 8, 3, 32, 64);
  const Bf16 z = normal_bf16(prng, 7 * 32, 1);
  const Routed routed = route(uniform(prng, 7 * 8, -2, 2), F32(8, 0.0F), 3);
  const F32 whole = experts.run(z, routed.ids, routed.weights);
  std::vector<double> sum(whole.size(), 0);
  for (size_t rank = 0; rank < 4; ++rank) {
    const F32 part = experts.run(z, routed.ids, routed.weights, 4, rank);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  }
  CHECK(difference(whole, sum).relative < 1e-6);
}
