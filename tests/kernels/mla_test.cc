#include <catch2/catch.hpp>
#include <cmath>

#include "entry.h"

using namespace kern_test;

namespace {

constexpr size_t kPage = 64;

struct Sequence {
  size_t first, rows;  ///< rows of the whole input fed in this call
  size_t start;        ///< position of the first
};

/// One layer and the rows of its sequences; position p of a sequence is always input row `base +
/// p`.
struct Layer {
  size_t heads, q_lora, kv_lora, rope, nope, v;
  Bf16 x, q, kv_b, q_norm, kv_norm;

  size_t stride() const { return q_lora + kv_lora + rope + heads * v; }
  size_t width() const { return kv_lora + rope; }
  double scale() const { return 1 / std::sqrt(static_cast<double>(nope + rope)); }

  Layer(uint64_t seed, size_t rows, size_t heads = 4, size_t kv_lora = 48, size_t rope = 16)
      : heads(heads), q_lora(40), kv_lora(kv_lora), rope(rope), nope(24), v(20) {
    kern::Prng prng(seed);
    x = normal_bf16(prng, rows * stride(), 1.5);
    q = normal_bf16(prng, rows * heads * (nope + rope), 2);
    kv_b = normal_bf16(prng, heads * (nope + v) * kv_lora, 0.2);
    q_norm = normal_bf16(prng, q_lora, 1);
    kv_norm = normal_bf16(prng, kv_lora, 1);
  }
};

/// One rank's cache and tables: pages are dealt out in a scrambled order, one sequence after
/// another.
struct Cache {
  size_t pages_each, ranks, rank;
  Bf16 rows;
  I32 table;

  Cache(const Layer& layer, size_t seqs, size_t pages_each, size_t ranks = 1, size_t rank = 0)
      : pages_each(pages_each), ranks(ranks), rank(rank) {
    const size_t pages = seqs * pages_each + 1;
    rows.assign(pages * kPage * layer.width(), 0x7FC0);  // whoever reads too far reads NaN
    for (size_t i = 0; i < seqs * pages_each; ++i)
      table.push_back(static_cast<int32_t>(1 + (i * 7 + 3) % (pages - 1)));
  }
  int32_t slot(size_t seq, size_t position) const {
    const size_t row = position / ranks;
    return table[seq * pages_each + row / kPage] * static_cast<int32_t>(kPage) +
           static_cast<int32_t>(row % kPage);
  }
};

struct Call {
  I32 cu_seqlens = {0}, seq_len, slot;
  Bf16 x, q;
  size_t rows = 0;

