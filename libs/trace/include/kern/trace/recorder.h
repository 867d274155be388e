#pragma once
/// A fixed ring of events. Adding is a copy into place; the newest overwrite the oldest.
/// Thread safety: add and snapshot may be called from any thread.
/// Does not: read a clock or allocate after construction.

#include <mutex>
#include <vector>

#include "kern/trace/event.h"

namespace kern::trace {

class Recorder {
 public:
  /// Keeps the last `events_max` events, at least one.
  explicit Recorder(size_t events_max);

  void add(const Event& event);
  /// Oldest first.
  std::vector<Event> snapshot() const;
  /// Events ever added; those above the ring's size were overwritten.
  uint64_t added() const;

 private:
  mutable std::mutex mutex_;
  std::vector<Event> ring_;
  uint64_t added_ = 0;
};

}  // namespace kern::trace
