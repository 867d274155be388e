// The routed experts of one rank: rows are grouped by expert, each weight is expanded once a use.
// One op, five launches; experts are the rank's own, rank * experts … rank * experts + experts - 1.
//
// kern_moe_plan:    place[row, i] = position of that pick among all local picks, by expert then
// row; -1
//   when the expert is another rank's; first[e] = position of expert e's first pick
//   in i32 [rows, top_k] ids; out i32 [experts + 1] first; out i32 [rows, top_k] place;
//   i32 experts, top_k, rank, rows                                         grid: [1, 1, 1], shared
//   0
// kern_moe_gather:  x[place] = z[row]
//   in bf16 [rows, width] z; in i32 place; out bf16 [rows, top_k, width] x; i32 width, top_k, rows
//   grid: [any, 1, 1], rows divided over it, shared 0
// kern_moe_up:      act[p] = bf(situ(W1 x[p], W3 x[p]))
//   in bf16 x; in i32 first; in u8 [experts, inter, width / 2] w1; in u8 [experts, inter, width /
//   32] s1; in w3, s3 likewise; out bf16 [rows, top_k, inter] act; out bf16 [rows, top_k, inter]
//   up; i32 width, inter; f32 beta, linear_beta grid: [experts, tiles, 1]: tiles of rows of W;
//   shared: ceil(inter / tiles) * width * 2
// kern_moe_down:    y[p] = W2 act[p]
//   in bf16 act; in i32 first; in u8 [experts, width, inter / 2] w2; in u8 [experts, width, inter /
//   32] s2; out bf16 [rows, top_k, width] y; i32 width, inter grid: [experts, tiles, 1]; shared:
//   ceil(width / tiles) * inter * 2
// kern_moe_combine: partial[row] = sum over local picks, in ascending expert order, of weight * y
//   in bf16 y; in i32 place; in f32 [rows, top_k] weights; out f32 [rows, stride] partial (its own
//   first `width` columns); i32 width, top_k, stride, rows                      grid: [any, 1, 1],
//   shared 0
//
// Rounding points: W1 x and W3 x round to bf16, situ once, W2 act to bf16; the weighted sum stays
// f32 and is rounded where it lands, after all ranks' parts are summed.

#include "common/args.h"
#include "moe/mxfp4.h"

using namespace kern::host;

extern "C" void kern_moe_plan(const kern_block*, void* const* raw) {
  Args args(raw);
  const auto* ids = args.pointer<const int32_t>();
  auto* first = args.pointer<int32_t>();
  auto* place = args.pointer<int32_t>();
  const int64_t experts = args.i32(), top_k = args.i32(), rank = args.i32(), rows = args.i32();
  const auto local = [&](int64_t pick) {
    const int64_t e = ids[pick] - rank * experts;
    return e >= 0 && e < experts ? e : -1;
  };
  std::fill(first, first + experts + 1, 0);
  for (int64_t pick = 0; pick < rows * top_k; ++pick)
    if (const int64_t e = local(pick); e >= 0) ++first[e + 1];
  for (int64_t e = 0; e < experts; ++e) first[e + 1] += first[e];
  for (int64_t pick = 0; pick < rows * top_k; ++pick) {
    const int64_t e = local(pick);
    place[pick] = e < 0 ? -1 : first[e]++;
  }
  for (int64_t e = experts; e > 0; --e) first[e] = first[e - 1];
  first[0] = 0;
}

extern "C" void kern_moe_gather(const kern_block* where, void* const* raw) {
  Args args(raw);
  const auto* z = args.pointer<const bf16>();
  const auto* place = args.pointer<const int32_t>();
  auto* x = args.pointer<bf16>();
  const int64_t width = args.i32(), top_k = args.i32(), rows = args.i32();
  const Span mine = share_of(where, 0, rows);
  for (int64_t row = mine.first; row < mine.last; ++row)
    for (int64_t i = 0; i < top_k; ++i)
      if (const int64_t to = place[row * top_k + i]; to >= 0)
        std::memcpy(x + to * width, z + row * width, width * sizeof(bf16));
}

