/// Routing, and the routed MXFP4 experts.

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "families.h"
#include "host_twins.h"

namespace kern_device {

namespace {

constexpr Tolerance kSame = {.relative_rms = 0};  // equal numbers; a NaN's payload is nobody's
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

uint32_t blocks_for(size_t rows) {
  return static_cast<uint32_t>(std::min<size_t>(rows, 132 * 8));
}

// ---- the router ----

void route(Check& c, const F32& logits, const F32& bias, size_t top_k, bool renormalize = true,
           double scaling = 1) {
  const size_t experts = bias.size(), rows = logits.size() / experts;
  Buffer l = c.in(logits), b = c.in(bias), ids = c.out<int32_t>(rows * top_k, 0xA5),
         weights = c.out<float>(rows * top_k);
  const Args args = {
      l, b, ids, weights, i32(experts), i32(top_k), i32(renormalize), f32(scaling), i32(rows)};
  run_on_host(kern_router, {64}, experts * 4, args);
  Kernel kernel = {"moe-router", "kern_router", {}};
  kernel.shape.block = {128, 1, 1};
  for (const uint32_t blocks : {blocks_for(rows), blocks_for((rows + 3) / 4), 3u}) {  // any grid
    kernel.shape.grid = {blocks, 1, 1};
    c.device(kernel, args);
    c.same("ids", ids);
    c.close("weights", weights, Dtype::f32, kSame);
  }
}

void router_checks(Suite& suite) {
  for (const auto& [experts, top_k, rows] : {std::tuple<size_t, size_t, size_t>{896, 16, 1},
                                             {896, 16, 65},
                                             {896, 16, 4100},
                                             {224, 16, 64},
                                             {16, 4, 63},
                                             {1024, 64, 9},
                                             {33, 33, 5},
                                             {8, 1, 3}}) {
    if (suite.is_small() && rows > 10) continue;
    suite.check(fmt::format("moe router experts={} top_k={} rows={}", experts, top_k, rows),
                [experts = experts, top_k = top_k, rows = rows](Check& c) {
                  route(c, normal(c.prng, rows * experts, 2), normal(c.prng, experts, 0.3), top_k);
                });
  }
  kern::Prng draw = suite.draws("router");
  for (const size_t rows : suite.lengths(draw, 6, 3000)) {
    const size_t experts = 1 + draw.below(suite.is_small() ? 90 : 1024),
                 top_k = 1 + draw.below(std::min<size_t>(experts, 64));
    const bool is_coarse = draw.below(2) == 0;
    suite.check(fmt::format("moe router, drawn: experts={} top_k={} rows={}{}", experts, top_k,
                            rows, is_coarse ? ", many equal" : ""),
                [=](Check& c) {
                  F32 logits = normal(c.prng, rows * experts, 4);
                  if (is_coarse)
                    for (float& logit : logits) logit = std::round(logit);
                  route(c, logits, normal(c.prng, experts, is_coarse ? 0 : 0.3), top_k, true, 2.5);
                });
  }
  suite.check("moe router: ties, in and across lanes, go to the lower expert", [&](Check& c) {
    F32 logits((suite.is_small() ? 4 : 40) * 896), bias(896, 0.0F);
    for (float& logit : logits) logit = static_cast<float>(c.prng.below(5)) - 2;
    route(c, logits, bias, 16);
    route(c, F32(2 * 896, -60.0F), bias, 16);
    route(c, F32(896, 0.0F), F32(896, -0.0F), 16);
  });
  suite.check("moe router: biases below every score, without renormalisation, scaled",
              [](Check& c) {
                route(c, normal(c.prng, 7 * 896, 2), uniform(c.prng, 896, -9, -3), 16, false, 2.5);
              });
  suite.check("moe router: NaN and infinite logits stay in their row", [](Check& c) {
    F32 logits = normal(c.prng, 6 * 896, 2);
    std::fill(logits.begin() + 896, logits.begin() + 2 * 896, kNan);
    logits[3 * 896 + 5] = kNan;
    logits[4 * 896 + 6] = std::numeric_limits<float>::infinity();
    logits[4 * 896 + 7] = -std::numeric_limits<float>::infinity();
    for (size_t e = 10; e < 896; ++e) logits[5 * 896 + e] = kNan;  // fewer numbers than choices
    route(c, logits, normal(c.prng, 896, 0.3), 16);
  });
}

// ---- the plan ----

/// Distinct experts for each row, ascending, out of `experts`.
I32 random_ids(kern::Prng& prng, size_t rows, size_t top_k, size_t experts) {
  I32 ids;
  for (size_t row = 0; row < rows; ++row) {
    std::set<int32_t> chosen;
    while (chosen.size() < top_k) chosen.insert(static_cast<int32_t>(prng.below(experts)));
    ids.insert(ids.end(), chosen.begin(), chosen.end());
  }
  return ids;
}

Kernel plan_kernel(size_t experts) {
  Kernel kernel = {"moe-plan", "kern_moe_plan", {}};
  kernel.shape.grid = {8, 1, 1}, kernel.shape.cluster = {8, 1, 1},
  kernel.shape.block = {1024, 1, 1};
  kernel.shape.shared_bytes = static_cast<uint32_t>((experts * 34 + 2) * 4);
  return kernel;
}

/// What the device's plan leaves for the products.
struct Plan {
  Buffer first, place, row_of, tiles, tile_count;

