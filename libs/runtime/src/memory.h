#pragma once
/// Zeroed, page-aligned memory straight from the kernel: large, mostly untouched, never moved.

#include <cstddef>
#include <utility>

#include "kern/base/bytes.h"

namespace kern::runtime {

class Memory {
 public:
  Memory() = default;
  /// Kind device when the machine has no more. Zero bytes are one page, so that data() is not null.
  static Result<Memory> zeroed(int64_t bytes);
  Memory(Memory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Memory& operator=(Memory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Memory();

  std::byte* data() const { return data_; }

 private:
  Memory(std::byte* data, size_t size) : data_(data), size_(size) {}

  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace kern::runtime
