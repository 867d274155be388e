#pragma once
/// Which sequence a packed row belongs to.

#include <stdint.h>

namespace kern {

/// The sequence that row `row` belongs to.
__device__ __forceinline__ int sequence_of(const int32_t* cu_seqlens, int seqs, int row) {
  int low = 0, high = seqs - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (cu_seqlens[middle + 1] > row)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

}  // namespace kern
