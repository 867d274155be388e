#pragma once
/// The head of a one-process server: prompts and decode on one pool and one executor. At most one
/// prefill item and one decode step wait for the executor, which runs them in order, so that decode
/// goes on between the chunks of a long prompt; without prompts two steps do, where the second can
/// be fed the tokens of the first. What a step in flight still names may be given away all the
/// same: whoever gets it comes later in that order. The shell loop: call a method with an event,
/// then take items (run them in order, bring each result to on_result) and events (send them to
/// clients). `tick` passes time; call it at `wake_at`. Thread safety: one thread. Determinism: same
/// calls, same answers; time only decides deadlines.

#include <memory>
#include <optional>
#include <vector>

#include "kern/engine/executor.h"
#include "kern/engine/item.h"
#include "kern/engine/metrics.h"
#include "kern/engine/request.h"

namespace kern::engine {

struct UnifiedOptions {
  ExecutorLimits limits;
  int32_t queue_max = 1024;  ///< requests waiting for memory
  bool prefix_cache = true;
  uint32_t park_tokens_min = 0;  ///< a shorter prefix is dropped, not parked
};

class UnifiedHead {
 public:
  static Result<UnifiedHead> create(const UnifiedOptions& options);
  ~UnifiedHead();
  UnifiedHead(UnifiedHead&&) noexcept;
  UnifiedHead& operator=(UnifiedHead&&) noexcept;

  void submit(Request request, TimeNs now);
  /// The client is gone or has enough; ends as `aborted` unless it had ended. Unknown ids are
  /// ignored.
  void abort(RequestId id, TimeNs now);
  /// A result that is not of the oldest item taken is a peer error; nothing changed.
  Result<void> on_result(const ItemResult& result, TimeNs now);
  /// The executor is of no more use: everything unfinished ends as `unavailable`.
  void on_executor_lost(TimeNs now);
  void tick(TimeNs now);

  /// Items to run, in order. At most two are ever out.
  std::vector<Item> take_items();
  std::vector<RequestEvent> take_events();
  /// When `tick` next has something to do; 0: never.
  TimeNs wake_at() const;
  /// Whether nothing is queued, running or out.
  bool idle() const;
  Counters counters() const;

 private:
  struct Impl;
  explicit UnifiedHead(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kern::engine
