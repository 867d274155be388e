#include <catch2/catch.hpp>
#include <cmath>

#include "entry.h"

using namespace kern_test;

namespace {

constexpr size_t kTaps = 4;
constexpr double kEps = 1e-5, kL2Eps = 1e-6, kLowerBound = -5;

/// Where one sequence's rows of a call come from and where its state lies.
struct Part {
  size_t first, rows;  ///< rows of the whole input
  int32_t line;
  int32_t snapshot = 0;
  int32_t start = 0;  ///< position of the first row
};

/// One layer, and its whole input: heads that forget at once beside heads that hardly forget.
struct Layer {
  size_t heads, dim, rows;
  Bf16 x, r;
  F32 conv[3], a_log, dt_bias, o_norm;

  size_t inner() const { return heads * dim; }
  size_t stride() const { return 4 * inner() + heads; }
  size_t line_bytes() const { return heads * dim * dim * 4 + 3 * (kTaps - 1) * inner() * 2; }

  Layer(uint64_t seed, size_t heads, size_t dim, size_t rows) : heads(heads), dim(dim), rows(rows) {
    kern::Prng prng(seed);
    x = normal_bf16(prng, rows * stride(), 1);
    r = normal_bf16(prng, rows * inner(), 1);
    for (F32& taps : conv) taps = uniform(prng, inner() * kTaps, -0.6, 0.9);
    a_log = uniform(prng, heads, -0.3, 0.7);
    o_norm = uniform(prng, dim, 0.5, 1.5);
    for (size_t c = 0; c < inner(); ++c) {
      const double level = -6 + 8.0 * static_cast<double>(c / dim) / static_cast<double>(heads);
      dt_bias.push_back(static_cast<float>(level + prng.unit()));
    }
  }

  /// One call over the parts, in order; returns the output rows of all parts back to back.
  Bf16 call(const std::vector<Part>& parts, std::vector<std::byte>& state) const {
    Bf16 px, pr;
    I32 lines, snapshots, seq_len, cu_seqlens = {0};
    for (const Part& part : parts) {
      px.insert(px.end(), x.begin() + part.first * stride(),
                x.begin() + (part.first + part.rows) * stride());
      pr.insert(pr.end(), r.begin() + part.first * inner(),
                r.begin() + (part.first + part.rows) * inner());
      lines.push_back(part.line);
      snapshots.push_back(part.snapshot);
      seq_len.push_back(part.start + static_cast<int32_t>(part.rows));
      cu_seqlens.push_back(cu_seqlens.back() + static_cast<int32_t>(part.rows));
    }
    const size_t count = cu_seqlens.back(), seqs = parts.size();
    F32 q(count * inner()), k = q, v = q, alpha = q, o = q, beta(count * heads);
    Bf16 y(count * inner());
    Entry prep("kda", "kern_kda_prep");
    prep.buffer(px).buffer(pr).buffer(conv[0]).buffer(conv[1]).buffer(conv[2]).buffer(a_log);
    prep.buffer(dt_bias).buffer(state).buffer(lines).buffer(cu_seqlens);
    prep.buffer(q).buffer(k).buffer(v).buffer(alpha).buffer(beta);
    prep.i32(heads).i32(dim).i32(kTaps).i32(stride()).i32(4 * inner());
    prep.f32(kLowerBound).f32(kL2Eps).f32(1 / std::sqrt(static_cast<double>(dim)));
    prep.i32(count).i32(seqs).run({static_cast<uint32_t>(count + 2) / 3});
    Entry recurrence("kda", "kern_kda_recurrence_snapshot");
    recurrence.buffer(q).buffer(k).buffer(v).buffer(alpha).buffer(beta).buffer(state);
    recurrence.buffer(lines).buffer(cu_seqlens).buffer(o).i32(heads).i32(dim).i32(kTaps);
    recurrence.buffer(snapshots).buffer(seq_len).i32(64);
    recurrence.run({static_cast<uint32_t>(seqs), static_cast<uint32_t>(heads)});
    Entry windows("kda", "kern_kda_windows_snapshot");
    windows.buffer(px).buffer(state).buffer(lines).buffer(cu_seqlens);
    windows.i32(heads).i32(dim).i32(kTaps).i32(stride());
    windows.buffer(snapshots).buffer(seq_len).i32(64).run({static_cast<uint32_t>(seqs)});
    Entry out("kda", "kern_kda_out");
    out.buffer(o).buffer(px).buffer(o_norm).buffer(y).i32(heads).i32(dim).i32(stride());
    out.i32(3 * inner()).f32(kEps).i32(count).run({2});
    return y;
  }

