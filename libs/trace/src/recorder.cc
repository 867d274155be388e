#include "kern/trace/recorder.h"

#include "kern/base/assert.h"

namespace kern::trace {

Recorder::Recorder(size_t events_max) : ring_(events_max) {
  KERN_ASSERT(events_max > 0, "a ring holds at least one event");
}

void Recorder::add(const Event& event) {
  KERN_ASSERT(event.end >= event.start, "{} ends before it starts", event.name);
  const std::lock_guard lock(mutex_);
  ring_[added_++ % ring_.size()] = event;
}

std::vector<Event> Recorder::snapshot() const {
  const std::lock_guard lock(mutex_);
  const uint64_t kept = std::min<uint64_t>(added_, ring_.size());
  std::vector<Event> out;
  out.reserve(kept);
  for (uint64_t i = added_ - kept; i < added_; ++i) out.push_back(ring_[i % ring_.size()]);
  return out;
}

uint64_t Recorder::added() const {
  const std::lock_guard lock(mutex_);
  return added_;
}

}  // namespace kern::trace
