// A step's token, fed to the next step where it lies.
//
// kern_embed_fed:  out[r] = table[t],  t = token[r] where source[r] < 0, else kept[source[r]]; a
//   kept token below 0 (a row that failed) counts as 0, its row is nobody's
//   in i32 [rows] token; in i32 [rows] source; in i32 [seqs] kept; in bf16 [vocab, width] table;
//   out bf16 [rows, width]; i32 width, rows
// kern_keep:       kept = token
//   in i32 [seqs] token; out i32 [seqs] kept; i32 seqs
//
// grid: [any, 1, 1], rows (or groups of a block's size) are dealt over it. block: [any multiple of
// 32, 1, 1]. shared: 0. width is a multiple of 8. Nothing is computed: bytes are the host module's.

#include "common/numeric.cuh"
#include "ptx/memory.cuh"
#include "ptx/turn.cuh"

using namespace kern;

extern "C" __global__ void __launch_bounds__(1024)
    kern_embed_fed(const int32_t* token, const int32_t* source, const int32_t* kept,
                   const bf16* table, bf16* out, int width, int rows) {
  take_turn();
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const int from = source[row];
    const int64_t id = from < 0 ? token[row] : max(kept[from], 0);
#pragma unroll 4
    for (int column = threadIdx.x * 8; column < width; column += blockDim.x * 8)
      store(out + row * width + column, load_once(table + id * width + column));
  }
}

extern "C" __global__ void __launch_bounds__(1024)
    kern_keep(const int32_t* token, int32_t* kept, int seqs) {
  take_turn();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < seqs; i += gridDim.x * blockDim.x)
    kept[i] = token[i];
}