  Plan(Check& c, const I32& ids, size_t experts, size_t top_k, size_t rank, size_t tile_rows)
      : first(c.out<int32_t>(experts + 1, 0xA5)),
        place(c.out<int32_t>(ids.size(), 0xA5)),
        row_of(c.out<int32_t>(ids.size(), 0xA5)),
        tiles(c.out<int32_t>(ids.size() * 3, 0xA5)),
        tile_count(c.out<int32_t>(1, 0xA5)) {
    Buffer in = c.in(ids);
    const size_t rows = ids.size() / top_k;
    c.device(plan_kernel(experts), {in, first, place, row_of, tiles, tile_count, i32(experts),
                                    i32(top_k), i32(rank), i32(rows), i32(tile_rows)});
    run_on_host(kern_moe_plan, {1}, 0,
                {in, first, place, i32(experts), i32(top_k), i32(rank), i32(rows)});
    judge(c, top_k, tile_rows);
  }

  void judge(Check& c, size_t top_k, size_t tile_rows) {
    c.same("first", first);
    c.same("place", place);
    I32 rows(place.bytes() / 4, 0xA5A5A5A5), cut(tiles.bytes() / 4, 0xA5A5A5A5);
    const I32 places = place.from_host<int32_t>(), begins = first.from_host<int32_t>();
    for (size_t pick = 0; pick < places.size(); ++pick)
      if (places[pick] >= 0) rows[places[pick]] = static_cast<int32_t>(pick / top_k);
    int32_t count = 0;
    const auto most = static_cast<int32_t>(tile_rows);
    for (size_t e = 0; e + 1 < begins.size(); ++e) {
      const int32_t all = begins[e + 1] - begins[e], wanted = (all + most - 1) / most;
      const int32_t piece = wanted > 0 ? ((all + wanted - 1) / wanted + 7) / 8 * 8 : 8;
      for (int32_t at = 0; at < all; at += piece, ++count) {
        cut[3 * count] = static_cast<int32_t>(e), cut[3 * count + 1] = begins[e] + at;
        cut[3 * count + 2] = std::min(piece, all - at);
        if (cut[3 * count + 2] > most) c.fail("a tile of too many picks");
      }
    }
    c.same("row_of", row_of.from_device<int32_t>(), rows);
    c.same("tiles", tiles.from_device<int32_t>(), cut);
    c.same("tile_count", tile_count.from_device<int32_t>(), I32{count});
    for (const Buffer* buffer : {&row_of, &tiles, &tile_count})
      if (!buffer->guard_is_whole()) c.fail("written past its end");
  }
};

void plan_checks(Suite& suite) {
  for (const size_t rows : {1, 2, 63, 64, 65, 500, 8192})
    for (const size_t tile_rows : {8, 80})
      if (!suite.is_small() || (rows == 65 && tile_rows == 8))
        suite.check(fmt::format("moe plan rows={} tile_rows={}", rows, tile_rows), [=](Check& c) {
          const I32 ids = random_ids(c.prng, rows, 16, 896);
          Plan(c, ids, 896, 16, 0, tile_rows);
          Plan(c, ids, 112, 16, 3, tile_rows);
        });
  suite.check("moe plan: all to one expert, none to this rank, two experts in all", [&](Check& c) {
    Plan(c, I32(3000, 7), suite.is_small() ? 9 : 896, 1, 0, 80);
    Plan(c, I32(640, 7), 8, 16, 1, 8);
    Plan(c, random_ids(c.prng, 77, 1, 2), 2, 1, 0, 8);
    if (!suite.is_small()) Plan(c, random_ids(c.prng, 40, 4, 1024), 1024, 4, 0, 80);
  });
  kern::Prng draw = suite.draws("plan");
  for (const size_t rows : suite.lengths(draw, 6, 9000)) {
    const size_t experts = 1 + draw.below(suite.is_small() ? 50 : 1024),
                 top_k = 1 + draw.below(std::min<size_t>(experts, 64)), ranks = 1 + draw.below(9),
                 rank = draw.below(ranks);
    for (const size_t tile_rows : {8, 80}) {
      if (suite.is_small() && (rows == 1) == (tile_rows == 8)) continue;
      suite.check(fmt::format("moe plan, drawn: rows={} top_k={} of {} experts, rank {} of {}",
                              rows, top_k, experts * ranks, rank, ranks),
                  [=](Check& c) {
                    Plan(c, random_ids(c.prng, rows, top_k, experts * ranks), experts, top_k, rank,
                         tile_rows);
                  });
    }
  }
}

// ---- the products ----

/// One packed matrix an expert, [expert][out][in].
struct Packed {
  U8 nibbles, scales;
  Packed(kern::Prng& prng, size_t experts, size_t out, size_t in, int low_scale, int scales_above)
      : nibbles(experts * out * in / 2), scales(experts * out * in / 32) {
    for (size_t i = 0; i < nibbles.size(); i += 8) {
      const uint64_t bits = prng.next();
      std::memcpy(&nibbles[i], &bits, std::min<size_t>(8, nibbles.size() - i));
    }
    for (uint8_t& byte : scales)
      byte = static_cast<uint8_t>(low_scale + int(prng.below(scales_above)));
  }
};

struct Experts {
  size_t count, width, inter;
  Packed w1, w3, w2;
  Experts(kern::Prng& prng, size_t count, size_t width, size_t inter, int low_scale = 118,
          int scales_above = 5)
      : count(count),
        width(width),
        inter(inter),
        w1(prng, count, inter, width, low_scale, scales_above),
        w3(prng, count, inter, width, low_scale, scales_above),
        w2(prng, count, width, inter, low_scale, scales_above) {}
};

Kernel product_kernel(const char* entry, size_t tile_rows, uint32_t blocks = 0) {
  if (blocks == 0) blocks = tile_rows == 8 ? 4 * 132 : 132;  // as many as are resident
  Kernel kernel = {"moe-experts+ROWS=" + std::to_string(tile_rows), entry, {}};
  kernel.shape.grid = {blocks, 1, 1}, kernel.shape.block = {tile_rows == 8 ? 128u : 256u, 1, 1};
  kernel.shape.shared_bytes = tile_rows == 8 ? 1536 : 221184;
  return kernel;
}

Kernel row_kernel(const char* entry, size_t rows) {
  Kernel kernel = {"moe-combine", entry, {}};
  kernel.shape.grid = {blocks_for(rows), 1, 1}, kernel.shape.block = {448, 1, 1};
  return kernel;
}

/// Columns 0 4 1 5 2 6 3 7 of every eight back in their order.
Bf16 straight(const Bf16& interleaved) {
  Bf16 out(interleaved.size());
  for (size_t i = 0; i < out.size(); ++i) {
    const size_t in_eight = i % 8;
    out[i] = interleaved[i - in_eight + (in_eight < 4 ? 2 * in_eight : 2 * in_eight - 7)];
  }
  return out;
}

struct Result {
  Bf16 act, y;
  F32 partial;
};

/// The whole op on the device; with `judge` every launch is compared with the host's.
class RoutedOp {
 public:
  RoutedOp(Check& c, const Experts& experts, const Bf16& z, const I32& ids, const F32& weights,
           size_t top_k)
      : c_(c),
        e_(experts),
        z_(c.in(z)),
        ids_(ids),
        weights_(c.in(weights)),
        top_k_(top_k),
        rows_(ids.size() / top_k) {}

