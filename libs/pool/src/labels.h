#pragma once
// Memory for labels. A buffer is as large as a power of two and goes back to those of its size, so
// that a steady state allocates nothing, and all that is kept is at most what was in use at once,
// size by size.

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace kern::pool {

class Labels {
 public:
  using Buffer = std::vector<int32_t>;

  // An empty buffer with room for so many tokens, at least 1.
  Buffer take(size_t tokens) {
    auto& kept = sizes_[size_of(tokens)];
    if (kept.empty()) {
      Buffer fresh;
      fresh.reserve(std::bit_ceil(tokens));
      return fresh;
    }
    Buffer again = std::move(kept.back());
    kept.pop_back();
    return again;
  }
  void give(Buffer buffer) {
    if (buffer.capacity() == 0) return;
    buffer.clear();
    auto& kept = sizes_[static_cast<size_t>(std::bit_width(buffer.capacity()) - 1)];
    kept.push_back(std::move(buffer));
  }

 private:
  static size_t size_of(size_t tokens) {
    return static_cast<size_t>(std::bit_width(std::bit_ceil(tokens)) - 1);
  }
  std::array<std::vector<Buffer>, 64> sizes_;
};

}  // namespace kern::pool
