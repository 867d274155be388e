#include "kern/engine/metrics.h"

#include <algorithm>

namespace kern::engine {

void Histogram::add(TimeNs duration) {
  const auto at = std::lower_bound(kBounds.begin(), kBounds.end(), duration);
  ++own_[static_cast<size_t>(at - kBounds.begin())];
  ++count_;
  sum_ += duration;
}

std::array<uint64_t, Histogram::kBounds.size() + 1> Histogram::counts() const {
  auto counts = own_;
  for (size_t i = 1; i < counts.size(); ++i) counts[i] += counts[i - 1];
  return counts;
}

}  // namespace kern::engine