  Result run(size_t tile_rows, bool judge, uint32_t blocks = 0) {
    const size_t picks = ids_.size(), stride = e_.width + 8;
    Plan plan(c_, ids_, e_.count, top_k_, 0, tile_rows);
    Buffer x = c_.out<uint16_t>(rows_ * e_.width), act = c_.out<uint16_t>(picks * e_.inter),
           y = c_.out<uint16_t>(picks * e_.width), partial = c_.out<float>(rows_ * stride);
    Buffer w1 = c_.in(e_.w1.nibbles), s1 = c_.in(e_.w1.scales), w3 = c_.in(e_.w3.nibbles),
           s3 = c_.in(e_.w3.scales), w2 = c_.in(e_.w2.nibbles), s2 = c_.in(e_.w2.scales);
    c_.device(row_kernel("kern_moe_interleave", rows_), {z_, x, i32(e_.width), i32(rows_)});
    c_.device(product_kernel("kern_moe_up", tile_rows, blocks),
              {x, plan.row_of, plan.tiles, plan.tile_count, w1, s1, w3, s3, act, i32(e_.width),
               i32(e_.inter), f32(4), f32(25)});
    c_.device(product_kernel("kern_moe_down", tile_rows, blocks),
              {act, plan.tiles, plan.tile_count, w2, s2, y, i32(e_.width), i32(e_.inter)});
    const Args combine = {y,           plan.place,  weights_,  partial, i32(e_.width),
                          i32(top_k_), i32(stride), i32(rows_)};
    c_.device(row_kernel("kern_moe_combine", rows_), combine);
    for (const Buffer* buffer : {&x, &act, &y, &partial})
      if (!buffer->guard_is_whole()) c_.fail("written past its end");
    Result result = {straight(act.from_device<uint16_t>()), y.from_device<uint16_t>(),
                     partial.from_device<float>()};
    if (judge) compare(result, plan, combine, y, partial, {&w1, &s1, &w3, &s3, &w2, &s2});
    return result;
  }

