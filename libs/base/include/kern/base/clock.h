#pragma once
/// Time as a value passed in. Pure code takes `TimeNs`; shells read a Clock.
/// Thread safety: SystemClock may be shared; a test's clock belongs to its test.

#include <cstdint>

namespace kern {

/// Nanoseconds on a monotonic clock; only differences mean anything.
using TimeNs = int64_t;
inline constexpr TimeNs kMillisecondNs = 1'000'000;
inline constexpr TimeNs kSecondNs = 1'000'000'000;

class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimeNs now() const = 0;
};

/// The machine's monotonic clock.
class SystemClock : public Clock {
 public:
  TimeNs now() const override;
};

}  // namespace kern
