#pragma once
/// How a daemon keeps its temper with peers that keep failing: when to dial again, and which of
/// many like lines to write. Pure: the time is passed in.

#include <cstdint>
#include <string>
#include <string_view>

#include "kern/base/clock.h"

namespace kern::node {

/// Dialing anew: at once after a connection that lasted, more and more slowly after ones that ended
/// at once, as those of a member that its head will not have do.
class Redial {
 public:
  void connected(TimeNs now) { connected_ = now; }
  /// The connection ended at `now`: how long to wait before the next.
  TimeNs pause(TimeNs now);
  /// Whether this reason was not the last one told since a connection lasted.
  bool is_news(std::string_view reason);

 private:
  TimeNs connected_ = 0;
  TimeNs pause_ = 0;
  std::string told_;
};

/// Lets so many lines a window through, and counts the rest.
class Throttle {
 public:
  explicit Throttle(int lines_max = 5, TimeNs window = 60 * kSecondNs)
      : lines_max_(lines_max), window_(window) {}
  struct Turn {
    bool write = false;
    uint64_t held_back = 0;  ///< in the window that has ended; told once
  };
  Turn next(TimeNs now);

 private:
  int lines_max_;
  TimeNs window_;
  bool begun_ = false;
  TimeNs begin_ = 0;
  int lines_ = 0;
  uint64_t held_back_ = 0;
};

}  // namespace kern::node
