#pragma once
/// Finds the longest checkpoint of a prompt, and lets the one worth least go when memory is short.
/// A radix tree over tokens a tier; every entry holds its checkpoint, or the parked one.
/// Thread safety: one thread with its pool.
/// Ownership / lifetime: the pool outlives the tree. The caller holds what `lookup` returns, so
/// that a later eviction cannot pull it away.
/// Determinism: recency is a count of operations, order never depends on addresses or hashes.
/// Does not: read a clock, or know what recomputing a prefix costs (a policy does).

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "kern/pool/checkpoint.h"
#include "kern/pool/host_tier.h"
#include "kern/pool/pool.h"

namespace kern::pool {

/// What a policy may judge an entry by.
struct EntryView {
  uint32_t len = 0;           ///< positions of the checkpoint
  uint32_t ancestor_len = 0;  ///< positions of the nearest shorter entry on its path; 0: none
  uint64_t hits = 0;          ///< lookups that returned it
  bool recurrent = false;     ///< whether it holds a slot
};

/// Orders entries for eviction. The least worth goes first; equals go least recently hit first;
/// leaves always go before their ancestors.
class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  /// Asked when an entry is inserted, is hit, or becomes a leaf or an ancestor. Never NaN.
  virtual double worth(const EntryView& entry) = 0;
  /// Told the worth of each entry that goes.
  virtual void evicted(double worth) = 0;
};

/// What recomputing costs and what keeping costs, in any units.
struct EntryCost {
  double per_token = 1;       ///< work of one position, whatever came before
  double per_token_pair = 0;  ///< work of one position per position before it (attention)
  double page_bytes = 1;
  double slot_bytes = 0;
  uint32_t page_tokens = 64;
};

/// Recompute cost per byte, aged: each eviction raises what newcomers and hits are worth, so that
/// an expensive entry nobody asks for goes in the end.
std::unique_ptr<EvictionPolicy> recompute_cost_per_byte(const EntryCost& cost);

/// The longest usable proper prefix of a prompt.
struct Hit {
  uint32_t len = 0;  ///< = held.len(), less than the prompt's
  Checkpoint held;
};

/// The longest usable proper prefix in either tier: to restore from, or to wake first.
struct Found {
  uint32_t len = 0;  ///< that of what is held, less than the prompt's
  std::variant<Checkpoint, Parked> held;
};

/// An entry taken out, and the tokens under which to enter what becomes of it.
struct Leaving {
  std::vector<int32_t> tokens;
  Checkpoint held;
};

/// What an eviction did.
struct Evicted {
  uint32_t entries = 0;
  Amount freed;
  bool enough = false;  ///< whether all that was missing is free now
};

class PrefixTree {
 public:
  /// Without a policy: least recently hit goes first. Each tier has its own.
  explicit PrefixTree(Pool& pool, std::unique_ptr<EvictionPolicy> policy = nullptr,
                      std::unique_ptr<EvictionPolicy> parked_policy = nullptr);
  ~PrefixTree();
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;

  /// Enters a checkpoint of exactly these tokens. If there is one already, that one stays and
  /// counts as just used, the new handle is dropped, and the answer is false.
  bool insert(std::span<const int32_t> tokens, Checkpoint checkpoint);
  /// The same for a parked one; a checkpoint may be there under the same tokens as well.
  bool insert(std::span<const int32_t> tokens, Parked parked);

  /// The longest usable checkpoint shorter than `tokens`, if any; it counts as hit. A recurrent
  /// checkpoint is usable at its own length, another at any whole page of it too; of several that
  /// begin alike the hit counts for one: where they part, that of the branch that was empty last.
  /// One pass over the tokens.
  std::optional<Hit> lookup(std::span<const int32_t> tokens);

  /// The same over both tiers: a parked prefix if it is longer than every checkpoint.
  std::optional<Found> lookup_any(std::span<const int32_t> tokens);

  /// Takes out the checkpoint worth least and returns it; none when the tree holds none.
  std::optional<Checkpoint> evict();
  /// The same with its tokens, for who parks it and enters the parked one. `memory` is a vector no
  /// longer needed, which the tokens are written to; it stays as it was when there is none.
  std::optional<Leaving> evict_to_park(std::vector<int32_t>&& memory = {});
  /// The same for who needs `missing` more, one entry a call: only an entry whose going frees
  /// something of it, or is one of those that end inside one page and hold it together. None goes
  /// when more is missing than is frozen at all.
  std::optional<Leaving> evict_to_park(const Amount& missing, std::vector<int32_t>&& memory = {});

  /// Lets entries go, worth least first, until `missing` more has become free; `Denied::missing` is
  /// the argument meant. Only entries whose going frees something still missing go; entries that
  /// end inside one page and hold it together go together, when none helps alone. None goes when
  /// more is missing than is frozen at all; when it is not enough otherwise, leases or hits in hand
  /// hold what is missing.
  Evicted evict(const Amount& missing);

  /// Lets parked entries go, worth least first, until `room_for` can be parked. Only entries whose
  /// going frees host memory go. When it is not enough, handles in hand hold that memory, or there
  /// is less than the checkpoint takes; then none goes.
  Evicted evict_parked(const Checkpoint& room_for);

  /// How many checkpoints the tree holds.
  uint32_t entries() const;
  /// How many parked ones it holds beside them.
  uint32_t parked_entries() const;

 private:
  class Tree;
  std::unique_ptr<Tree> resident_, parked_;
};

}  // namespace kern::pool
