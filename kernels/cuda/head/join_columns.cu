// Columns that ranks computed apart, put back side by side.
//
// kern_join_columns:  out[row, r * width + c] = parts[r, row, c]
//   in f32 [ranks, rows, width] parts; out f32 [rows, ranks * width]; i32 ranks, width, rows
// grid: [any, 1, 1], groups of 4 columns are dealt over it. block: [any, 1, 1]. shared: 0.
// width is a multiple of 4.

#include "ptx/memory.cuh"
#include "ptx/turn.cuh"

using namespace kern;

extern "C" __global__ void __launch_bounds__(256)
    kern_join_columns(const float* parts, float* out, int ranks, int width, int rows) {
  take_turn();
  const uint32_t vectors = width / 4;
  const int64_t all = int64_t{ranks} * rows * vectors;
  for (int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < all;
       at += int64_t{gridDim.x} * blockDim.x) {
    const int64_t line = at / vectors, column = (at - line * vectors) * 4;
    const int64_t rank = line / rows, row = line - rank * rows;
    store(out + (row * ranks + rank) * width + column, load_once(parts + line * width + column));
  }
}
