#pragma once
/// One layer's line of one sequence: rec f32 [head][v][k] at 0, then win_q, win_k, win_v, each
/// bf16 [taps - 1, oldest first][heads * dim]. A rank's line holds its own heads in the same form.

#include <cstdint>

#include "common/numeric.h"

namespace kern::host {

struct KdaLine {
  int64_t heads, dim, taps;

  int64_t inner() const { return heads * dim; }
  int64_t bytes() const {
    return heads * dim * dim * int64_t{4} + 3 * (taps - 1) * inner() * int64_t{2};
  }
  float* rec(std::byte* state, int64_t line, int64_t head) const {
    return reinterpret_cast<float*>(state + line * bytes()) + head * dim * dim;
  }
  /// Window `stream` (0 q, 1 k, 2 v), all its taps.
  bf16* window(std::byte* state, int64_t line, int stream) const {
    return reinterpret_cast<bf16*>(state + line * bytes() + heads * dim * dim * 4) +
           stream * (taps - 1) * inner();
  }
  const bf16* window(const std::byte* state, int64_t line, int stream) const {
    return window(const_cast<std::byte*>(state), line, stream);
  }
};

/// Rows of this call after which the state stands at the last multiple of `grid` positions, or 0
/// when no multiple lies inside the call (the position before its first row is not inside).
inline int64_t rows_to_boundary(int64_t seq_len, int64_t rows, int64_t grid) {
  const int64_t boundary = seq_len / grid * grid, start = seq_len - rows;
  return boundary > start ? boundary - start : 0;
}

}  // namespace kern::host
