#pragma once
/// What a weight buffer takes of a checkpoint: segments, each a tensor or a series of tensors.
/// Thread safety: plain values.
/// Determinism: the written order is kept.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kern::manifest {

/// An optional that is mostly empty and then takes a pointer's room: large manifests have half a
/// million segments, and thousands of buffers of which a dozen have a domain.
template <class T>
class Rare {
 public:
  Rare() = default;
  Rare(T value) : value_(std::make_unique<T>(std::move(value))) {}  // NOLINT: meant to convert
  Rare(const Rare& other) : value_(other ? std::make_unique<T>(*other) : nullptr) {}
  Rare(Rare&&) noexcept = default;
  Rare& operator=(Rare other) noexcept {
    value_ = std::move(other.value_);
    return *this;
  }

  explicit operator bool() const { return value_ != nullptr; }
  bool has_value() const { return value_ != nullptr; }
  void reset() { value_.reset(); }
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }
  T* operator->() { return value_.get(); }
  const T* operator->() const { return value_.get(); }
  T& emplace(T value = {}) { return *(value_ = std::make_unique<T>(std::move(value))); }

  friend bool operator==(const Rare& a, const Rare& b) {
    return a && b ? *a == *b : a.value_ == b.value_;
  }

 private:
  std::unique_ptr<T> value_;
};

struct Range {
  int64_t first = 0, last = 0;  ///< half open
  friend bool operator==(const Range&, const Range&) = default;
};

/// One range for every rank, or one per rank of `group`.
struct RangeTable {
  std::string group;  ///< empty: ranges holds one
  std::vector<Range> ranges;
  friend bool operator==(const RangeTable&, const RangeTable&) = default;
};

struct Interleave {
  std::string with;
  int64_t rows = 0;
  friend bool operator==(const Interleave&, const Interleave&) = default;
};

/// `count` tensors end to end whose names differ by a number: `{}` in a name stands for the first
/// number, then the next. Extension `series`, unless `spelled_out`.
struct Series {
  std::string group;            ///< empty: firsts holds one
  std::vector<int64_t> firsts;  ///< one, or one per rank of `group`
  int64_t count = 1;
  /// Written as version 7 writes it, a segment a tensor; the reader finds such runs again.
  bool spelled_out = false;
  friend bool operator==(const Series&, const Series&) = default;
};

/// Ranges and an interleave are those of each tensor of a series.
struct BindSegment {
  std::string group;                 ///< empty: tensors holds one
  std::vector<std::string> tensors;  ///< one, or one per rank of `group`
  Rare<RangeTable> rows, cols;
  Rare<Interleave> interleave;
  Rare<Series> series;

  /// Tensors it stands for, on any one rank.
  int64_t count() const { return series ? series->count : 1; }
  /// Segments it is written as.
  int64_t written() const { return series && series->spelled_out ? series->count : 1; }
};

/// What stands for the number of a series in its names.
inline constexpr std::string_view kNumber = "{}";

/// The name at a place of its series: `index` on from the first number of the rank that is at
/// `place` in the series' own group. A name of no series is itself.
std::string name_in(const BindSegment& segment, std::string_view name, size_t place, int64_t index);

}  // namespace kern::manifest
