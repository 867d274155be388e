// RMS norms of rows.
//
// kern_rms:       out = bf(w * bf(x * s)),  s = (mean(x^2) + eps)^-1/2 in f32
//   in bf16 [rows, width] x; in bf16 [width] w; out bf16 [rows, width]; f32 eps; i32 width, rows
// kern_land_rms:  the same on x = bf(partial), the first `width` columns of an f32 [rows, stride]
//   in f32 partial; in bf16 [width] w; out bf16 [rows, width]; f32 eps; i32 stride, width, rows
//
// grid: [any, 1, 1], the rows are divided over it. shared: 0.
// Rounding points: bf(x * s), then bf of the product with w. kern_land_rms rounds the sum first.
// A row depends on its own row alone; sums in 16 lanes and a fixed tree.

#include "common/args.h"
#include "common/numeric.h"

using namespace kern::host;

extern "C" void kern_rms(const kern_block* where, void* const* raw) {
  Args args(raw);
  const auto* x = args.pointer<const bf16>();
  const auto* weight = args.pointer<const bf16>();
  auto* out = args.pointer<bf16>();
  const float eps = args.f32();
  const int64_t width = args.i32(), rows = args.i32();
  const Span mine = share_of(where, 0, rows);
  for (int64_t row = mine.first; row < mine.last; ++row)
    rms_norm_row(x + row * width, weight, out + row * width, width, eps);
}

extern "C" void kern_land_rms(const kern_block* where, void* const* raw) {
  Args args(raw);
  const auto* partial = args.pointer<const float>();
  const auto* weight = args.pointer<const bf16>();
  auto* out = args.pointer<bf16>();
  const float eps = args.f32();
  const int64_t stride = args.i32(), width = args.i32(), rows = args.i32();
  const Span mine = share_of(where, 0, rows);
  for (int64_t row = mine.first; row < mine.last; ++row) {
    bf16* to = out + row * width;
    for (int64_t i = 0; i < width; ++i) to[i] = to_bf16(partial[row * stride + i]);
    rms_norm_row(to, weight, to, width, eps);
  }
}
