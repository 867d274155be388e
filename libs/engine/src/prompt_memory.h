#pragma once
/// The state memory of one pipeline and the prefixes cached in it, on the device and in host
/// memory. Under pressure what is worth least leaves the device: parked where there is a host tier
/// and the prefix is long enough, dropped where not. A prefix found in host memory is woken.
/// What has to move is kept, in order, until an item carries it.
/// Thread safety: one thread. Determinism: same calls, same places and moves.
/// Does not: know items, or when a move is done.

#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "kern/engine/item.h"
#include "kern/engine/metrics.h"
#include "kern/pool/pool.h"
#include "kern/pool/prefix.h"

namespace kern::engine {

class PromptMemory {
 public:
  PromptMemory(const pool::Geometry& geometry, uint32_t park_tokens_min)
      : park_tokens_min_(park_tokens_min),
        pool_(geometry),
        tree_(std::make_unique<pool::PrefixTree>(pool_)) {}

  pool::Pool& pool() { return pool_; }
  const pool::Pool& pool() const { return pool_; }

  /// Runs `grant` until it is granted, nothing that helps can leave any more, or it never can be.
  template <class Grant>
  std::invoke_result_t<Grant> with_room(Grant grant) {
    auto outcome = grant();
    while (!outcome && outcome.denied().reason == pool::Reason::busy &&
           make_room(outcome.denied().missing))
      outcome = grant();
    return outcome;
  }

  /// The longest usable proper prefix on a grid line, on the device: one in host memory is woken,
  /// and stays in the cache as it is then. Denied: there is one, and no room to wake it.
  pool::Outcome<std::optional<pool::Hit>> find(std::span<const Token> prompt, uint32_t grid);
  void insert(std::span<const Token> prompt, pool::Checkpoint checkpoint);
  /// Every cached prefix is forgotten, in both tiers.
  void forget();

  bool moves_due() const { return !due_.empty(); }
  std::vector<Move> take_moves() { return std::exchange(due_, {}); }
  void count(Counters& counters) const;

 private:
  bool make_room(const pool::Amount& missing);
  void park(pool::Leaving leaving);
  /// Adds a plan's moves and returns their bytes.
  uint64_t add(const pool::Transfers& transfers, bool park);

  uint32_t park_tokens_min_;
  pool::Pool pool_;
  std::unique_ptr<pool::PrefixTree> tree_;
  std::vector<Move> due_;
  uint64_t parked_ = 0, woken_ = 0, dropped_ = 0, host_dropped_ = 0;
  uint64_t parked_bytes_ = 0, woken_bytes_ = 0, host_hits_ = 0;
};

}  // namespace kern::engine