  std::vector<std::byte> states(size_t lines) const {
    return std::vector<std::byte>(lines * line_bytes());
  }
  std::vector<std::byte> line(const std::vector<std::byte>& state, size_t index) const {
    return {state.begin() + index * line_bytes(), state.begin() + (index + 1) * line_bytes()};
  }
};

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

/// The model's definition of one sequence, every quantity f64 except where the model rounds.
struct Reference {
  const Layer& layer;
  size_t first, rows;
  std::vector<double> y, s;  ///< outputs; final state [head][v][k]

  double u(int stream, int64_t t, size_t c) const {
    if (t < 0) return 0;
    return widen(layer.x[(first + t) * layer.stride() + stream * layer.inner() + c]);
  }
  double projected(int stream, int64_t t, size_t c) const {
    double sum = 0;
    for (size_t i = 0; i < kTaps; ++i)
      sum +=
          layer.conv[stream][c * kTaps + i] * u(stream, t - static_cast<int64_t>(kTaps - 1 - i), c);
    return rounded(sum * sigmoid(sum));
  }
  std::vector<double> head_of(int stream, int64_t t, size_t head) const {
    std::vector<double> values;
    for (size_t d = 0; d < layer.dim; ++d)
      values.push_back(projected(stream, t, head * layer.dim + d));
    return values;
  }
  static void normalise(std::vector<double>& v, double scale) {
    double squares = kL2Eps;
    for (const double one : v) squares += one * one;
    for (double& one : v) one *= scale / std::sqrt(squares);
  }

  void token(int64_t t, size_t head) {
    const size_t dim = layer.dim, base = head * dim * dim;
    std::vector<double> q = head_of(0, t, head), k = head_of(1, t, head), v = head_of(2, t, head);
    normalise(q, 1 / std::sqrt(static_cast<double>(dim)));
    normalise(k, 1);
    const uint16_t* row = layer.x.data() + (first + t) * layer.stride();
    const double beta = sigmoid(widen(row[4 * layer.inner() + head]));
    for (size_t d = 0; d < dim; ++d) {
      const size_t c = head * dim + d;
      const double rate = std::exp(double{layer.a_log[head]});
      const double r = widen(layer.r[(first + t) * layer.inner() + c]);
      const double alpha = std::exp(kLowerBound * sigmoid(rate * (r + layer.dt_bias[c])));
      for (size_t i = 0; i < dim; ++i) s[base + i * dim + d] *= alpha;
    }
    std::vector<double> o(dim);
    double squares = 0;
    for (size_t i = 0; i < dim; ++i) {
      double e = v[i];
      for (size_t d = 0; d < dim; ++d) e -= s[base + i * dim + d] * k[d];
      for (size_t d = 0; d < dim; ++d) s[base + i * dim + d] += beta * e * k[d];
      for (size_t d = 0; d < dim; ++d) o[i] += s[base + i * dim + d] * q[d];
      squares += o[i] * o[i];
    }
    const double scale = 1 / std::sqrt(squares / static_cast<double>(dim) + kEps);
    for (size_t i = 0; i < dim; ++i)
      y[t * layer.inner() + head * dim + i] =
          o[i] * scale * layer.o_norm[i] * sigmoid(widen(row[3 * layer.inner() + head * dim + i]));
  }

  Reference(const Layer& layer, size_t first, size_t rows)
      : layer(layer),
        first(first),
        rows(rows),
        y(rows * layer.inner()),
        s(layer.heads * layer.dim * layer.dim) {
    for (size_t t = 0; t < rows; ++t)
      for (size_t head = 0; head < layer.heads; ++head) token(static_cast<int64_t>(t), head);
  }
};

F32 recurrent_part(const Layer& layer, const std::vector<std::byte>& state, size_t line) {
  F32 values(layer.heads * layer.dim * layer.dim);
  std::memcpy(values.data(), state.data() + line * layer.line_bytes(), values.size() * 4);
  return values;
}

}  // namespace

