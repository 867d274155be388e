#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <map>

#include "entry.h"

using namespace kern_test;

namespace {

struct Settings {
  float temperature = 0, top_p = 1;
  int32_t top_k = 0;
  float min_p = 0;
  int64_t seed = 0;
  int32_t draw = 0;
};

struct Sampled {
  I32 token;
  F32 logprob;
  I32 top_tokens;
  F32 top_logprobs;
};

Sampled sample(const F32& logits, const std::vector<Settings>& settings, size_t top = 3) {
  const size_t seqs = settings.size(), vocab = logits.size() / seqs;
  F32 temperature, top_p, min_p;
  I32 top_k, draw, order(seqs * vocab);
  std::vector<int64_t> seed;
  for (const Settings& s : settings) {
    temperature.push_back(s.temperature), top_p.push_back(s.top_p), top_k.push_back(s.top_k);
    min_p.push_back(s.min_p), seed.push_back(s.seed), draw.push_back(s.draw);
  }
  Sampled out{I32(seqs), F32(seqs), I32(seqs * top), F32(seqs * top)};
  Entry entry("head", "kern_sample");
  entry.buffer(logits).buffer(temperature).buffer(top_p).buffer(top_k).buffer(min_p).buffer(seed);
  entry.buffer(draw).buffer(out.token).buffer(out.logprob).buffer(out.top_tokens);
  entry.buffer(out.top_logprobs).buffer(order).i32(vocab).i32(top).i32(seqs).run({2});
  return out;
}

/// How often each token is drawn from one row with `count` consecutive draws.
std::map<int32_t, int> draws(const F32& row, Settings settings, int count) {
  std::map<int32_t, int> seen;
  F32 logits;
  std::vector<Settings> all;
  for (int i = 0; i < count; ++i) {
    logits.insert(logits.end(), row.begin(), row.end());
    settings.draw = i;
    all.push_back(settings);
  }
  for (const int32_t token : sample(logits, all).token) ++seen[token];
  return seen;
}

const F32 kRow = {1, 3, 2, 3, -1, 0};

}  // namespace

TEST_CASE("temperature zero takes the largest logit, the lower token among equals",
          "[kernels][sample]") {
  const Sampled out = sample(kRow, {{}}, 4);
  CHECK(out.token == I32{1});
  CHECK(out.top_tokens == I32{1, 3, 2, 0});
  double total = 0;
  for (const float logit : kRow) total += std::exp(double{logit});
  CHECK(out.logprob[0] == Approx(3 - std::log(total)));
  CHECK(out.top_logprobs[2] == Approx(2 - std::log(total)));
}

TEST_CASE("draws follow the softmax at the given temperature", "[kernels][sample]") {
  Settings settings;
  settings.temperature = 1.5F;
  settings.seed = 42;
  const int count = 20000;
  auto seen = draws(kRow, settings, count);
  double total = 0;
  for (const float logit : kRow) total += std::exp(logit / 1.5);
  for (size_t token = 0; token < kRow.size(); ++token) {
    const double share = std::exp(kRow[token] / 1.5) / total;
    const double deviation = std::sqrt(count * share * (1 - share));
    CHECK(std::fabs(seen[static_cast<int32_t>(token)] - count * share) < 4.5 * deviation);
  }
}

TEST_CASE("filters keep the likeliest tokens only", "[kernels][sample]") {
  Settings settings;
  settings.temperature = 1;
  settings.seed = 7;
  const auto tokens = [&](const Settings& s) {
    I32 kept;
    for (const auto& [token, times] : draws(kRow, s, 3000)) kept.push_back(token);
    return kept;
  };
  CHECK(tokens(settings) == I32{0, 1, 2, 3, 4, 5});
  Settings top_k = settings;
  top_k.top_k = 3;
  CHECK(tokens(top_k) == I32{1, 2, 3});
  Settings top_p = settings;
  top_p.top_p = 0.8F;  // the two threes hold 0.776 of the mass
  CHECK(tokens(top_p) == I32{1, 2, 3});
  top_p.top_p = 0.77F;
  CHECK(tokens(top_p) == I32{1, 3});
  top_p.top_p = 0;
  CHECK(tokens(top_p) == I32{1});
  Settings min_p = settings;
  min_p.min_p = 0.3F;  // e^-1 = 0.37 passes, e^-2 does not
  CHECK(tokens(min_p) == I32{1, 2, 3});
}

