#pragma once
/// A mark in a stream.
/// Thread safety: one thread at a time. Ownership: destroyed with the object; work that waits for
/// it keeps what it needs.

#include "kern/cuda/driver.h"

namespace kern::cuda {

class Event {
 public:
  enum class Timing : bool { off, on };
  static Result<Event> create(const Driver& driver, Timing timing = Timing::off);
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;
  ~Event();

  /// Whether everything before the mark is done; an event never recorded is.
  Result<bool> is_done() const;
  Result<void> synchronize() const;
  /// From `first` to this one; both made with Timing::on, and done.
  Result<double> milliseconds_since(const Event& first) const;
  api::Event raw() const { return event_; }

 private:
  Event(const Driver& driver, api::Event event) : driver_(&driver), event_(event) {}

  const Driver* driver_;
  api::Event event_;
};

}  // namespace kern::cuda