  Call(const Layer& layer, const std::vector<Sequence>& parts, const Cache& cache) {
    const size_t q_width = layer.heads * (layer.nope + layer.rope);
    for (size_t s = 0; s < parts.size(); ++s) {
      const Sequence& part = parts[s];
      x.insert(x.end(), layer.x.begin() + part.first * layer.stride(),
               layer.x.begin() + (part.first + part.rows) * layer.stride());
      q.insert(q.end(), layer.q.begin() + part.first * q_width,
               layer.q.begin() + (part.first + part.rows) * q_width);
      for (size_t i = 0; i < part.rows; ++i) slot.push_back(cache.slot(s, part.start + i));
      rows += part.rows;
      cu_seqlens.push_back(static_cast<int32_t>(rows));
      seq_len.push_back(static_cast<int32_t>(part.start + part.rows));
    }
  }
};

/// Norms and append; returns the low-rank queries.
Bf16 prep(const Layer& layer, const Call& call, Cache& cache) {
  Bf16 q_lat(call.rows * layer.q_lora);
  Entry entry("mla", "kern_mla_prep");
  entry.buffer(call.x).buffer(layer.q_norm).buffer(layer.kv_norm).buffer(call.slot);
  entry.buffer(call.cu_seqlens).buffer(call.seq_len).buffer(cache.rows).buffer(q_lat);
  entry.i32(layer.q_lora).i32(layer.kv_lora).i32(layer.rope).i32(layer.stride()).f32(1e-6);
  entry.i32(cache.rank).i32(cache.ranks).i32(call.rows).i32(call.seq_len.size()).run({2});
  return q_lat;
}

Bf16 absorb(const Layer& layer, const Call& call) {
  Bf16 q_abs(call.rows * layer.heads * layer.width());
  Entry entry("mla", "kern_mla_absorb");
  entry.buffer(call.q).buffer(layer.kv_b).buffer(q_abs).i32(layer.heads).i32(layer.nope);
  entry.i32(layer.rope).i32(layer.v).i32(layer.kv_lora).i32(call.rows);
  entry.run({static_cast<uint32_t>(layer.heads), 2}, 8 * layer.kv_lora * 4);
  return q_abs;
}

F32 attend(const Layer& layer, const Call& call, const Cache& cache, const Bf16& q_abs,
           uint32_t groups = 2) {
  F32 part(layer.heads * call.rows * (layer.kv_lora + 2));
  Entry entry("mla", "kern_mla_attend");
  entry.buffer(q_abs).buffer(cache.rows).buffer(cache.table).buffer(call.cu_seqlens);
  entry.buffer(call.seq_len).buffer(part).i32(layer.heads).i32(layer.kv_lora).i32(layer.rope);
  entry.i32(kPage).i32(cache.pages_each).f32(layer.scale()).i32(cache.rank).i32(cache.ranks);
  entry.i32(call.rows).i32(call.seq_len.size());
  entry.run({static_cast<uint32_t>(call.rows), groups},
            4 * (kPage * layer.kv_lora + layer.heads * (kPage + layer.kv_lora)));
  return part;
}

/// Parts of all ranks -> gated output of `rank`'s heads out of `ranks` head shares.
Bf16 merge(const Layer& layer, const Call& call, const F32& parts, size_t part_count,
           size_t rank = 0, size_t shares = 1) {
  const size_t own = layer.heads / shares;
  Bf16 y(call.rows * own * layer.v), x;
  const size_t z_width = own * layer.v, z_from = layer.q_lora + layer.width();
  for (size_t row = 0; row < call.rows; ++row) {
    const auto z = call.x.begin() + row * layer.stride() + z_from + rank * z_width;
    x.insert(x.end(), z, z + z_width);
  }
  Entry entry("mla", "kern_mla_merge");
  entry.buffer(parts).buffer(layer.kv_b).buffer(x).buffer(y).i32(own).i32(layer.nope);
  entry.i32(layer.v).i32(layer.kv_lora).i32(z_width).i32(0).i32(rank).i32(part_count);
  entry.i32(call.rows).run({static_cast<uint32_t>(own), 3}, 8 * layer.kv_lora * 2);
  return y;
}

Bf16 run(const Layer& layer, const std::vector<Sequence>& parts, Cache& cache) {
  const Call call(layer, parts, cache);
  prep(layer, call, cache);
  return merge(layer, call, attend(layer, call, cache, absorb(layer, call)), 1);
}

/// The direct form, k and v expanded per head, in f64, of a sequence whose position 0 is input row
/// `base`.
std::vector<double> reference(const Layer& layer, size_t base, size_t row) {
  const size_t positions = row - base + 1;
  std::vector<std::vector<double>> c(positions), k_r(positions);
  for (size_t p = 0; p < positions; ++p) {
    const uint16_t* from = layer.x.data() + (base + p) * layer.stride() + layer.q_lora;
    double squares = 0;
    for (size_t i = 0; i < layer.kv_lora; ++i) squares += double{widen(from[i])} * widen(from[i]);
    const double scale = 1 / std::sqrt(squares / static_cast<double>(layer.kv_lora) + 1e-6);
    for (size_t i = 0; i < layer.kv_lora; ++i)
      c[p].push_back(rounded(widen(layer.kv_norm[i]) * rounded(widen(from[i]) * scale)));
    for (size_t i = 0; i < layer.rope; ++i) k_r[p].push_back(widen(from[layer.kv_lora + i]));
  }
  std::vector<double> y;
  for (size_t h = 0; h < layer.heads; ++h) {
    const uint16_t* q = layer.q.data() + (row * layer.heads + h) * (layer.nope + layer.rope);
    const uint16_t* w = layer.kv_b.data() + h * (layer.nope + layer.v) * layer.kv_lora;
    const auto up = [&](size_t d, size_t p) {
      double sum = 0;
      for (size_t i = 0; i < layer.kv_lora; ++i) sum += widen(w[d * layer.kv_lora + i]) * c[p][i];
      return sum;
    };
    std::vector<double> score(positions), o(layer.v, 0);
    double most = -1e300, total = 0;
    for (size_t p = 0; p < positions; ++p) {
      for (size_t d = 0; d < layer.nope; ++d) score[p] += widen(q[d]) * up(d, p);
      for (size_t d = 0; d < layer.rope; ++d) score[p] += widen(q[layer.nope + d]) * k_r[p][d];
      score[p] *= layer.scale();
      most = std::max(most, score[p]);
    }
    for (size_t p = 0; p < positions; ++p) {
      const double share = std::exp(score[p] - most);
      total += share;
      for (size_t d = 0; d < layer.v; ++d) o[d] += share * up(layer.nope + d, p);
    }
    const uint16_t* z =
        layer.x.data() + row * layer.stride() + layer.q_lora + layer.width() + h * layer.v;
    for (size_t d = 0; d < layer.v; ++d) y.push_back(o[d] / total / (1 + std::exp(-widen(z[d]))));
  }
  return y;
}

}  // namespace

