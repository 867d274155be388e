#pragma once
/// The binds of a manifest against what a checkpoint holds, and what a bind means on one rank.
/// Thread safety: pure functions.
/// Does not: open a checkpoint; the caller lists its tensors.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kern/manifest/verify.h"

namespace kern::manifest {

/// One tensor of a checkpoint, as its index tells it; `dtype` in safetensors' words ("BF16", "U8").
struct TensorInfo {
  std::string_view name;
  std::string_view dtype;
  std::span<const int64_t> shape;
};

/// A tensor seen as [first axis, product of the rest].
struct Rectangle {
  Range rows, cols;
};

/// This rank's place in a group.
struct Place {
  std::string_view group;
  int64_t member = 0;
};

/// The tensor a segment reads at these places, the `index`-th of its series. A group the segment
/// names must be among them.
std::string tensor_at(const BindSegment& segment, std::span<const Place> places, int64_t index = 0);
/// The part of a tensor of `rows` x `cols` it reads there; ranges left out mean all.
Rectangle part_at(const BindSegment& segment, std::span<const Place> places, int64_t rows,
                  int64_t cols);
/// Whether a tensor of that dtype may fill a buffer of this one; U8 may fill u8, fp8e4m3, fp8e8m0.
bool may_bind(std::string_view tensor_dtype, Dtype dtype);

/// Every tensor exists, dtypes agree, ranges lie inside, and segments fill their buffer exactly, on
/// every combination of places in the groups that a buffer's tables are over, up to 65536 of them;
/// more are refused. `tensors` in any order, names unique.
Diagnostics check_binds(const Verified& manifest, std::span<const TensorInfo> tensors);

}  // namespace kern::manifest
