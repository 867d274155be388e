#pragma once
/// The head of a prefill pipeline (stage 0's process): takes requests, places each on a decode
/// group, plans prompts for all stages, commands the hand-off, and forwards the group's tokens.
/// The shell loop: call a method with an event, then take commands (send them in order, stage 0's
/// to the local stage) and events (to clients). `tick` passes time; call it at `wake_at`.
/// The states of a hand-off, their owners and deadlines are drawn in this library's README.
/// Thread safety: one thread. Determinism: same calls, same commands.
/// Does not: open links. A group's link that breaks is `on_group_lost`; a stage's `on_stage_lost`.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kern/engine/executor.h"
#include "kern/engine/messages.h"
#include "kern/engine/metrics.h"
#include "kern/engine/request.h"

namespace kern::engine {

struct HeadOptions {
  int32_t stages = 1;
  ExecutorLimits limits;     ///< what every stage allows
  int32_t queue_max = 1024;  ///< requests waiting for memory or a group
  bool prefix_cache = true;
  uint32_t park_tokens_min = 0;           ///< a shorter prefix is dropped, not parked
  int32_t attempts_max = 3;               ///< hand-offs tried for one request
  TimeNs answer_within = 10 * kSecondNs;  ///< a group answers an Ask; else it is dropped
  TimeNs release_within =
      60 * kSecondNs;                   ///< a group gives back what has ended; else it is dropped
  TimeNs fill_within = 60 * kSecondNs;  ///< a grant is filled, plus …
  TimeNs fill_per_token = kMillisecondNs;     ///< … this for each prompt token
  TimeNs wait_for_pipeline = 30 * kSecondNs;  ///< queued requests outlive a lost peer so long
  /// Above every generation and epoch of an earlier head of this cluster, as a clock's reading is.
  uint64_t first_generation = 1;
};

/// A command for one stage, 0 the local one.
struct ToStage {
  int32_t stage = 0;
  StageCommand command;
};
struct ToGroup {
  GroupId group;
  GroupCommand command;
};
/// Everything to send, in order.
struct HeadOutput {
  std::vector<ToStage> stages;
  std::vector<ToGroup> groups;
  std::vector<RequestEvent> events;
  std::vector<int32_t> dropped_stages;  ///< close these links: a broken protocol
  std::vector<GroupId> dropped_groups;  ///< close these links: a deaf group, or a broken protocol
};

class PrefillHead {
 public:
  static Result<PrefillHead> create(const HeadOptions& options);
  ~PrefillHead();
  PrefillHead(PrefillHead&&) noexcept;
  PrefillHead& operator=(PrefillHead&&) noexcept;

  // clients
  void submit(Request request, TimeNs now);
  /// The client is gone or has enough; ends as `aborted` unless it had ended. Unknown ids are
  /// ignored.
  void abort(RequestId id, TimeNs now);

  // stages
  /// The link to a stage is up (stage 0: the local one). When all are, a new epoch begins.
  void on_stage_up(int32_t stage, TimeNs now);
  void on_stage_lost(int32_t stage, TimeNs now);
  void on_stage_report(int32_t stage, const StageReport& report, TimeNs now);

  // groups
  /// A group has joined with its hello; returns the name that the shell and the stages use for it.
  /// A hello that cannot be served (no pages, no slots, addresses not one a rank) is kind peer.
  Result<GroupId> on_group_up(GroupHello hello, TimeNs now);
  void on_group_lost(GroupId group, TimeNs now);
  void on_group_report(GroupId group, const GroupReport& report, TimeNs now);

  void tick(TimeNs now);
  HeadOutput take_output();
  /// When `tick` next has something to do; 0: never.
  TimeNs wake_at() const;
  /// The pipeline is formed and a group is there.
  bool ready() const;
  /// No request is unfinished, no memory is held for one, and no item is in flight.
  bool idle() const;
  /// The longest prompt + max_tokens that can be served now.
  uint32_t context_max() const;
  Counters counters() const;
  std::vector<GroupStatus> groups() const;

 private:
  struct Impl;
  explicit PrefillHead(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kern::engine
