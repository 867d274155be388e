// The residual stream: embedding, the bank, landing of partial sums.
//
// kern_embed:      out[r] = table[token[r]]
//   in i32 [rows] token; in bf16 [vocab, width] table; out bf16 [rows, width]; i32 width, rows
// kern_copy_rows:  out = in
//   in bf16 [rows, width]; out bf16 [rows, width]; i32 width, rows
// kern_land:       stream = bf(partial)
//   in f32 [rows, width] partial; out bf16 [rows, width] stream; i32 width, rows
// kern_land_add:   next = bf(stream + bf(partial))
//   in f32 [rows, width] partial; in bf16 [rows, width] stream; out bf16 [rows, width] next;
//   i32 width, rows
// kern_land_moe:   next = bf(stream + bf(routed + bf(partial)))
//   in bf16 [rows, width] routed; in f32 [rows, stride] partial (from its own column 0);
//   in bf16 [rows, width] stream; out bf16 [rows, width] next; i32 stride, width, rows
//
// grid: [rows, 1, 1] or fewer, the rows are dealt over it. block: [any multiple of 32, 1, 1].
// shared: 0. width and stride are multiples of 8; `partial` may begin at any 16 bytes.
// Rounding points: a partial sum is rounded once, when all ranks' parts are in it; every add
// rounds. Bytes are the host module's: there is no sum.

#include "common/numeric.cuh"
#include "ptx/memory.cuh"
#include "ptx/turn.cuh"

using namespace kern;

namespace {

/// Calls `f(row, column)` for every eighth column of the block's rows.
template <class F>
__device__ __forceinline__ void each_vector(int rows, int width, F f) {
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x)
#pragma unroll 4
    for (int column = threadIdx.x * 8; column < width; column += blockDim.x * 8) f(row, column);
}

/// Eight partial sums, each rounded to bf16.
__device__ __forceinline__ void landed(const float* from, float (&value)[8]) {
  const uint4 low = load_once(from), high = load_once(from + 4);
  const uint32_t bits[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
  for (int i = 0; i < 8; ++i) value[i] = through_bf16(__uint_as_float(bits[i]));
}

}  // namespace

extern "C" __global__ void __launch_bounds__(1024)
    kern_embed(const int32_t* token, const bf16* table, bf16* out, int width, int rows) {
  take_turn();
  each_vector(rows, width, [=](int64_t row, int column) {
    store(out + row * width + column, load_once(table + int64_t{token[row]} * width + column));
  });
}

extern "C" __global__ void __launch_bounds__(1024)
    kern_copy_rows(const bf16* in, bf16* out, int width, int rows) {
  take_turn();
  each_vector(rows, width, [=](int64_t row, int column) {
    store(out + row * width + column, load_once(in + row * width + column));
  });
}

extern "C" __global__ void __launch_bounds__(1024)
    kern_land(const float* partial, bf16* stream, int width, int rows) {
  take_turn();
  each_vector(rows, width, [=](int64_t row, int column) {
    float value[8];
    landed(partial + row * width + column, value);
    store(stream + row * width + column, pack8(value));
  });
}

extern "C" __global__ void __launch_bounds__(1024)
    kern_land_add(const float* partial, const bf16* stream, bf16* next, int width, int rows) {
  take_turn();
  each_vector(rows, width, [=](int64_t row, int column) {
    float value[8], before[8];
    landed(partial + row * width + column, value);
    unpack8(load_once(stream + row * width + column), before);
#pragma unroll
    for (int i = 0; i < 8; ++i) value[i] = before[i] + value[i];
    store(next + row * width + column, pack8(value));
  });
}

extern "C" __global__ void __launch_bounds__(1024)
    kern_land_moe(const bf16* routed, const float* partial, const bf16* stream, bf16* next,
                  int stride, int width, int rows) {
  take_turn();
  each_vector(rows, width, [=](int64_t row, int column) {
    float value[8], experts[8], before[8];
    landed(partial + row * stride + column, value);
    unpack8(load_once(routed + row * width + column), experts);
    unpack8(load_once(stream + row * width + column), before);
#pragma unroll
    for (int i = 0; i < 8; ++i) value[i] = before[i] + through_bf16(experts[i] + value[i]);
    store(next + row * width + column, pack8(value));
  });
}