TEST_CASE("absorbed attention agrees with the direct form in double precision", "[kernels][mla]") {
  const Layer layer(21, 200);
  Cache cache(layer, 2, 3);
  const Bf16 y = run(layer, {{0, 150, 0}, {150, 50, 0}}, cache);
  std::vector<double> want;
  for (size_t row = 0; row < 200; ++row) {
    const auto one = reference(layer, row < 150 ? 0 : 150, row);
    want.insert(want.end(), one.begin(), one.end());
  }
  CHECK(difference(y, want).relative < 8e-3);  // q_abs, latent, v, gate and output each round once
}

TEST_CASE("an appended row is the normed latent and the untouched rest", "[kernels][mla]") {
  const Layer layer(22, 3);
  Cache cache(layer, 1, 1);
  const Call call(layer, {{0, 3, 0}}, cache);
  const Bf16 q_lat = prep(layer, call, cache);
  Bf16 latent, want(3 * layer.kv_lora), q_want(3 * layer.q_lora), q_in;
  for (size_t row = 0; row < 3; ++row) {
    const auto from = layer.x.begin() + row * layer.stride();
    q_in.insert(q_in.end(), from, from + layer.q_lora);
    latent.insert(latent.end(), from + layer.q_lora, from + layer.q_lora + layer.kv_lora);
  }
  Entry("norm", "kern_rms")
      .buffer(latent)
      .buffer(layer.kv_norm)
      .buffer(want)
      .f32(1e-6)
      .i32(layer.kv_lora)
      .i32(3)
      .run({1});
  Entry("norm", "kern_rms")
      .buffer(q_in)
      .buffer(layer.q_norm)
      .buffer(q_want)
      .f32(1e-6)
      .i32(layer.q_lora)
      .i32(3)
      .run({1});
  CHECK(q_lat == q_want);
  for (size_t row = 0; row < 3; ++row) {
    const uint16_t* at = cache.rows.data() + size_t(cache.slot(0, row)) * layer.width();
    CHECK(std::memcmp(at, want.data() + row * layer.kv_lora, layer.kv_lora * 2) == 0);
    const uint16_t* k_r = layer.x.data() + row * layer.stride() + layer.q_lora + layer.kv_lora;
    CHECK(std::memcmp(at + layer.kv_lora, k_r, layer.rope * 2) == 0);
  }
}

TEST_CASE("attention gives the same bytes wherever calls are cut and in any company",
          "[kernels][mla]") {
  const Layer layer(23, 260);
  Cache whole_cache(layer, 2, 4);
  const Bf16 whole = run(layer, {{0, 190, 0}, {190, 70, 0}}, whole_cache);
  const size_t width = layer.heads * layer.v;
  Cache cache(layer, 2, 4);
  Bf16 first, second;
  for (size_t at = 0; at < 70; ++at) {  // one row of each at a time, then the rest of the first
    const Bf16 y = run(layer, {{at, 1, at}, {190 + at, 1, at}}, cache);
    first.insert(first.end(), y.begin(), y.begin() + width);
    second.insert(second.end(), y.begin() + width, y.end());
  }
  Cache alone = cache;
  const Bf16 rest = run(layer, {{70, 120, 70}}, alone);
  first.insert(first.end(), rest.begin(), rest.end());
  CHECK(first == Bf16(whole.begin(), whole.begin() + 190 * width));
  CHECK(second == Bf16(whole.begin() + 190 * width, whole.end()));
}

