#pragma once
/// A span of time with a name: what a recorder keeps.
/// Thread safety: plain values.

#include <cstdint>
#include <string_view>

#include "kern/base/clock.h"

namespace kern::trace {

/// `lane` and `name` must be string literals or outlive the recorder: only the views are kept.
struct Event {
  std::string_view lane;  ///< who: "device", "link in"
  std::string_view name;  ///< what: "run", "receive"
  uint64_t id = 0;        ///< of the item or request
  TimeNs start = 0;
  TimeNs end = 0;
  friend bool operator==(const Event&, const Event&) = default;
};

}  // namespace kern::trace
