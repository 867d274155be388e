#pragma once
/// The head of a decode group (rank 0's process): grants room on all ranks at once, counts what has
/// landed, batches running sequences into lockstep steps, and sends tokens up to the prefill head.
/// A sequence's memory is given back once every rank has run the last item that names it.
/// The shell loop: call a method with an event, then take the output (rank 0's commands go to the
/// local rank). While `joined` is false the shell keeps no link to a head; when it turns true the
/// shell dials one and, once the link is up, calls on_head_up; its output begins with the
/// GroupHello.
/// Thread safety: one thread. Determinism: same calls, same commands.
/// Does not: touch bytes; ranks check parts against their own manifest and report what landed.

#include <memory>
#include <string>
#include <vector>

#include "kern/base/result.h"
#include "kern/engine/messages.h"
#include "kern/engine/metrics.h"

namespace kern::engine {

struct GroupOptions {
  GroupHello hello;    ///< what this group says of itself; also its geometry
  bool feeds = false;  ///< ExecutorLimits::feeds of every rank: a step is planned behind another
  TimeNs fill_within_max = 3600 * kSecondNs;  ///< no grant waits longer, whatever an Ask says
};

/// A command for one rank, 0 the local one.
struct ToRank {
  int32_t rank = 0;
  RankCommand command;
};
struct GroupOutput {
  std::vector<ToRank> ranks;
  std::vector<GroupReport> head;
  std::vector<int32_t> dropped_ranks;  ///< close these links: a broken protocol
  bool drop_head = false;              ///< close the link to the head first: the group lost a rank
};

struct GroupCounters {
  uint64_t grants = 0, refusals = 0, expired = 0, landing_failed = 0;
  uint64_t steps = 0, tokens = 0;
  uint64_t late_messages = 0;
  uint64_t disagreements = 0;         ///< steps for which two ranks chose different tokens
  uint32_t granted = 0, running = 0;  ///< now
  uint32_t pages_used = 0, slots_used = 0;
};

class DecodeGroupHead {
 public:
  /// Refuses a geometry that cannot hold one token (kind caller).
  static Result<DecodeGroupHead> create(const GroupOptions& options);
  ~DecodeGroupHead();
  DecodeGroupHead(DecodeGroupHead&&) noexcept;
  DecodeGroupHead& operator=(DecodeGroupHead&&) noexcept;

  // ranks
  /// The link to a rank is up (rank 0: the local one). When all are, a new epoch begins.
  void on_rank_up(int32_t rank, TimeNs now);
  /// A rank that comes back may take parts elsewhere; before its on_rank_up.
  void set_address(int32_t rank, std::string address);
  /// Everything ends; the link to the head is dropped until the group is whole again.
  void on_rank_lost(int32_t rank, TimeNs now);
  void on_rank_report(int32_t rank, const RankReport& report, TimeNs now);

  // the prefill head
  void on_head_up(TimeNs now);
  /// Everything of that head is freed; a new epoch begins.
  void on_head_lost(TimeNs now);
  void on_head_command(const GroupCommand& command, TimeNs now);

  void tick(TimeNs now);
  GroupOutput take_output();
  TimeNs wake_at() const;
  /// All ranks are there and at rest, so that a head may be dialled, or one is connected.
  bool joined() const;
  /// Nothing is granted or running and no memory is held.
  bool idle() const;
  GroupCounters counters() const;

 private:
  struct Impl;
  explicit DecodeGroupHead(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Pages that each of `ranks` ranks needs for `tokens` of one sequence.
uint32_t rank_pages(uint32_t tokens, uint32_t ranks, uint32_t page_tokens);

}  // namespace kern::engine
