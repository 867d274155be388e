// Columns that ranks computed apart, put back side by side.
//
// kern_join_columns:  out[row, r * width + c] = parts[r, row, c]
//   in f32 [ranks, rows, width] parts; out f32 [rows, ranks * width]; i32 ranks, width, rows
// grid: [any, 1, 1], the rows are divided over it. shared: 0.

#include "common/args.h"

using namespace kern::host;

extern "C" void kern_join_columns(const kern_block* where, void* const* raw) {
  Args args(raw);
  const auto* parts = args.pointer<const float>();
  auto* out = args.pointer<float>();
  const int64_t ranks = args.i32(), width = args.i32(), rows = args.i32();
  const Span mine = share_of(where, 0, rows);
  for (int64_t row = mine.first; row < mine.last; ++row)
    for (int64_t r = 0; r < ranks; ++r)
      std::memcpy(out + (row * ranks + r) * width, parts + (r * rows + row) * width,
                  width * sizeof(float));
}
