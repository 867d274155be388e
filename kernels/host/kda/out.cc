// KDA's output norm and gate.
//
// kern_kda_out, per row and head:
//   y[d] = bf( o[d] * (mean_d(o^2) + eps)^-1/2 * o_norm[d] * sigmoid(z[head * dim + d]) )
//   in f32 [rows, heads * dim] o; in bf16 [rows, x_stride] x (z from column z_column);
//   in f32 [dim] o_norm; out bf16 [rows, heads * dim] y;
//   i32 heads, dim, x_stride, z_column; f32 eps; i32 rows
// grid: [any, 1, 1], the rows are divided over it. shared: 0.
// Rounding points: f32 inside, one rounding.

#include "common/args.h"
#include "common/numeric.h"

using namespace kern::host;

extern "C" void kern_kda_out(const kern_block* where, void* const* raw) {
  Args args(raw);
  const auto* o = args.pointer<const float>();
  const auto* x = args.pointer<const bf16>();
  const auto* o_norm = args.pointer<const float>();
  auto* y = args.pointer<bf16>();
  const int64_t heads = args.i32(), dim = args.i32(), x_stride = args.i32(), z_column = args.i32();
  const float eps = args.f32();
  const int64_t rows = args.i32();
  const Span mine = share_of(where, 0, rows);
  for (int64_t row = mine.first; row < mine.last; ++row) {
    for (int64_t head = 0; head < heads; ++head) {
      const float* from = o + (row * heads + head) * dim;
      const bf16* z = x + row * x_stride + z_column + head * dim;
      bf16* to = y + (row * heads + head) * dim;
      const float scale = inverse_rms(dot(from, from, dim), dim, eps);
      for (int64_t d = 0; d < dim; ++d)
        to[d] = to_bf16(from[d] * scale * o_norm[d] * sigmoid(to_f32(z[d])));
    }
  }
}