TEST_CASE("equal tokens are kept from the lowest on, and drawn evenly", "[kernels][sample]") {
  const int vocab = 2000, count = 400;
  Settings settings;
  settings.temperature = 0.7F;
  settings.top_p = 0.5F;
  int below = 0;
  for (const auto& [token, times] : draws(F32(vocab, 3.0F), settings, count)) {
    CHECK(token < vocab / 2);
    below += token < vocab / 4 ? times : 0;
  }
  CHECK(std::fabs(below - count / 2) < 4.5 * std::sqrt(count / 4.0));
}

TEST_CASE("a draw depends on the row, its seed and its number alone", "[kernels][sample]") {
  kern::Prng prng(1);
  const size_t vocab = 300;
  const F32 logits = uniform(prng, 5 * vocab, -4, 4);
  std::vector<Settings> settings(5);
  for (size_t s = 0; s < 5; ++s)
    settings[s] = {0.5F + 0.3F * s, 0.95F, s % 2 == 0 ? 0 : 40, 0.01F, int64_t(s), int32_t(s * s)};
  const Sampled together = sample(logits, settings);
  for (size_t s = 0; s < 5; ++s) {
    const F32 row(logits.begin() + s * vocab, logits.begin() + (s + 1) * vocab);
    const Sampled alone = sample(row, {settings[s]});
    CHECK(alone.token[0] == together.token[s]);
    CHECK(alone.logprob[0] == together.logprob[s]);
  }
  Settings a = settings[2], b = a;
  a.temperature = b.temperature = 3;
  size_t equal = 0;
  for (b.seed = 100; b.seed < 200; ++b.seed) {
    const F32 row(logits.begin(), logits.begin() + vocab);
    equal += sample(row, {a}).token == sample(row, {b}).token;
  }
  CHECK(equal < 20);
}

TEST_CASE("a NaN row gives token -1 and leaves its neighbours alone", "[kernels][sample]") {
  F32 logits;
  for (int i = 0; i < 3; ++i) logits.insert(logits.end(), kRow.begin(), kRow.end());
  logits[kRow.size() + 4] = std::numeric_limits<float>::quiet_NaN();
  const Sampled out = sample(logits, std::vector<Settings>(3));
  CHECK(out.token == I32{1, -1, 1});
  CHECK(out.top_tokens[3] == -1);
  CHECK(out.logprob[1] == 0);
  F32 infinite = kRow;
  infinite[0] = std::numeric_limits<float>::infinity();
  CHECK(sample(infinite, {{}}).token == I32{-1});
}

TEST_CASE("a logit of minus infinity is never drawn", "[kernels][sample]") {
  F32 row = kRow;
  row[1] = row[3] = -std::numeric_limits<float>::infinity();
  Settings settings;
  settings.temperature = 5;
  for (const auto& [token, times] : draws(row, settings, 2000)) CHECK((token != 1 && token != 3));
}

TEST_CASE("columns computed apart are joined in rank order", "[kernels][sample]") {
  const size_t ranks = 3, width = 4, rows = 2;
  F32 parts(ranks * rows * width), out(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) parts[i] = static_cast<float>(i);
  Entry("head", "kern_join_columns")
      .buffer(parts)
      .buffer(out)
      .i32(ranks)
      .i32(width)
      .i32(rows)
      .run({2});
  for (size_t row = 0; row < rows; ++row)
    for (size_t r = 0; r < ranks; ++r)
      for (size_t c = 0; c < width; ++c)
        CHECK(out[(row * ranks + r) * width + c] == parts[(r * rows + row) * width + c]);
}

TEST_CASE("a row takes the token it is given, or one that the step before kept",
          "[kernels][sample]") {
  const size_t width = 4, vocab = 6;
  Bf16 table(vocab * width), out(3 * width);
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<uint16_t>(i + 1);
  const I32 tokens = {5, -1, 2}, given = {3, 3, 3}, source = {2, -1, 1};
  I32 kept = {9, 9, 9, 9};
  Entry("head", "kern_keep").buffer(tokens).buffer(kept).i32(3).run({2});
  CHECK(kept == I32{5, -1, 2, 9});
  Entry entry("head", "kern_embed_fed");
  entry.buffer(given).buffer(source).buffer(kept).buffer(table).buffer(out).i32(width).i32(3);
  entry.run({2});
  const I32 want = {2, 3, 0};  // a failed row's token counts as the first
  for (size_t row = 0; row < 3; ++row)
    for (size_t i = 0; i < width; ++i)
      CHECK(out[row * width + i] == table[static_cast<size_t>(want[row]) * width + i]);
}
