#pragma once
/// Where the time of finished requests went, phase by phase, from what a head sends and hears.
/// Thread safety: one thread. Does not: read a clock; the caller gives the time.
///
///   submitted ─queue─> first item sent ─prefill─> first token ─hand-off─> landed ─steps─> finished

#include <map>

#include "kern/base/clock.h"
#include "kern/engine/messages.h"

namespace kern::node {

class RequestPhases {
 public:
  /// Sums over finished requests that passed every phase.
  struct Sums {
    uint64_t requests = 0;
    TimeNs queue = 0, prefill = 0, handoff = 0, steps = 0;
  };

  void submitted(engine::RequestId id, TimeNs now) { open_[id].submitted = now; }
  void sent(const engine::StageCommand& command, TimeNs now);
  void heard(const engine::GroupReport& report, TimeNs now);
  void told(const engine::RequestEvent& event, TimeNs now);
  const Sums& sums() const { return sums_; }

 private:
  struct Times {
    TimeNs submitted = 0, started = 0, first_token = 0, landed = 0;
    engine::Generation generation;
  };

  std::map<engine::RequestId, Times> open_;
  std::map<engine::Generation, engine::RequestId> generations_;
  Sums sums_;
};

}  // namespace kern::node
