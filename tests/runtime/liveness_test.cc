#include "kern/runtime/liveness.h"

#include <catch2/catch.hpp>

#include "kern/base/prng.h"

using namespace kern;
using namespace kern::runtime;

TEST_CASE("two buffers that are never alive together share their bytes", "[runtime][liveness]") {
  const Interval intervals[] = {{100, 0, 1}, {100, 2, 3}, {100, 1, 2}};
  const ArenaPlan plan = plan_arena(intervals);
  CHECK(plan.offsets == std::vector<int64_t>{0, 0, 256});
  CHECK(plan.bytes == 512);
}

TEST_CASE("a buffer read by the call that writes another does not share with it",
          "[runtime][liveness]") {
  const Interval intervals[] = {{256, 0, 1}, {256, 1, 2}};
  const ArenaPlan plan = plan_arena(intervals);
  CHECK(plan.offsets[0] != plan.offsets[1]);
}

TEST_CASE("no buffers need no arena", "[runtime][liveness]") {
  CHECK(plan_arena({}).bytes == 0);
}

TEST_CASE("no plan ever lets two living buffers overlap", "[runtime][liveness][prop]") {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Prng prng(seed);
    std::vector<Interval> intervals(prng.below(40));
    int64_t sum = 0;
    for (Interval& i : intervals) {
      i.bytes = static_cast<int64_t>(prng.below(1000));
      i.first_call = static_cast<int64_t>(prng.below(20));
      i.last_call = i.first_call + static_cast<int64_t>(prng.below(6));
      sum += (i.bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
    }
    const ArenaPlan plan = plan_arena(intervals);
    INFO("seed " << seed);
    bool disjoint = true;
    for (size_t a = 0; a < intervals.size(); ++a) {
      disjoint = disjoint && plan.offsets[a] % kArenaAlignment == 0 &&
                 plan.offsets[a] + intervals[a].bytes <= plan.bytes;
      for (size_t b = 0; b < a; ++b) {
        const bool together = intervals[a].first_call <= intervals[b].last_call &&
                              intervals[b].first_call <= intervals[a].last_call;
        const bool overlap = plan.offsets[a] < plan.offsets[b] + intervals[b].bytes &&
                             plan.offsets[b] < plan.offsets[a] + intervals[a].bytes;
        disjoint = disjoint && !(together && overlap);
      }
    }
    CHECK(disjoint);
    CHECK(plan.bytes <= sum);
  }
}