TEST_CASE("the delta rule agrees with its definition in double precision", "[kernels][kda]") {
  for (const auto& [heads, dim, rows] : {std::tuple{4, 32, 150}, {2, 128, 90}, {3, 20, 40}}) {
    const Layer layer(11, heads, dim, rows);
    auto state = layer.states(2);
    const Bf16 y = layer.call({{0, static_cast<size_t>(rows), 1}}, state);
    const Reference want(layer, 0, rows);
    CHECK(difference(y, want.y).relative < 3e-3);
    CHECK(difference(recurrent_part(layer, state, 1), want.s).relative < 1e-4);
  }
}

TEST_CASE("a line holds the state by value row, then three windows, oldest tap first",
          "[kernels][kda]") {
  const Layer layer(12, 2, 16, 10);
  auto state = layer.states(2);
  layer.call({{0, 10, 1}}, state);
  Bf16 windows(3 * (kTaps - 1) * layer.inner());
  std::memcpy(windows.data(), state.data() + layer.line_bytes() + 2 * 16 * 16 * 4,
              windows.size() * 2);
  for (size_t stream = 0; stream < 3; ++stream)
    for (size_t tap = 0; tap < kTaps - 1; ++tap)
      for (size_t c = 0; c < layer.inner(); ++c)
        CHECK(windows[(stream * (kTaps - 1) + tap) * layer.inner() + c] ==
              layer.x[(10 - 3 + tap) * layer.stride() + stream * layer.inner() + c]);
}

TEST_CASE("a sequence gives the same bytes wherever its calls are cut", "[kernels][kda]") {
  const Layer layer(13, 3, 32, 140);
  auto whole_state = layer.states(2);
  const Bf16 whole = layer.call({{0, 140, 1}}, whole_state);
  const std::vector<std::vector<size_t>> cuts = {
      {64, 76}, {1, 2, 3, 134}, {64, 64, 12}, std::vector<size_t>(140, 1)};
  for (const auto& cut : cuts) {
    auto state = layer.states(2);
    Bf16 y;
    size_t at = 0;
    for (const size_t rows : cut) {
      const Bf16 part = layer.call({{at, rows, 1, 0, static_cast<int32_t>(at)}}, state);
      y.insert(y.end(), part.begin(), part.end());
      at += rows;
    }
    CHECK(y == whole);
    CHECK(state == whole_state);
  }
}

TEST_CASE("a sequence gives the same bytes in any company", "[kernels][kda]") {
  const Layer layer(14, 2, 32, 90);
  auto alone = layer.states(4), together = layer.states(4);
  const Bf16 a = layer.call({{0, 30, 1}}, alone), b = layer.call({{30, 1, 2}}, alone),
             c = layer.call({{31, 59, 3}}, alone);
  Bf16 want = a;
  want.insert(want.end(), b.begin(), b.end());
  want.insert(want.end(), c.begin(), c.end());
  CHECK(layer.call({{0, 30, 1}, {30, 1, 2}, {31, 59, 3}}, together) == want);
  CHECK(together == alone);
}

TEST_CASE("a snapshot is the state of the prefix that ends at the last boundary",
          "[kernels][kda]") {
  const Layer layer(15, 2, 32, 200);
  struct Case {
    size_t before, rows, boundary;  // boundary 0: none inside the call
  };
  for (const Case& one : {Case{0, 150, 128},
                          {0, 64, 64},
                          {0, 63, 0},
                          {64, 10, 0},
                          {64, 64, 128},
                          {60, 5, 64},
                          {60, 140, 192},
                          {63, 1, 64}}) {
    auto state = layer.states(3), prefix = layer.states(3);
    if (one.before > 0) layer.call({{0, one.before, 1}}, state);
    layer.call({{one.before, one.rows, 1, 2, static_cast<int32_t>(one.before)}}, state);
    if (one.boundary > 0) layer.call({{0, one.boundary, 2}}, prefix);
    INFO(one.before << " + " << one.rows);
    CHECK(layer.line(state, 2) == layer.line(prefix, 2));
    auto plain = layer.states(3);
    layer.call({{0, one.before + one.rows, 1}}, plain);
    CHECK(layer.line(state, 1) == layer.line(plain, 1));
  }
}

