#pragma once
/// Where the short-lived buffers of one program lie in one arena: two that are never alive at the
/// same call may share bytes.
/// Thread safety: a pure function.
/// Determinism: the same intervals give the same places.
/// Does not: know buffers or programs.

#include <cstdint>
#include <span>
#include <vector>

namespace kern::runtime {

/// Bytes that must stand from one call to another, both included.
struct Interval {
  int64_t bytes = 0;
  int64_t first_call = 0, last_call = 0;
};

struct ArenaPlan {
  std::vector<int64_t> offsets;  ///< one an interval, multiples of kArenaAlignment
  int64_t bytes = 0;             ///< of the whole arena
};

inline constexpr int64_t kArenaAlignment = 256;  ///< as an allocation of a device

/// Largest first, each at the lowest place that no overlapping interval holds.
ArenaPlan plan_arena(std::span<const Interval> intervals);

}  // namespace kern::runtime