 private:
  struct Weights {
    Buffer *w1, *s1, *w3, *s3, *w2, *s2;
  };
  /// Each launch against the host's, from the device's own input.
  void compare(const Result& got, Plan& plan, const Args& combine, Buffer& y, Buffer& partial,
               const Weights& w) {
    const size_t picks = ids_.size();
    Buffer x = c_.out<uint16_t>(picks * e_.width), act = c_.out<uint16_t>(picks * e_.inter),
           up = c_.out<uint16_t>(picks * e_.inter);
    const uint32_t tiles = 16, experts = static_cast<uint32_t>(e_.count);
    run_on_host(kern_moe_gather, {8}, 0,
                {z_, plan.place, x, i32(e_.width), i32(top_k_), i32(rows_)});
    run_on_host(kern_moe_up, {experts, tiles}, (e_.inter / tiles + 1) * e_.width * 2,
                {x, plan.first, *w.w1, *w.s1, *w.w3, *w.s3, act, up, i32(e_.width), i32(e_.inter),
                 f32(4), f32(25)});
    Buffer got_act(c_.in(got.act));
    std::swap_ranges(act.host(), act.host() + act.bytes(),
                     got_act.host());  // the twin's beside the device's
    // Another order of f32 sums turns a rounding of W1 x or W3 x now and then. One ulp of a gate in
    // [-8, -4), 2^-5, changes its sigmoid by e^(2^-5): 8 ulps of the result, and it rounds once
    // more. Below -8 the result is small: its change is within the absolute part.
    c_.close("act", got_act, Dtype::bf16, {.ulps = 9, .absolute = 2e-3, .relative_rms = 2e-3});
    Buffer own_act = c_.in(got.act);
    run_on_host(kern_moe_down, {experts, tiles}, (e_.width / tiles + 1) * e_.inter * 2,
                {own_act, plan.first, *w.w2, *w.s2, y, i32(e_.width), i32(e_.inter)});
    c_.close("y", y, Dtype::bf16, {.ulps = 3, .absolute = 2e-3, .relative_rms = 2e-3});
    Buffer own_y = c_.in(got.y);
    Args same_y = combine;
    same_y[0] = own_y;
    run_on_host(kern_moe_combine, {8}, 0, same_y);
    c_.close("partial", partial, Dtype::f32, kSame);
  }

