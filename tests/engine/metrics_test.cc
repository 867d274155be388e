#include "kern/engine/metrics.h"

#include <catch2/catch.hpp>

using namespace kern;
using namespace kern::engine;

TEST_CASE("a histogram counts each duration at every bound that holds it", "[engine][metrics]") {
  Histogram times;
  times.add(kMillisecondNs);
  times.add(kMillisecondNs + 1);
  times.add(1000 * kSecondNs);
  const auto counts = times.counts();
  CHECK(counts[0] == 1);
  CHECK(counts[1] == 2);
  CHECK(counts[Histogram::kBounds.size() - 1] == 2);
  CHECK(counts[Histogram::kBounds.size()] == 3);
  CHECK(times.sum() == 2 * kMillisecondNs + 1 + 1000 * kSecondNs);
}
