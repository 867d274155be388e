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
#include "kern/pool/host_tier.h"
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
  uint64_t host_bytes = 0;     ///< of host memory for parked prefixes; 0: no such tier
  uint64_t page_bytes = 0;     ///< of one page of every paged state; not used without a host tier
  uint64_t slot_bytes = 0;     ///< of one line of every per-sequence state; likewise
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
  uint32_t host_pages = 0;  ///< held by parked prefixes
  uint32_t host_slots = 0;
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

  /// Gives a checkpoint a place in host memory; it stays, and once its last handle goes its device
  /// memory is free while the parked one lives. Only what has no twin there is copied. Every frozen
  /// position of its pages must have been computed. What a refusal says is missing is host memory:
  /// it suffices that so many parked pages and slots go; exceeds_pool: larger than all of it.
  /// `executed` is a plan no longer needed, whose memory the new one takes over; a refusal leaves
  /// it. Given one that was long enough, nothing is allocated.
  Outcome<Slept> park(const Checkpoint& checkpoint, Transfers&& executed = Transfers{});

  /// The first `len` positions of a parked prefix, `usable_at(len)`, as a checkpoint again, made of
  /// its twins where they live and of free pages where not; to be restored from or parked again,
  /// which copies nothing. The parked one stays; hold it until the transfers are executed.
  /// `executed` as for `park`.
  Outcome<Woken> wake(const Parked& parked, uint32_t len, Transfers&& executed = Transfers{});

  /// Where in host memory a place begins, in bytes.
  uint64_t host_offset(HostPageId page) const;
  uint64_t host_offset(HostSlotId slot) const;

  const Geometry& geometry() const;
  const Occupancy& occupancy() const;
  /// How many times a place was granted, frozen or given back: what a view is checked by.
  uint64_t version() const;

 private:
  friend class PrefixTree;
  std::unique_ptr<Store> store_;
};

}  // namespace kern::pool
