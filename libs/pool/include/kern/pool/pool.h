#pragma once
/// Decides which page and slot every sequence holds, and hands out the copies that follow; moves no
/// byte. The one idea: freezing a prefix moves its pages in place from the lease into a chain of
/// counted nodes, so that retiring copies nothing and sharing costs one count.
/// Thread safety: one thread.
/// Ownership / lifetime: handles own what they name and must go before the pool does.
/// Determinism: the same operations give the same places and plans, whatever the host's clock,
/// memory or hash seed.
/// Does not: know tokens, models, devices, or how far a sequence has been computed.

#include <cstdint>
#include <memory>
#include <string>

#include "kern/pool/checkpoint.h"
#include "kern/pool/denied.h"
#include "kern/pool/lease.h"
#include "kern/pool/plan.h"

namespace kern::pool {

/// The memory there is. Counts include page 0 and slot 0, which are never granted.
struct Geometry {
  uint32_t page_tokens = 64;
  uint32_t pages = 0;
  uint32_t slots = 0;          ///< not used without recurrent state
  bool recurrent = true;       ///< whether there is per-sequence state
  uint32_t row_pages_max = 0;  ///< entries of one page table
};

/// Why no pool can be laid over this geometry, as one sentence; empty when one can.
std::string refusal(const Geometry& geometry);

/// Counters kept as things happen, never scanned. Free, leased and frozen add up to all but 0.
struct Occupancy {
  uint32_t pages_free = 0;
  uint32_t pages_leased = 0;  ///< still writable by their lease
  uint32_t pages_frozen = 0;  ///< shared in place by checkpoints and leases
  uint32_t slots_free = 0;
  uint32_t slots_leased = 0;
  uint32_t slots_frozen = 0;
  friend bool operator==(const Occupancy&, const Occupancy&) = default;
};

/// What `checkpoint` grants. The copies are lease -> checkpoint.
struct Frozen {
  Checkpoint checkpoint;
  Copies copies;
};

/// What `restore` and `fork` grant. The copies are checkpoint, or lease forked -> lease.
struct Restored {
  Lease lease;
  Copies copies;
};

class Pool {
 public:
  /// The geometry has no `refusal`.
  explicit Pool(const Geometry& geometry);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  /// Room for `tokens` positions (at least 1) and a slot if the model is recurrent: all or nothing.
  /// What the places held before is still there; a recurrent state is the caller's to zero.
  Outcome<Lease> lease(uint32_t tokens);

  /// Freezes the first `len` positions of a live lease, 1 <= len <= capacity. Whole pages are
  /// shared in place from now on; a page that the prefix ends inside is copied to a page of the
  /// checkpoint's own. A recurrent checkpoint takes a slot of its own: the copy says lease ->
  /// checkpoint and is met as well by a kernel that writes the state after `len` there itself. In
  /// that case this may be called before the positions are computed; then nobody may read the
  /// checkpoint until they are.
  Outcome<Frozen> checkpoint(Lease& lease, uint32_t len);

  /// Turns a lease into a checkpoint of its first `len` positions, 1 <= len <= capacity. Pages and
  /// slot stay where they are, nothing is copied, the pages behind become free. The recurrent state
  /// in the slot must be the one after `len`.
  Checkpoint retire(Lease lease, uint32_t len);

  /// A lease of `tokens` positions that begins with the first `len` of a checkpoint, which must be
  /// `usable_at(len)`; len <= tokens. The checkpoint stays; hold it until the copies are executed.
  /// exceeds_pool: does not fit beside this checkpoint, though a lease from nothing might.
  Outcome<Restored> restore(const Checkpoint& checkpoint, uint32_t len, uint32_t tokens);

  /// A second lease, of `tokens` positions, that begins with the first `len` of a live one, as for
  /// several samples of one prompt; 1 <= len <= capacity, len <= tokens. Whole pages are shared in
  /// place from now on and no longer written by either; a page that the prefix ends inside is
  /// copied to the new lease, and so is the recurrent state, which must be the one after `len`.
  /// Execute the copies before the forked lease is advanced. exceeds_pool: does not fit beside the
  /// lease forked, though a lease from nothing might.
  Outcome<Restored> fork(Lease& lease, uint32_t len, uint32_t tokens);

  const Geometry& geometry() const;
  const Occupancy& occupancy() const;

 private:
  friend class PrefixTree;
  std::unique_ptr<Store> store_;
};

}  // namespace kern::pool
