#pragma once
/// Turns prompts into prefill items. Owns the state memory of one pipeline (a pool with its prefix
/// cache): looks a prompt up, leases its worst case, packs rows of several prompts into an item,
/// and keeps a checkpoint of each prompt that came out whole. Items run in the order of their ids
/// on every stage, so memory freed while an item is in flight may be given to a later item at once.
/// Prefixes that give way are parked in host memory and woken on a hit (README, "Parking").
/// Packing: chunk cuts lie on the 64-token grid of their sequence; every admitted prompt has a fair
/// share of an item's rows and the oldest gets what is left, so short prompts ride beside long ones
/// and long ones still finish in order.
/// Thread safety: one thread. Determinism: same calls, same items.
/// Does not: know groups, clients, deadlines or decode.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "kern/engine/executor.h"
#include "kern/engine/messages.h"
#include "kern/engine/metrics.h"

namespace kern::engine {

/// Chunks are cut, and checkpoints lie, on multiples of this many tokens from the sequence's start.
inline constexpr uint32_t kGridTokens = 64;

struct PrefillOptions {
  ExecutorLimits limits;
  int32_t pipeline_depth = 1;  ///< a partial item goes only while fewer are in flight
  int32_t items_max = 2;       ///< no item goes while this many are in flight
  bool prefix_cache = true;
  uint32_t park_tokens_min = 0;  ///< a shorter prefix is dropped, not parked
};

/// One prompt to run.
struct PrefillJob {
  RequestId id;
  std::vector<Token> prompt;
  uint32_t lease_tokens = 0;  ///< at least the prompt; what is written under this lease
  int32_t priority = 0;
  Sampling sampling;
  int32_t top_logprobs = -1;
};

/// Whether a sequence of so many tokens can ever run here.
enum class Fit : uint8_t { fits, exceeds_context, exceeds_pool };

/// A prompt whose last row came out.
struct PrefillDone {
  RequestId id;
  Emitted emitted;
  uint32_t cached_tokens = 0;
};

class PrefillScheduler {
 public:
  /// Refuses limits it cannot plan within, naming the limit (kind caller).
  static Result<PrefillScheduler> create(const PrefillOptions& options);
  ~PrefillScheduler();
  PrefillScheduler(PrefillScheduler&&) noexcept;
  PrefillScheduler& operator=(PrefillScheduler&&) noexcept;

  Fit fit(uint32_t tokens) const;

  /// Queues a job; ids are never reused while a scheduler lives. It must fit.
  void submit(PrefillJob job);
  /// The queued job whose turn it is, or null when none waits or enough are admitted for now.
  const PrefillJob* next() const;
  /// Leases memory for next() and makes it part of the coming items; false: no room now, and
  /// nothing changed but that cached prefixes may have been evicted.
  bool admit_next();
  /// The next item to send to every stage, under this id, or nothing to do now. Ids grow. Prompts
  /// whose memory is still on the move go into it only when no other is there and it `may_wait`.
  std::optional<Item> plan(uint64_t item_id, bool may_wait = true);
  /// Gives an item that was planned elsewhere, after those planned here, the moves that are due.
  void carry_moves(Item& item);
  /// The moves of items up to this one are done where results come from; on_result says so too.
  void moved(uint64_t item_id);
  /// The last stage's result, in the order of items; one that does not answer the oldest item is
  /// kind peer and changes nothing. Prompts that are done keep their memory until `release`; what
  /// was `failed` leaves no checkpoint.
  Result<std::vector<PrefillDone>> on_result(const ItemResult& result);

  /// Takes a job back in any state: queued, admitted or done. Its memory is free for later items.
  void release(RequestId id);
  /// Where an admitted job's sequence lies.
  Place place(RequestId id) const;
  /// The item that runs the job's last row, once planned.
  std::optional<uint64_t> last_item(RequestId id) const;
  uint32_t cached_tokens(RequestId id) const;
  /// Whether memory was leased.
  bool admitted(RequestId id) const;

  /// The stages have lost their memory: every lease and cached prefix is forgotten. Queued jobs
  /// stay; admitted ones are returned, in order of admission, and are no longer known.
  std::vector<RequestId> reset();

  size_t queued() const;
  int32_t items_in_flight() const;
  /// Adds this scheduler's gauges and totals.
  void count(Counters& counters) const;
  /// Drops every cached prefix that nothing holds.
  void drop_cache();

 private:
  struct Impl;
  explicit PrefillScheduler(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kern::engine
