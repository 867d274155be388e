#include "kern/runtime/liveness.h"

#include <algorithm>
#include <numeric>

#include "kern/base/assert.h"
#include "kern/base/checked.h"

namespace kern::runtime {
namespace {

struct Held {
  int64_t begin = 0, end = 0;
};

bool alive_together(const Interval& a, const Interval& b) {
  return a.first_call <= b.last_call && b.first_call <= a.last_call;
}

/// The lowest gap of `bytes` between ranges sorted by begin.
int64_t lowest_gap(const std::vector<Held>& held, int64_t bytes) {
  int64_t at = 0;
  for (const Held& range : held) {
    if (range.begin - at >= bytes) break;
    at = std::max(at, range.end);
  }
  return at;
}

}  // namespace

ArenaPlan plan_arena(std::span<const Interval> intervals) {
  std::vector<size_t> order(intervals.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return intervals[a].bytes > intervals[b].bytes; });
  ArenaPlan plan;
  plan.offsets.assign(intervals.size(), 0);
  std::vector<size_t> placed;
  std::vector<Held> held;
  for (const size_t index : order) {
    const Interval& interval = intervals[index];
    KERN_ASSERT(interval.bytes >= 0 && interval.first_call <= interval.last_call, "{} bytes {}..{}",
                interval.bytes, interval.first_call, interval.last_call);
    const int64_t bytes = round_up(interval.bytes, kArenaAlignment);
    held.clear();
    for (const size_t other : placed)
      if (alive_together(interval, intervals[other]))
        held.push_back({plan.offsets[other],
                        plan.offsets[other] + round_up(intervals[other].bytes, kArenaAlignment)});
    std::sort(held.begin(), held.end(),
              [](const Held& a, const Held& b) { return a.begin < b.begin; });
    plan.offsets[index] = lowest_gap(held, bytes);
    plan.bytes = std::max(plan.bytes, plan.offsets[index] + bytes);
    placed.push_back(index);
  }
  return plan;
}

}  // namespace kern::runtime