TEST_CASE("no snapshot is written to line zero", "[kernels][kda]") {
  const Layer layer(16, 2, 16, 70);
  auto state = layer.states(2);
  layer.call({{0, 70, 1, 0}}, state);
  CHECK(layer.line(state, 0) == std::vector<std::byte>(layer.line_bytes()));
}

TEST_CASE("the entries without a snapshot compute the same state", "[kernels][kda]") {
  const Layer layer(17, 2, 16, 20);
  kern::Prng prng(1);
  const size_t n = 20 * layer.inner();
  const F32 q = uniform(prng, n, -1, 1), k = q, v = uniform(prng, n, -1, 1),
            alpha = uniform(prng, n, 0, 1), beta = uniform(prng, 20 * 2, 0, 1);
  const I32 lines = {1}, cu_seqlens = {0, 20}, none = {0}, seq_len = {20};
  std::vector<std::vector<std::byte>> states;
  for (const bool snapshot : {false, true}) {
    auto state = layer.states(2);
    F32 o(n);
    const std::string suffix = snapshot ? "_snapshot" : "";
    Entry recurrence("kda", "kern_kda_recurrence" + suffix);
    recurrence.buffer(q).buffer(k).buffer(v).buffer(alpha).buffer(beta).buffer(state).buffer(lines);
    recurrence.buffer(cu_seqlens).buffer(o).i32(2).i32(16).i32(kTaps);
    if (snapshot) recurrence.buffer(none).buffer(seq_len).i32(64);
    recurrence.run({1, 2});
    Entry windows("kda", "kern_kda_windows" + suffix);
    windows.buffer(layer.x).buffer(state).buffer(lines).buffer(cu_seqlens);
    windows.i32(2).i32(16).i32(kTaps).i32(layer.stride());
    if (snapshot) windows.buffer(none).buffer(seq_len).i32(64);
    windows.run({1});
    states.push_back(state);
  }
  CHECK(states[0] == states[1]);
  CHECK(states[0] != layer.states(2));
}

TEST_CASE("a rank's heads give the bytes of those heads in the whole line", "[kernels][kda]") {
  const Layer whole(18, 4, 16, 30);
  auto whole_state = whole.states(2);
  const Bf16 y = whole.call({{0, 30, 1}}, whole_state);
  for (size_t rank = 0; rank < 2; ++rank) {
    Layer part = whole;
    part.heads = 2;
    const size_t own = part.inner(), all = whole.inner(), from = rank * own;
    part.x.clear(), part.r.clear();
    for (size_t row = 0; row < 30; ++row) {
      const auto x = whole.x.begin() + row * whole.stride();
      for (size_t stream = 0; stream < 4; ++stream)
        part.x.insert(part.x.end(), x + stream * all + from, x + stream * all + from + own);
      part.x.insert(part.x.end(), x + 4 * all + rank * 2, x + 4 * all + rank * 2 + 2);
      const auto r = whole.r.begin() + row * all + from;
      part.r.insert(part.r.end(), r, r + own);
    }
    for (F32& taps : part.conv)
      taps.assign(taps.begin() + from * kTaps, taps.begin() + (from + own) * kTaps);
    part.a_log.assign(whole.a_log.begin() + rank * 2, whole.a_log.begin() + rank * 2 + 2);
    part.dt_bias.assign(whole.dt_bias.begin() + from, whole.dt_bias.begin() + from + own);
    auto state = part.states(2);
    const Bf16 got = part.call({{0, 30, 1}}, state);
    for (size_t row = 0; row < 30; ++row)
      for (size_t c = 0; c < own; ++c) CHECK(got[row * own + c] == y[row * all + from + c]);
    const std::byte* rec = whole_state.data() + whole.line_bytes() + from * 16 * 4;
    CHECK(std::memcmp(state.data() + part.line_bytes(), rec, own * 16 * 4) == 0);
  }
}
