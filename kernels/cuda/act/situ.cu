// The gated activation of every MLP.
//
// kern_situ:  out = bf( beta tanh(g / beta) sigmoid(g) * linear_beta tanh(u / linear_beta) )
//   in bf16 [rows, 2 * width] (g | u); out bf16 [rows, width]; f32 beta, linear_beta; i32 width,
//   rows
//
// grid: [any, 1, 1], groups of 8 columns are dealt over it. block: [any, 1, 1]. shared: 0.
// width is a multiple of 8. Rounding points: f32 inside, within 2^-17, one rounding.

#include "common/numeric.cuh"
#include "ptx/memory.cuh"
#include "ptx/turn.cuh"

using namespace kern;

extern "C" __global__ void __launch_bounds__(256)
    kern_situ(const bf16* in, bf16* out, float beta, float linear_beta, int width, int rows) {
  take_turn();
  const float per_beta = __fdiv_rn(1.0F, beta), per_linear_beta = __fdiv_rn(1.0F, linear_beta);
  const uint32_t vectors = width / 8;
  for (int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < int64_t{vectors} * rows;
       at += int64_t{gridDim.x} * blockDim.x) {
    const int64_t row = at / vectors, column = (at - row * vectors) * 8;
    const bf16* from = in + row * 2 * width + column;
    float gate[8], up[8];
    const uint4 gates = load_once(from), ups = load_once(from + width);
    unpack8(gates, gate);
    unpack8(ups, up);
#pragma unroll
    for (int i = 0; i < 8; ++i)
      gate[i] = fast::situ(gate[i], up[i], per_beta, per_linear_beta, beta * linear_beta);
    store(out + row * width + column, pack8(gate));
  }
}
