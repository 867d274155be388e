/// The head: logits joined, and the next token.

#include <algorithm>
#include <cmath>
#include <limits>

#include "families.h"
#include "host_twins.h"

namespace kern_device {

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Settings {
  float temperature = 0, top_p = 1;
  int32_t top_k = 0;
  float min_p = 0;
  int64_t seed = 0;
  int32_t draw = 0;
};

Kernel sample_kernel(size_t vocab, size_t seqs) {
  Kernel kernel = {"head-sample", "kern_sample", {}};
  kernel.shape.grid = {8, static_cast<uint32_t>(seqs), 1};
  kernel.shape.block = {512, 1, 1};
  kernel.shape.cluster = {8, 1, 1};
  kernel.shape.shared_bytes = static_cast<uint32_t>((vocab + 31) / 32 * 16);
  return kernel;
}

struct Sampled {
  I32 token, top_tokens;
};

/// Compares with the twin; hands out the device's.
Sampled sample(Check& c, const F32& logits, const std::vector<Settings>& settings, size_t top,
               bool judge = true) {
  const size_t seqs = settings.size(), vocab = logits.size() / seqs;
  F32 temperature, top_p, min_p;
  I32 top_k, draw;
  std::vector<int64_t> seed;
  for (const Settings& s : settings) {
    temperature.push_back(s.temperature), top_p.push_back(s.top_p), top_k.push_back(s.top_k);
    min_p.push_back(s.min_p), seed.push_back(s.seed), draw.push_back(s.draw);
  }
  Buffer l = c.in(logits), t = c.in(temperature), p = c.in(top_p), k = c.in(top_k), m = c.in(min_p),
         s = c.in(seed), d = c.in(draw);
  Buffer token = c.out<int32_t>(seqs, 0xA5), logprob = c.out<float>(seqs),
         tops = c.out<int32_t>(seqs * top, 0xA5), top_logprobs = c.out<float>(seqs * top),
         order = c.out<int32_t>(seqs * vocab);
  const Args args = {
      l,     t,          p,        k,        m, s, d, token, logprob, tops, top_logprobs,
      order, i32(vocab), i32(top), i32(seqs)};
  c.device(sample_kernel(vocab, seqs), args);
  if (judge) {
    run_on_host(kern_sample, {static_cast<uint32_t>(seqs)}, 0, args);
    c.same("token", token);
    c.same("top_tokens", tops);
    c.close("logprob", logprob, Dtype::f32, {.ulps = 2, .absolute = 1e-7});
    c.close("top_logprobs", top_logprobs, Dtype::f32, {.ulps = 2, .absolute = 1e-7});
  }
  return {token.from_device<int32_t>(), tops.from_device<int32_t>()};
}

/// One row a setting: every filter alone and together.
std::vector<Settings> every_setting(kern::Prng& prng) {
  std::vector<Settings> all;
  for (const float temperature : {0.0F, 0.3F, 1.0F, 4.0F})
    for (const float top_p : {1.0F, 0.95F, 0.3F, 0.0F})
      for (const int32_t top_k : {0, 1, 40, 3000})
        for (const float min_p : {0.0F, 0.05F})
          all.push_back({temperature, top_p, top_k, min_p, static_cast<int64_t>(prng.next()),
                         static_cast<int32_t>(prng.below(100000))});
  return all;
}

/// The greatest logit's token, or -1 beside a NaN, as the definition says.
I32 most_likely(const F32& logits, size_t vocab) {
  I32 tokens;
  for (size_t at = 0; at < logits.size(); at += vocab) {
    int32_t best = 0;
    bool is_sound = true;
    for (size_t i = 0; i < vocab; ++i) {
      is_sound = is_sound && !std::isnan(logits[at + i]);
      if (logits[at + i] > logits[at + best]) best = static_cast<int32_t>(i);
    }
    tokens.push_back(is_sound ? best : -1);
  }
  return tokens;
}

void argmax_checks(Suite& suite) {
  kern::Prng draw = suite.draws("argmax");
  for (const size_t rows : suite.lengths(draw, 4, 300))
    for (const size_t vocab :
         {size_t{4}, 4 * (1 + draw.below(suite.is_small() ? 100 : 5000)), size_t{163840}}) {
      if (vocab > 100000 && suite.is_small()) continue;
      suite.check(fmt::format("head argmax rows={} vocab={}", rows, vocab), [=](Check& c) {
        F32 logits = normal(c.prng, rows * vocab, 3);
        for (float& logit : logits) logit = widen(narrow(logit));  // many are equal
        if (rows > 2) {
          logits[vocab + c.prng.below(vocab)] = std::numeric_limits<float>::quiet_NaN();
          std::fill(logits.begin() + 2 * vocab, logits.begin() + 3 * vocab, -0.0F);
          logits[3 * vocab - 1] = 0.0F;  // equal to the others
        }
        if (rows > 4) {
          logits[3 * vocab + c.prng.below(vocab)] = kInf;
          std::fill(logits.begin() + 4 * vocab, logits.begin() + 5 * vocab, -kInf);
        }
        Buffer in = c.in(logits), token = c.out<int32_t>(rows, 0xA5);
        Kernel kernel = {"head-argmax", "kern_argmax", {}};
        kernel.shape.grid = {static_cast<uint32_t>(rows), 1, 1}, kernel.shape.block = {1024, 1, 1};
        c.device(kernel, {in, token, i32(vocab), i32(rows)});
        c.same("token", token.from_device<int32_t>(), most_likely(logits, vocab));
        if (!token.guard_is_whole()) c.fail("written past its end");
      });
    }
}

void sample_checks(Suite& suite) {
  for (const size_t vocab : {8u, 33u, 600u, 5000u, suite.is_small() ? 20000u : 163840u})
    suite.check(fmt::format("head sample: every filter, vocab={}", vocab), [=, &suite](Check& c) {
      std::vector<Settings> settings = every_setting(c.prng);
      if (vocab > 10000) settings.resize(64);
      if (suite.is_small()) {  // some of each kind, one of a wide row
        for (size_t i = 0; i < 4; ++i) settings[i] = settings[33 * i + vocab % 29];
        settings.resize(vocab > 10000 ? 1 : vocab > 1000 ? 2 : 4);
      }
      sample(c, normal(c.prng, settings.size() * vocab, 3), settings, std::min<size_t>(vocab, 20));
    });
  kern::Prng draw = suite.draws("sample");
  // A row costs a sanitizer seconds whatever the vocabulary: a cluster's whole shared memory.
  for (const size_t seqs :
       suite.is_small() ? std::vector<size_t>{1, 3} : suite.lengths(draw, 4, 200)) {
    const size_t vocab = 1 + draw.below(suite.is_small() ? 40 : 9000),
                 top = 1 + draw.below(std::min<size_t>(vocab, 128));
    const double spread = std::pow(10.0, 4 * draw.unit() - 2);  // from flat to one that takes all
    suite.check(fmt::format("head sample, drawn: seqs={} vocab={} top={} spread={:.3g}", seqs,
                            vocab, top, spread),
                [=](Check& c) {
                  F32 logits = normal(c.prng, seqs * vocab, spread);
                  for (float& logit : logits)  // as a bf16 product leaves them: many are equal
                    logit = widen(narrow(logit));
                  std::vector<Settings> every = every_setting(c.prng), settings;
                  for (size_t s = 0; s < seqs; ++s)
                    settings.push_back(every[c.prng.below(every.size())]);
                  sample(c, logits, settings, top);
                });
  }
  suite.check("head sample: the widest vocabulary there may be, the most alternatives",
              [&](Check& c) {
                const size_t vocab = suite.is_small() ? 4000 : 400000;
                const std::vector<Settings> settings = {
                    {}, {1, 0.95F, 0, 0, 7, 1}, {1, 0.9F, 399999, 0, 8, 2}, {2, 1, 0, 0, 9, 3}};
                sample(c, normal(c.prng, 4 * vocab, 2), settings, 128);
              });
  suite.check("head sample: flat logits draw from far down the order", [&](Check& c) {
    std::vector<Settings> settings;
    const size_t vocab = suite.is_small() ? 2500 : 40000;
    const auto half = static_cast<int32_t>(vocab / 2);
    for (int i = suite.is_small() ? 3 : 0; i < (suite.is_small() ? 5 : 8); ++i)
      settings.push_back({1.5F, i % 2 == 0 ? 1.0F : 0.9F, i < 4 ? 0 : half, 0, i, i * 7});
    sample(c, normal(c.prng, settings.size() * vocab, 0.05), settings, 20);
    sample(c, F32(settings.size() * vocab, 2.0F), settings, 20);  // all equal: order by token alone
  });
  suite.check("head sample: a whole vocabulary shares the mass", [&](Check& c) {
    const size_t vocab = suite.is_small() ? 3000 : 163840;
    std::vector<Settings> settings;
    for (int i = suite.is_small() ? 5 : 0; i < (suite.is_small() ? 7 : 8); ++i)
      settings.push_back({i % 2 == 0 ? 1.0F : 0.7F, i % 4 < 2 ? 0.95F : 1.0F,
                          i < 6 ? 0 : static_cast<int32_t>(vocab) - 77, 0, i, i * 31});
    F32 logits = normal(c.prng, settings.size() * vocab, 3);
    sample(c, logits, settings, 20);
    for (float& logit : logits) logit = widen(narrow(logit / 300));  // near 0, many equal
    sample(c, logits, settings, 20);
    for (float& logit : logits) logit = c.prng.below(2) == 0 ? 1.5F : -2.0F;  // two heaps
    sample(c, logits, settings, 20);
    for (float& logit : logits) logit = static_cast<float>(c.prng.below(3)) * 1e-6F + 7;
    for (size_t s = 0; s < settings.size(); ++s) logits[s * vocab + 5] = 12;  // one far above
    logits[1] = -kInf, logits[vocab + 3] = -3e38F;
    sample(c, logits, settings, 20);
  });
  suite.check("head sample: equal logits go to the lower token", [&](Check& c) {
    const size_t vocab = suite.is_small() ? 2000 : 163840, middle = vocab / 2;
    F32 logits(3 * vocab, -1.0F);
    logits[middle] = logits[middle + 1] = logits[vocab - 40] = 5;
    logits[vocab + vocab - 1] = logits[vocab + 9] = 5;
    logits[2 * vocab] = 0.0F, logits[2 * vocab + 4] = -0.0F;
    const Sampled out = sample(c, logits, std::vector<Settings>(3), 20);
    c.same("tokens", out.token, I32{static_cast<int32_t>(middle), 9, 0});
  });
  suite.check("head sample: broken rows give -1 and leave their neighbours alone", [](Check& c) {
    F32 logits = normal(c.prng, 5 * 4096, 2);
    logits[4096 + 4000] = std::numeric_limits<float>::quiet_NaN();
    logits[2 * 4096] = kInf;
    std::fill(logits.begin() + 3 * 4096, logits.begin() + 4 * 4096, -kInf);
    logits[4 * 4096 + 5] = -kInf;
    std::vector<Settings> settings(5);
    for (Settings& s : settings) s.temperature = 1;
    const Sampled out = sample(c, logits, settings, 20);
    for (const size_t row : {1, 2, 3})
      if (out.token[row] != -1) c.fail(fmt::format("row {} gives {}", row, out.token[row]));
  });
  suite.check("head sample: a row's token does not depend on its company", [&](Check& c) {
    const size_t vocab = suite.is_small() ? 2000 : 163840, seqs = suite.is_small() ? 3 : 9;
    const size_t middle = seqs / 2;  // a flat row among them
    F32 logits = normal(c.prng, seqs * vocab, 2);
    for (size_t i = middle * vocab; i < (middle + 1) * vocab; ++i) logits[i] *= 0.01F;
    std::vector<Settings> settings(seqs);
    for (size_t s = 0; s < seqs; ++s)
      settings[s] = {0.8F, 0.95F, s % 2 ? 50 : 0, 0, int64_t(s), int32_t(s)};
    const Sampled together = sample(c, logits, settings, 20, false);
    for (const size_t s : {size_t{0}, middle, seqs - 1})
      c.same("token", sample(c, rows_of(logits, vocab, s, s + 1), {settings[s]}, 20, false).token,
             I32{together.token[s]});
  });
  if (suite.is_small()) return;
  suite.check("head sample: draws follow the softmax", [](Check& c) {
    const F32 row = {1, 3, 2, 3, -1, 0, -kInf, 0};
    const size_t count = 4000;
    F32 logits;
    std::vector<Settings> settings(count);
    for (size_t i = 0; i < count; ++i) {
      logits.insert(logits.end(), row.begin(), row.end());
      settings[i] = {1.5F, 1, 0, 0, 42, static_cast<int32_t>(i)};
    }
    std::vector<int> seen(row.size());
    for (const int32_t token : sample(c, logits, settings, 3).token)
      if (token >= 0) ++seen[token];
    double total = 0;
    for (const float logit : row) total += std::exp(logit / 1.5);
    for (size_t t = 0; t < row.size(); ++t) {
      const double share = std::exp(row[t] / 1.5) / total,
                   spread = std::sqrt(count * share * (1 - share));
      if (std::fabs(seen[t] - count * share) > 4.5 * spread)
        c.fail(
            fmt::format("token {} was drawn {} times, expected {:.0f}", t, seen[t], count * share));
    }
  });
}

void feed_checks(Suite& suite) {
  for (const auto& [rows, seqs, width] : {std::tuple<size_t, size_t, size_t>{1, 1, 8},
                                          {64, 64, 7168},
                                          {5, 70, 264},
                                          {63, 65, 8},
                                          {65, 63, 136}})
    suite.check(fmt::format("head embed_fed and keep, rows={} seqs={} width={}", rows, seqs, width),
                [rows = rows, seqs = seqs, width = width](Check& c) {
                  const size_t vocab = 100;
                  I32 token(rows), source(rows), tokens(seqs);
                  for (int32_t& t : token) t = static_cast<int32_t>(c.prng.below(vocab));
                  for (int32_t& t : tokens) t = static_cast<int32_t>(c.prng.below(vocab)) - 1;
                  for (int32_t& s : source) s = static_cast<int32_t>(c.prng.below(seqs + 1)) - 1;
                  Buffer t = c.in(token), s = c.in(source), now = c.in(tokens),
                         kept = c.out<int32_t>(seqs, 0xA5),
                         table = c.in(normal_bf16(c.prng, vocab * width, 1)),
                         out = c.out<uint16_t>(rows * width);
                  const Args keep = {now, kept, i32(seqs)};
                  const Args fed = {t, s, kept, table, out, i32(width), i32(rows)};
                  run_on_host(kern_keep, {1}, 0, keep);
                  run_on_host(kern_embed_fed, {3}, 0, fed);
                  Kernel kernel = {"head-feed", "kern_keep", {}};
                  kernel.shape.grid = {1, 1, 1}, kernel.shape.block = {32, 1, 1};
                  c.device(kernel, keep);
                  kernel.entry = "kern_embed_fed";
                  kernel.shape.grid = {4, 1, 1}, kernel.shape.block = {896, 1, 1};
                  c.device(kernel, fed);
                  c.same("kept", kept);
                  c.same("out", out);
                });
}

}  // namespace