  Check& c_;
  const Experts& e_;
  Buffer z_;
  I32 ids_;
  Buffer weights_;
  size_t top_k_, rows_;
};

/// The sum alone, over more picks than the products are tried with, some of them another rank's.
void combine_checks(Suite& suite) {
  kern::Prng draw = suite.draws("combine");
  for (const size_t rows : suite.lengths(draw, 3, 2500))
    for (const size_t top_k : {size_t{1}, 2 + draw.below(62), size_t{64}}) {
      const size_t width = 8 * (1 + draw.below(suite.is_small() ? 20 : 100)), stride = width + 16;
      suite.check(
          fmt::format("moe combine rows={} top_k={} width={}", rows, top_k, width), [=](Check& c) {
            I32 places(rows * top_k);
            int32_t next = 0;
            for (int32_t& place : places) place = c.prng.below(3) == 0 ? -1 : next++;
            std::fill_n(places.begin(), top_k, -1);  // a row that is all another rank's
            Buffer y = c.in(normal_bf16(c.prng, rows * top_k * width, 1)), place = c.in(places),
                   weights = c.in(uniform(c.prng, rows * top_k, 0, 1)),
                   partial = c.out<float>(rows * stride);
            const Args args = {y,          place,      weights,     partial,
                               i32(width), i32(top_k), i32(stride), i32(rows)};
            run_on_host(kern_moe_combine, {8}, 0, args);
            c.device(row_kernel("kern_moe_combine", rows), args);
            c.close("partial", partial, Dtype::f32, kSame);
          });
    }
}

void product_checks(Suite& suite) {
  struct Size {
    size_t experts, top_k, rows, width, inter;
  };
  std::vector<Size> sizes = {{16, 4, 63, 64, 96}, {8, 8, 9, 32, 32}};
  if (!suite.is_small())
    sizes.insert(sizes.end(), {{16, 4, 64, 512, 256},
                               {4, 2, 1, 3584, 3072},
                               {4, 2, 65, 3584, 3072},
                               {2, 1, 200, 3584, 384},
                               {64, 2, 17, 160, 224},
                               {3, 3, 130, 1056, 544}});
  kern::Prng draw = suite.draws("experts");
  for (const size_t rows : suite.lengths(draw, 4, 250)) {  // experts without a pick among them
    const size_t experts = 1 + draw.below(12), top_k = 1 + draw.below(std::min<size_t>(experts, 4)),
                 most = suite.is_small() ? 3 : 24;
    const size_t width = 32 * (1 + draw.below(most)), inter = 32 * (1 + draw.below(most));
    sizes.push_back({experts, top_k, rows, width, inter});
  }
  for (const Size& s : sizes)
    for (const size_t tile_rows : {8, 80})
      suite.check(fmt::format("moe experts={} top_k={} rows={} width={} inter={} tile_rows={}",
                              s.experts, s.top_k, s.rows, s.width, s.inter, tile_rows),
                  [=](Check& c) {
                    const Experts experts(c.prng, s.experts, s.width, s.inter);
                    const I32 ids = random_ids(c.prng, s.rows, s.top_k, s.experts);
                    RoutedOp(c, experts, normal_bf16(c.prng, s.rows * s.width, 1), ids,
                             uniform(c.prng, ids.size(), 0, 1), s.top_k)
                        .run(tile_rows, true);
                  });
  suite.check("moe experts: every scale there is, NaN included, and rows that reach far apart",
              [&](Check& c) {
                for (const int low : {0, 60, 120, 127, 128, 135, 251}) {
                  if (suite.is_small() && low != 0 && low != 128 && low != 251) continue;
                  Experts experts(c.prng, 3, 96, 64, low, low == 251 ? 5 : 8);
                  if (low == 251)
                    experts.w2 = Packed(c.prng, 3, 96, 64, 118, 8);  // sums stay in range
                  Bf16 z = normal_bf16(c.prng, 20 * 96, 1);
                  for (size_t i = 0; i < (low == 251 ? z.size() : 96); ++i)
                    z[i] = narrow(widen(z[i]) * 1e-20);
                  const I32 ids = random_ids(c.prng, 20, 2, 3);
                  RoutedOp(c, experts, z, ids, uniform(c.prng, 40, 0, 1), 2)
                      .run(low % 2 == 0 ? 8 : 80, true);
                }
              });
  suite.check("moe experts: all rows to one expert, the others empty", [&](Check& c) {
    const Experts experts(c.prng, 5, 256, 128);
    for (const size_t rows : {1, 8, 9, 63, 64, 65, 80, 81, 129, 200})
      if (!suite.is_small() || rows == 81)
        for (const size_t tile_rows : {8, 80})
          RoutedOp(c, experts, normal_bf16(c.prng, rows * 256, 1), I32(rows, 3), F32(rows, 0.5F), 1)
              .run(tile_rows, true);
  });
  suite.check(
      "moe experts: every code at every scale decodes to the host's very bits", [&](Check& c) {
        const size_t in = 64, out = suite.is_small() ? 256 : 4096,
                     picks = in;  // pick k is 1 at k and 0 elsewhere
        Packed w(c.prng, 1, out, in, 0, 255);
        Bf16 x(picks * in, 0);
        for (size_t k = 0; k < in; ++k) x[k * in + k] = narrow(1);
        for (const size_t tile_rows : {8, 80}) {
          Plan plan(c, I32(picks, 0), 1, 1, 0, tile_rows);
          Buffer z = c.in(x), act = c.out<uint16_t>(picks * in), packed = c.in(w.nibbles),
                 scales = c.in(w.scales), y = c.out<uint16_t>(picks * out);
          c.device(row_kernel("kern_moe_interleave", picks), {z, act, i32(in), i32(picks)});
          c.device(product_kernel("kern_moe_down", tile_rows),
                   {act, plan.tiles, plan.tile_count, packed, scales, y, i32(out), i32(in)});
          run_on_host(kern_moe_down, {1, 8}, out / 8 * in * 2,
                      {z, plan.first, packed, scales, y, i32(out), i32(in)});
          c.close("y", y, Dtype::bf16,
                  kSame);  // the largest overflow, and infinity times 0 is a NaN
        }
      });
  if (suite.is_small()) return;
  suite.check("moe experts: whole numbers give the host's very bytes", [](Check& c) {
    const Experts experts(c.prng, 2, 3584, 128, 128, 1);
    Bf16 z(70 * 3584);
    for (uint16_t& v : z) v = narrow(double(c.prng.below(9)) - 4);
    const I32 ids = random_ids(c.prng, 70, 1, 2);
    for (const size_t tile_rows : {8, 80}) {
      Plan plan(c, ids, 2, 1, 0, tile_rows);
      Buffer act = c.out<uint16_t>(70 * 3584);  // down alone: exact sums, one rounding
      Buffer in = c.in(z), w = c.in(experts.w2.nibbles), s = c.in(experts.w2.scales),
             y = c.out<uint16_t>(70 * 3584);
      c.device(row_kernel("kern_moe_interleave", 70), {in, act, i32(3584), i32(70)});
      // w2 is [2, 3584, 128] = [2, 128, 3584] of other rows
      Buffer narrow_y = c.out<uint16_t>(70 * 128);
      c.device(product_kernel("kern_moe_down", tile_rows),
               {act, plan.tiles, plan.tile_count, w, s, narrow_y, i32(128), i32(3584)});
      run_on_host(kern_moe_down, {2, 4}, 33 * 3584 * 2,
                  {in, plan.first, w, s, narrow_y, i32(128), i32(3584)});
      c.same("y", narrow_y);
    }
  });
  if (suite.is_small()) return;
  suite.check(
      "moe experts: a row's bytes do not depend on its company, the tile or the grid",
      [](Check& c) {
        const size_t width = 3584, inter = 256, rows = 150, top_k = 2;
        const Experts experts(c.prng, 3, width, inter);
        const Bf16 z = normal_bf16(c.prng, rows * width, 1);
        const I32 ids = random_ids(c.prng, rows, top_k, 3);
        const F32 weights = uniform(c.prng, ids.size(), 0, 1);
        const Result whole = RoutedOp(c, experts, z, ids, weights, top_k).run(80, false);
        c.same("tiles of 8", RoutedOp(c, experts, z, ids, weights, top_k).run(8, false).partial,
               whole.partial);
        c.same("grid 5", RoutedOp(c, experts, z, ids, weights, top_k).run(80, false, 5).partial,
               whole.partial);
        for (const auto& [first, last] : {std::pair<size_t, size_t>{0, 1}, {30, 77}, {149, 150}})
          for (const size_t tile_rows : {8, 80})
            c.same(fmt::format("rows {} to {} in tiles of {}", first, last, tile_rows),
                   RoutedOp(c, experts, rows_of(z, width, first, last),
                            rows_of(ids, top_k, first, last), rows_of(weights, top_k, first, last),
                            top_k)
                       .run(tile_rows, false)
                       .partial,
                   rows_of(whole.partial, width + 8, first, last));
      });
}

// ---- benches ----

/// One of eight ranks of the full model: 112 of 896 experts, about a fraction of the picks.
struct RankShape {
  static constexpr size_t kExperts = 112, kAll = 896, kTopK = 16, kWidth = 3584, kInter = 3072;
  static constexpr double kExpertBytes = 3.0 * kWidth * kInter * (0.5 + 1.0 / 32);
};

I32 bench_ids(size_t set, size_t rows) {
  kern::Prng prng(1000 + set);
  return random_ids(prng, rows, RankShape::kTopK, RankShape::kAll);
}

/// Weights that every set of a bench shares: larger than any cache.
const std::vector<DeviceOnly>& bench_weights(Gpu& gpu) {
  static std::vector<DeviceOnly> weights;
  if (weights.empty())
    for (int matrix = 0; matrix < 3; ++matrix) {
      const int64_t values = int64_t{RankShape::kExperts} * RankShape::kWidth * RankShape::kInter;
      weights.push_back(gpu.repeated(random_bytes(0, 255), values / 2));
      weights.push_back(gpu.repeated(random_bytes(118, 122), values / 32));
    }
  return weights;
}

enum class Part { plan, up, down, combine, all };

void bench_experts(Suite& suite, Part part, const char* name, size_t rows, size_t tile_rows) {
  using R = RankShape;
  double distinct = 0, picks = 0;
  const size_t judged = rows > 1000 ? 1 : 8;
  for (size_t set = 0; set < judged; ++set) {
    std::set<int32_t> seen;
    for (const int32_t id : bench_ids(set, rows))
      if (id < int32_t(R::kExperts)) seen.insert(id), picks += 1.0 / double(judged);
    distinct += double(seen.size()) / double(judged);
  }
  const double weight_bytes = distinct * R::kExpertBytes, wide = 2.0 * R::kWidth,
               inner = 2.0 * R::kInter;
  Bench bench = {name, fmt::format("rows={} of 896 experts 112, picks {:.0f}, tiles of {}", rows,
                                   picks, tile_rows)};
  const double up_flops = 4 * picks * R::kWidth * R::kInter, down_flops = up_flops / 2;
  const double up_bytes = weight_bytes * 2 / 3 + double(rows) * wide + picks * inner;
  const double down_bytes = weight_bytes / 3 + picks * (inner + wide);
  const double combine_bytes = picks * wide + double(rows) * 2 * wide;
  if (part == Part::plan) bench.bytes = double(rows) * R::kTopK * 12;
  if (part == Part::up) bench.bytes = up_bytes, bench.flops = up_flops;
  if (part == Part::down) bench.bytes = down_bytes, bench.flops = down_flops;
  if (part == Part::combine) bench.bytes = combine_bytes;
  if (part == Part::all)
    bench.bytes = weight_bytes + double(rows) * wide * 3, bench.flops = up_flops + down_flops;
  size_t set = 0;
  suite.bench(bench, [=](Gpu& gpu) mutable {
    Step step;
    const I32 ids = bench_ids(rows > 1000 ? 0 : set++, rows);
    const int64_t all = static_cast<int64_t>(ids.size());
    const auto own = [&](std::span<const std::byte> pattern, int64_t bytes) {
      step.memory.push_back(gpu.repeated(pattern, bytes));
    };
    own(std::as_bytes(std::span(ids)), all * 4);
    for (const int64_t count : {int64_t{R::kExperts} + 1, all, all, 3 * all, int64_t{1}})
      own(random_f32(), count * 4);
    own(random_bf16(), rows * R::kWidth * 2), own(random_bf16(), rows * R::kWidth * 2);
    own(random_bf16(), all * R::kInter * 2), own(random_bf16(), all * R::kWidth * 2);
    own(random_f32(), all * 4), own(random_f32(), rows * R::kWidth * 4);
    const auto& m = step.memory;
    const auto& w = bench_weights(gpu);
    const Step::Launch plan = {plan_kernel(R::kExperts),
                               {m[0], m[1], m[2], m[3], m[4], m[5], i32(R::kExperts), i32(R::kTopK),
                                i32(0), i32(rows), i32(tile_rows)}};
    const Step::Launch interleave = {row_kernel("kern_moe_interleave", rows),
                                     {m[6], m[7], i32(R::kWidth), i32(rows)}};
    const Step::Launch up = {product_kernel("kern_moe_up", tile_rows),
                             {m[7], m[3], m[4], m[5], w[0], w[1], w[2], w[3], m[8], i32(R::kWidth),
                              i32(R::kInter), f32(4), f32(25)}};
    const Step::Launch down = {
        product_kernel("kern_moe_down", tile_rows),
        {m[8], m[4], m[5], w[4], w[5], m[9], i32(R::kWidth), i32(R::kInter)}};
    const Step::Launch combine = {
        row_kernel("kern_moe_combine", rows),
        {m[9], m[2], m[10], m[11], i32(R::kWidth), i32(R::kTopK), i32(R::kWidth), i32(rows)}};
    gpu.launch(plan.kernel, plan.args);
    gpu.synchronize();
    if (part == Part::plan) step.launches = {plan};
    if (part == Part::up) step.launches = {up};
    if (part == Part::down) step.launches = {down};
    if (part == Part::combine) step.launches = {combine};
    if (part == Part::all) step.launches = {plan, interleave, up, down, combine};
    return step;
  });
}

void benches(Suite& suite) {
  for (const size_t rows : {1, 64, 8192}) {
    suite.bench(
        {"router", fmt::format("rows={} experts=896 top_k=16", rows),
         double(rows) * (896 * 4 + 128), 0},
        [=](Gpu& gpu) {
          Step step;
          step.memory.push_back(gpu.repeated(random_f32(), rows * 896 * 4));
          step.memory.push_back(gpu.repeated(random_f32(), 896 * 4));
          step.memory.push_back(gpu.repeated(random_f32(), rows * 64));
          step.memory.push_back(gpu.repeated(random_f32(), rows * 64));
          Kernel kernel = {"moe-router", "kern_router", {}};
          kernel.shape.grid = {static_cast<uint32_t>(rows > 528 ? (rows + 3) / 4 : rows), 1, 1};
          kernel.shape.block = {128, 1, 1};
          step.launches.push_back({kernel,
                                   {step.memory[0], step.memory[1], step.memory[2], step.memory[3],
                                    i32(896), i32(16), i32(1), f32(1), i32(rows)}});
          return step;
        });
    bench_experts(suite, Part::plan, "moe_plan", rows, 80);
    bench_experts(suite, Part::combine, "moe_combine", rows, 80);
  }
  for (const size_t rows : {1, 4, 16, 64, 128, 512, 2048, 8192})
    for (const size_t tile_rows : {8, 80}) {
      if ((rows < 64 && tile_rows == 80) || (rows > 512 && tile_rows == 8)) continue;
      bench_experts(suite, Part::up, "moe_up", rows, tile_rows);
      bench_experts(suite, Part::down, "moe_down", rows, tile_rows);
      bench_experts(suite, Part::all, "routed_experts", rows, tile_rows);
    }
}

}  // namespace

void moe_family(Suite& suite) {
  router_checks(suite);
  plan_checks(suite);
  combine_checks(suite);
  product_checks(suite);
  benches(suite);
}

}  // namespace kern_device