TEST_CASE("how heads are grouped into blocks changes nothing", "[kernels][mla]") {
  const Layer layer(24, 80, 6);
  Cache cache(layer, 1, 2);
  const Call call(layer, {{0, 80, 0}}, cache);
  prep(layer, call, cache);
  const Bf16 q_abs = absorb(layer, call);
  const F32 want = attend(layer, call, cache, q_abs, 1);
  CHECK(attend(layer, call, cache, q_abs, 2) == want);
  CHECK(attend(layer, call, cache, q_abs, 6) == want);
}

TEST_CASE("positions shared out over ranks merge to the whole", "[kernels][mla]") {
  const Layer layer(25, 150);
  Cache whole_cache(layer, 1, 3);
  const Bf16 whole = run(layer, {{0, 150, 0}}, whole_cache);
  for (const size_t ranks : {2u, 4u}) {
    F32 parts;
    Call call(layer, {{0, 150, 0}}, whole_cache);
    const Bf16 q_abs = absorb(layer, call);
    for (size_t rank = 0; rank < ranks; ++rank) {
      Cache cache(layer, 1, 3, ranks, rank);
      const Call own(layer, {{0, 150, 0}}, cache);
      prep(layer, own, cache);
      const F32 part = attend(layer, own, cache, q_abs);
      parts.insert(parts.end(), part.begin(), part.end());
    }
    std::vector<double> want;
    for (const uint16_t one : whole) want.push_back(widen(one));
    const Bf16 merged = merge(layer, call, parts, ranks);
    CHECK(difference(merged, want).relative < 3e-3);
    // position 0 lives on rank 0 alone: its row has one part with positions, and is exact
    CHECK(std::equal(merged.begin(), merged.begin() + layer.heads * layer.v, whole.begin()));
  }
}

TEST_CASE("a rank merges its own share of the heads to the bytes of the whole", "[kernels][mla]") {
  const Layer layer(26, 40);
  Cache cache(layer, 1, 1);
  const Call call(layer, {{0, 40, 0}}, cache);
  prep(layer, call, cache);
  const F32 part = attend(layer, call, cache, absorb(layer, call));
  const Bf16 whole = merge(layer, call, part, 1);
  const size_t share = part.size() / 2, own = layer.heads / 2 * layer.v;
  for (size_t rank = 0; rank < 2; ++rank) {
    const F32 heads(part.begin() + rank * share, part.begin() + (rank + 1) * share);
    const Bf16 y = merge(layer, call, heads, 1, rank, 2);
    for (size_t row = 0; row < 40; ++row)
      for (size_t i = 0; i < own; ++i)
        CHECK(y[row * own + i] == whole[row * 2 * own + rank * own + i]);
  }
}

TEST_CASE("a NaN row poisons its own sequence's later rows only", "[kernels][mla]") {
  Layer layer(27, 60);
  Cache clean_cache(layer, 2, 1);
  const Bf16 clean = run(layer, {{0, 30, 0}, {30, 30, 0}}, clean_cache);
  layer.x[10 * layer.stride() + layer.q_lora + 3] = 0x7FC0;
  Cache cache(layer, 2, 1);
  const Bf16 dirty = run(layer, {{0, 30, 0}, {30, 30, 0}}, cache);
  const size_t width = layer.heads * layer.v;
  for (size_t row = 0; row < 60; ++row) {
    const bool poisoned = row >= 10 && row < 30;
    for (size_t i = row * width; i < (row + 1) * width; ++i) {
      if (poisoned)
        CHECK(std::isnan(widen(dirty[i])));
      else
        CHECK(dirty[i] == clean[i]);
    }
  }
}
