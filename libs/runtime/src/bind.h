#pragma once
/// A weight's or source's bytes out of the checkpoint, as its `bind` says: where they lie, and any
/// range of them put together. Nothing is copied before somebody asks.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kern/manifest/types.h"
#include "kern/safetensors/catalog.h"

namespace kern::runtime {

/// This process's place in each group, by name.
using Ranks = std::map<std::string, int64_t, std::less<>>;

/// Equal pieces at equal distances: what a segment reads of one tensor.
struct Piece {
  const std::byte* from = nullptr;
  int64_t count = 0, bytes = 0, stride = 0;
  bool contiguous() const { return count <= 1 || bytes == stride; }
  int64_t total() const { return count * bytes; }
};

/// The pieces of a segment in the order of the buffer's bytes: one, or two that alternate.
struct SegmentBytes {
  Piece first;
  std::optional<Piece> second;
  int64_t total() const { return first.total() + (second ? second->total() : 0); }
};

/// Reads the catalog's maps, which outlive it. Copies of different ranges may run at once.
class WeightPlan {
 public:
  explicit WeightPlan(std::vector<SegmentBytes> segments);
  /// A block again and again, the last time in part; it outlives the plan.
  static WeightPlan repeating(ByteSpan block, int64_t bytes);

  int64_t bytes() const { return bytes_; }
  /// All of it where it is mapped, when it lies there in one piece at a multiple of 16; else null.
  const std::byte* in_place() const;
  /// What repeats, from the first byte on; empty where nothing is known to.
  ByteSpan repeated() const { return repeated_; }
  /// Bytes [begin, begin + to.size()) of the buffer.
  void copy(int64_t begin, MutableByteSpan to) const;

 private:
  std::vector<SegmentBytes> segments_;
  ByteSpan repeated_;
  int64_t bytes_ = 0;
};

/// For a buffer of `bytes` bytes. Kind weight_artifact, naming buffer and tensor.
Result<WeightPlan> plan_weight(const manifest::Buffer& buffer, int64_t bytes,
                               const safetensors::Catalog& catalog, const Ranks& ranks);

}  // namespace kern::runtime
