#pragma once
/// What the kernels of the gated delta rule share: a line's layout (kernels/host/kda/line.h), the
/// place of a row in its sequence, and the elementary functions of the gates.
/// Does not: know the model; the head's size and the taps are compile-time constants of a variant.

#include "common/numeric.cuh"
#include "common/reduce.cuh"
#include "common/sequences.cuh"

#ifndef KDA_DIM
#define KDA_DIM 128
#endif
#ifndef KDA_TAPS
#define KDA_TAPS 4
#endif

namespace kern::kda {

constexpr int kDim = KDA_DIM, kTaps = KDA_TAPS, kKept = kTaps - 1;
static_assert(kDim % 32 == 0 && kDim <= 128, "a head is 32, 64, 96 or 128 wide");
static_assert(kTaps >= 2 && kTaps <= 8, "the convolution has 2 to 8 taps");

/// rec f32 [head][v][k] at 0, then win_q, win_k, win_v, each bf16 [taps - 1, oldest first][inner].
struct Line {
  int heads;

  __device__ int64_t inner() const { return int64_t{heads} * kDim; }
  __device__ int64_t bytes() const { return inner() * kDim * 4 + 3 * kKept * inner() * 2; }
  __device__ float* rec(unsigned char* state, int line, int head) const {
    return reinterpret_cast<float*>(state + line * bytes()) + int64_t{head} * kDim * kDim;
  }
  __device__ bf16* window(unsigned char* state, int line, int stream) const {
    return reinterpret_cast<bf16*>(state + line * bytes() + inner() * kDim * 4) +
           stream * kKept * inner();
  }
  __device__ const bf16* window(const unsigned char* state, int line, int stream) const {
    return window(const_cast<unsigned char*>(state), line, stream);
  }
};

/// Rows of this call after which the state stands at the last multiple of `grid` positions, or 0
/// when no multiple lies inside the call.
__device__ __forceinline__ int rows_to_boundary(int seq_len, int rows, int grid) {
  const int boundary = seq_len / grid * grid, start = seq_len - rows;
  return boundary > start ? boundary - start : 0;
}

__device__ __forceinline__ float silu(float x) {
  return x * fast::sigmoid(x);
}
/// exp(lower_bound * sigmoid(rate * (r + bias))), the decay of one channel.
__device__ __forceinline__ float decay(float r, float bias, float rate, float lower_bound) {
  return fast::exp_f32(lower_bound * fast::sigmoid(rate * (r + bias)));
}

/// The kKept inputs before row `row` of one stream's channel, oldest first.
struct History {
  float u[kKept];

  /// `at` is the channel's input of a row that is row `in_call` of its sequence in this call.
  __device__ void load(const bf16* at, int64_t stride, int in_call, const bf16* window,
                       int64_t inner) {
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      const int back = kKept - i;
      u[i] = to_f32(back <= in_call ? *(at - back * stride) : window[(in_call + i) * inner]);
    }
  }
  /// The convolution at an input, which then joins the history.
  __device__ float next(float input, const float* taps) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kKept; ++i) sum += taps[i] * u[i];
    sum += taps[kKept] * input;
#pragma unroll
    for (int i = 0; i + 1 < kKept; ++i) u[i] = u[i + 1];
    u[kKept - 1] = input;
    return through_bf16(silu(sum));
  }
};

}  // namespace kern::kda
