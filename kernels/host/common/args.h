#pragma once
/// The parameters of a host entry, read one after the other in the order the entry documents.
/// Thread safety: one block each.
/// Does not: know how many there are; the manifest's verifier has matched them to the launch.

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kern/runtime/host_module.h"

namespace kern::host {

class Args {
 public:
  explicit Args(void* const* args) : next_(args) {}

  /// A buffer's or state's address.
  template <class T>
  T* pointer() {
    T* value;
    std::memcpy(&value, *next_++, sizeof value);
    return value;
  }
  int32_t i32() { return scalar<int32_t>(); }
  float f32() { return scalar<float>(); }

 private:
  template <class T>
  T scalar() {
    T value;
    std::memcpy(&value, *next_++, sizeof value);
    return value;
  }

  void* const* next_;
};

/// Half-open range of items.
struct Span {
  int64_t first, last;
};

/// This block's share of `count` items along grid axis `axis`: the manifest says into how many
/// blocks the work is split, the entry only divides.
inline Span share_of(const kern_block* where, int axis, int64_t count) {
  const int64_t blocks = where->grid[axis], index = where->index[axis];
  return {count * index / blocks, count * (index + 1) / blocks};
}

/// The sequence that row `row` belongs to; `ends` are the prefix sums [0, rows of 0, rows of 0 and
/// 1…].
inline int64_t sequence_of(const int32_t* cu_seqlens, int64_t seqs, int64_t row) {
  return std::upper_bound(cu_seqlens + 1, cu_seqlens + seqs, row) - (cu_seqlens + 1);
}

}  // namespace kern::host