void head_family(Suite& suite) {
  for (const auto& [ranks, width, rows] : {std::tuple<size_t, size_t, size_t>{8, 20480, 3},
                                           {1, 64, 1},
                                           {4, 40960, 1},
                                           {3, 4, 65},
                                           {2, 8, 63},
                                           {5, 12, 64}})
    suite.check(fmt::format("head join_columns ranks={} width={} rows={}", ranks, width, rows),
                [ranks = ranks, width = width, rows = rows](Check& c) {
                  Buffer parts = c.in(normal(c.prng, ranks * width * rows, 1)),
                         out = c.out<float>(ranks * width * rows);
                  const Args args = {parts, out, i32(ranks), i32(width), i32(rows)};
                  run_on_host(kern_join_columns, {2}, 0, args);
                  Kernel kernel = {"head-join_columns", "kern_join_columns", {}};
                  kernel.shape.grid = {33, 1, 1}, kernel.shape.block = {256, 1, 1};
                  c.device(kernel, args);
                  c.same("out", out);
                });
  feed_checks(suite);
  argmax_checks(suite);
  sample_checks(suite);
  for (const auto& [seqs, name, settings] :
       {std::tuple<size_t, const char*, Settings>{1, "greedy", {}},
        {1, "top_p", {0.8F, 0.95F, 0, 0, 1, 1}},
        {64, "greedy", {}},
        {64, "top_p", {0.8F, 0.95F, 0, 0, 1, 1}},
        {64, "free", {1, 1, 0, 0, 1, 1}}})
    suite.bench(
        {"sample", fmt::format("seqs={} vocab=163840 {}", seqs, name), double(seqs) * 163840 * 4,
         0},
        [seqs = seqs, settings = settings](Gpu& gpu) {
          const size_t vocab = 163840, top = 20;
          Step step;
          const auto add = [&](const auto& value, int64_t bytes) {
            step.memory.push_back(gpu.repeated(std::as_bytes(std::span(&value, 1)), bytes));
          };
          kern::Prng prng(5);
          const F32 logits = normal(prng, vocab + 4, 3);
          step.memory.push_back(gpu.repeated(std::as_bytes(std::span(logits)), seqs * vocab * 4));
          add(settings.temperature, seqs * 4), add(settings.top_p, seqs * 4),
              add(settings.top_k, seqs * 4);
          add(settings.min_p, seqs * 4), add(settings.seed, seqs * 8), add(settings.draw, seqs * 4);
          const int32_t none = 0;
          add(none, seqs * 4), add(none, seqs * 4), add(none, seqs * top * 4),
              add(none, seqs * top * 4);
          add(none, 256);
          Args args(step.memory.begin(), step.memory.end());
          args.insert(args.end(), {i32(vocab), i32(top), i32(seqs)});
          step.launches.push_back({sample_kernel(vocab, seqs), args});
          return step;
        });
}

}  // namespace kern_device