namespace {

/// Rows of one expert's matrix, [out, in] packed, of which a block multiplies `mine`.
struct Matrix {
  const uint8_t *packed, *scales;
  int64_t out, in;

  void multiply(const kern_block* where, int64_t expert, Span mine, const bf16* a, bf16* c,
                int64_t count) const {
    auto* tile = static_cast<bf16*>(where->shared);
    for (int64_t o = mine.first; o < mine.last; ++o) {
      const int64_t row = expert * out + o;
      expand_mxfp4(packed + row * (in / 2), scales + row * (in / kMxGroup), in,
                   tile + (o - mine.first) * in);
    }
    where->services->gemm_bf16_tn(a, tile, c + mine.first, count, mine.last - mine.first, in, out,
                                  in);
  }
};

}  // namespace

extern "C" void kern_moe_up(const kern_block* where, void* const* raw) {
  Args args(raw);
  const auto* x = args.pointer<const bf16>();
  const auto* first = args.pointer<const int32_t>();
  Matrix w1, w3;
  w1.packed = args.pointer<const uint8_t>();
  w1.scales = args.pointer<const uint8_t>();
  w3.packed = args.pointer<const uint8_t>();
  w3.scales = args.pointer<const uint8_t>();
  auto* act = args.pointer<bf16>();
  auto* up = args.pointer<bf16>();
  const int64_t width = args.i32(), inter = args.i32();
  const float beta = args.f32(), linear_beta = args.f32();
  w1.out = w3.out = inter;
  w1.in = w3.in = width;

  const int64_t expert = where->index[0], from = first[expert], count = first[expert + 1] - from;
  if (count == 0) return;
  const Span mine = share_of(where, 1, inter);
  w1.multiply(where, expert, mine, x + from * width, act + from * inter, count);
  w3.multiply(where, expert, mine, x + from * width, up + from * inter, count);
  for (int64_t p = from; p < from + count; ++p)
    for (int64_t i = mine.first; i < mine.last; ++i)
      act[p * inter + i] =
          to_bf16(situ(to_f32(act[p * inter + i]), to_f32(up[p * inter + i]), beta, linear_beta));
}

extern "C" void kern_moe_down(const kern_block* where, void* const* raw) {
  Args args(raw);
  const auto* act = args.pointer<const bf16>();
  const auto* first = args.pointer<const int32_t>();
  Matrix w2;
  w2.packed = args.pointer<const uint8_t>();
  w2.scales = args.pointer<const uint8_t>();
  auto* y = args.pointer<bf16>();
  const int64_t width = args.i32(), inter = args.i32();
  w2.out = width;
  w2.in = inter;
  const int64_t expert = where->index[0], from = first[expert], count = first[expert + 1] - from;
  if (count == 0) return;
  w2.multiply(where, expert, share_of(where, 1, width), act + from * inter, y + from * width,
              count);
}

extern "C" void kern_moe_combine(const kern_block* where, void* const* raw) {
  Args args(raw);
  const auto* y = args.pointer<const bf16>();
  const auto* place = args.pointer<const int32_t>();
  const auto* weights = args.pointer<const float>();
  auto* partial = args.pointer<float>();
  const int64_t width = args.i32(), top_k = args.i32(), stride = args.i32(), rows = args.i32();
  const Span mine = share_of(where, 0, rows);
  for (int64_t row = mine.first; row < mine.last; ++row) {
    float* to = partial + row * stride;
    std::fill(to, to + width, 0.0F);
    for (int64_t i = 0; i < top_k; ++i) {
      const int64_t from = place[row * top_k + i];
      if (from < 0) continue;
      const float weight = weights[row * top_k + i];
      for (int64_t c = 0; c < width; ++c) to[c] += weight * to_f32(y[from * width + c]);
    }
  }
}
