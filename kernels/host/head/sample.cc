// The next token of each sequence, with its log probability and the likeliest alternatives.
//
// kern_sample, per sequence:
//   temperature 0: the largest logit, the lower index among equals. Otherwise a candidate weighs
//   e^((logit - largest) * (1 / temperature)), as a whole number of 2^-44: keep the top_k largest
//   (0: all), of those the shortest prefix whose share of the kept mass reaches top_p, of those the
//   ones of at least min_p times the largest probability; draw one with u = bits(seed, draw) /
//   2^53, the candidates largest first (lower index among equals). logprob = log softmax of the raw
//   logits at the token; top_* the `top` largest logits likewise. in f32 [seqs, vocab] logits; in
//   f32 [seqs] temperature; in f32 [seqs] top_p; in i32 [seqs] top_k; in f32 [seqs] min_p; in i64
//   [seqs] seed; in i32 [seqs] draw; out i32 [seqs] token; out f32 [seqs] logprob; out i32 [seqs,
//   top] top_tokens; out f32 [seqs, top] top_logprobs; out i32 [seqs, vocab] order (work space);
//   i32 vocab, top, seqs
// grid: [any, 1, 1], the sequences are divided over it. shared: 0.
// vocab is at most 400,000.
// Rounding points: weights are f64, then whole numbers, whose sums no order changes. The raw
// softmax's sum is f64.
// A row with a NaN or +infinity gives token -1, logprobs 0 and top_tokens -1.
// The result depends on the row and its own settings: equal seed and draw, equal token.

#include "common/args.h"
#include "common/numeric.h"

using namespace kern::host;

namespace {

struct Settings {
  float temperature, top_p;
  int64_t top_k;
  float min_p;
  uint64_t seed;
  uint32_t draw;
};

/// 53 bits out of (seed, draw), in [0, 1).
double uniform(uint64_t seed, uint32_t draw) {
  const auto mix = [](uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  };
  const uint64_t bits =
      mix(mix(seed + 0x9E3779B97F4A7C15ULL) + (draw + 1ULL) * 0xD1342543DE82EF95ULL);
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

/// One row's logits and a permutation of its tokens whose first `sorted` are the largest, in order.
class Row {
 public:
  Row(const float* logits, int32_t* order, int64_t vocab)
      : logits_(logits), order_(order), vocab_(vocab) {
    most_ = 0;
    for (int64_t i = 0; i < vocab; ++i) {
      order[i] = static_cast<int32_t>(i);
      if (!(logits[i] <= std::numeric_limits<float>::max())) broken_ = true;
      if (logits[i] > logits[most_]) most_ = i;
    }
    if (logits[most_] == -std::numeric_limits<float>::infinity()) broken_ = true;
  }

  bool broken() const { return broken_; }
  int32_t most() const { return static_cast<int32_t>(most_); }

  /// The token of rank `i`, largest first; sorts as far as needed.
  int32_t at(int64_t i) {
    while (i >= sorted_) {
      const int64_t more = std::min(vocab_, std::max<int64_t>(64, sorted_ * 4));
      std::partial_sort(order_ + sorted_, order_ + more, order_ + vocab_,
                        [&](int32_t a, int32_t b) {
                          return logits_[a] != logits_[b] ? logits_[a] > logits_[b] : a < b;
                        });
      sorted_ = more;
    }
    return order_[i];
  }

  /// e^((logit - largest) * per_temperature).
  double weight(int64_t token, double per_temperature) const {
    return std::exp((static_cast<double>(logits_[token]) - logits_[most_]) * per_temperature);
  }
  double total() const {
    double sum = 0;
    for (int64_t i = 0; i < vocab_; ++i) sum += weight(i, 1);
    return sum;
  }
  float logprob(int32_t token, double log_total) const {
    return static_cast<float>((static_cast<double>(logits_[token]) - logits_[most_]) - log_total);
  }

 private:
  const float* logits_;
  int32_t* order_;
  int64_t vocab_, most_, sorted_ = 0;
  bool broken_ = false;
};

/// A weight in whole units: 2^44 for the largest logit, so that 400,000 of them stay below 2^63.
uint64_t units(double weight) {
  return static_cast<uint64_t>(std::llrint(weight * 0x1p44));
}

/// The summed weight of the tokens that may be drawn, which are the largest.
uint64_t kept_mass(Row& row, const Settings& s, double per_temperature, int64_t vocab) {
  const int64_t limit = s.top_k > 0 ? std::min(s.top_k, vocab) : vocab;
  uint64_t whole = 0;
  for (int64_t i = 0; i < limit; ++i)
    whole += units(row.weight(limit < vocab ? row.at(i) : i, per_temperature));
  const double needed = static_cast<double>(s.top_p) * static_cast<double>(whole);
  uint64_t goal = whole;
  if (needed < static_cast<double>(whole))
    goal = needed > 1 ? static_cast<uint64_t>(std::ceil(needed)) : 1;
  uint64_t kept = units(1);  // the largest, in any case
  for (int64_t i = 1; i < limit && kept < goal; ++i) {
    const double weight = row.weight(row.at(i), per_temperature);
    if (weight < s.min_p || units(weight) == 0) break;
    kept += units(weight);
  }
  return kept;
}

int32_t choose(Row& row, const Settings& s, int64_t vocab) {
  if (!(s.temperature > 0)) return row.most();
  const double per_temperature = 1 / static_cast<double>(s.temperature);
  const uint64_t kept = kept_mass(row, s, per_temperature, vocab);
  const double passed = uniform(s.seed, s.draw) * static_cast<double>(kept);
  const uint64_t goal = std::min(static_cast<uint64_t>(passed) + 1, kept);
  uint64_t mass = 0;
  for (int64_t i = 0;; ++i) {
    mass += units(row.weight(row.at(i), per_temperature));
    if (mass >= goal) return row.at(i);
  }
}

}  // namespace

extern "C" void kern_sample(const kern_block* where, void* const* raw) {
  Args args(raw);
  const auto* logits = args.pointer<const float>();
  const auto* temperature = args.pointer<const float>();
  const auto* top_p = args.pointer<const float>();
  const auto* top_k = args.pointer<const int32_t>();
  const auto* min_p = args.pointer<const float>();
  const auto* seed = args.pointer<const int64_t>();
  const auto* draw = args.pointer<const int32_t>();
  auto* token = args.pointer<int32_t>();
  auto* logprob = args.pointer<float>();
  auto* top_tokens = args.pointer<int32_t>();
  auto* top_logprobs = args.pointer<float>();
  auto* order = args.pointer<int32_t>();
  const int64_t vocab = args.i32(), top = args.i32(), seqs = args.i32();
  const Span mine = share_of(where, 0, seqs);
  for (int64_t s = mine.first; s < mine.last; ++s) {
    Row row(logits + s * vocab, order + s * vocab, vocab);
    if (row.broken()) {
      token[s] = -1;
      logprob[s] = 0;
      std::fill_n(top_tokens + s * top, top, -1);
      std::fill_n(top_logprobs + s * top, top, 0.0F);
      continue;
    }
    token[s] = choose(row,
                      {temperature[s], top_p[s], top_k[s], min_p[s], static_cast<uint64_t>(seed[s]),
                       static_cast<uint32_t>(draw[s])},
                      vocab);
    const double log_total = std::log(row.total());
    logprob[s] = row.logprob(token[s], log_total);
    for (int64_t i = 0; i < top; ++i) {
      top_tokens[s * top + i] = row.at(i);
      top_logprobs[s * top + i] = row.logprob(row.at(i), log_total);
    }
  }
}
