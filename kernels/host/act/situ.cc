// The gated activation of every MLP.
//
// kern_situ:  out = bf( beta tanh(g / beta) sigmoid(g) * linear_beta tanh(u / linear_beta) )
//   in bf16 [rows, 2 * width] (g | u); out bf16 [rows, width]; f32 beta, linear_beta; i32 width,
//   rows
//
// grid: [any, 1, 1], the rows are divided over it. shared: 0.
// Rounding points: f32 inside, one rounding.

#include "common/args.h"
#include "common/numeric.h"

using namespace kern::host;

extern "C" void kern_situ(const kern_block* where, void* const* raw) {
  Args args(raw);
  const auto* in = args.pointer<const bf16>();
  auto* out = args.pointer<bf16>();
  const float beta = args.f32(), linear_beta = args.f32();
  const int64_t width = args.i32(), rows = args.i32();
  const Span mine = share_of(where, 0, rows);
  for (int64_t row = mine.first; row < mine.last; ++row) {
    const bf16* gate = in + row * 2 * width;
    const bf16* up = gate + width;
    bf16* to = out + row * width;
    for (int64_t i = 0; i < width; ++i)
      to[i] = to_bf16(situ(to_f32(gate[i]), to_f32(up[i]), beta, linear_beta));
  }
}
