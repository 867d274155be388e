#pragma once
// The pool's state behind its handles. Which page of device memory is whose:
//   free     in free_pages_, refs 0
//   leased   in exactly one lease's table at or behind its `frozen`, refs 1
//   frozen   a node of device_ (chains.h), where a lease counts as a holder of its last frozen page
// A slot with a holder is a lease's or is frozen. A host place with a holder is frozen.

#include <deque>
#include <span>
#include <vector>

#include "arena.h"
#include "chains.h"
#include "check.h"
#include "kern/pool/checkpoint.h"
#include "kern/pool/denied.h"
#include "kern/pool/host_tier.h"
#include "kern/pool/lease.h"
#include "kern/pool/plan.h"
#include "kern/pool/pool.h"

namespace kern::pool {

class Store {
 public:
  explicit Store(const Geometry& geometry);
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  const Geometry& geometry() const { return geometry_; }
  const Occupancy& occupancy() const { return occupancy_; }
  uint64_t version() const { return version_; }

  Outcome<Lease> lease(uint32_t tokens);
  Outcome<Frozen> checkpoint(Lease& lease, uint32_t len);
  Checkpoint retire(Lease lease, uint32_t len);
  Outcome<Restored> restore(const Checkpoint& checkpoint, uint32_t len, uint32_t tokens);
  Outcome<Restored> fork(Lease& lease, uint32_t len, uint32_t tokens);
  Outcome<Slept> park(const Checkpoint& checkpoint, Transfers&& executed);
  // Why a checkpoint cannot be parked now.
  std::optional<Denied> parking_denied(const Checkpoint& checkpoint) const;
  Outcome<Woken> wake(const Parked& parked, uint32_t len, Transfers&& executed);
  // A handle on the first `len` positions of `from`, where `from.usable_at(len)`.
  template <class Tier>
  Prefix<Tier> share(const Prefix<Tier>& from, uint32_t len);

  // For the handles and their views.
  std::span<const PageId> table(uint32_t record) const { return records_[record].table; }
  SlotId slot(uint32_t record) const { return records_[record].slot; }
  uint32_t frozen(uint32_t record) const { return records_[record].frozen; }
  void drop(uint32_t record);
  void drop(const Checkpoint& checkpoint);
  void drop(const Parked& parked);
  template <class Tier>
  Amount sole_holder(const Prefix<Tier>& prefix) const;
  // How many name its last page, as their last or as what comes before.
  template <class Tier>
  uint32_t last_page_holders(const Prefix<Tier>& prefix) const {
    return chains(Tier()).node(prefix.tail_).refs;
  }
  template <class Tier>
  static bool same_last_page(const Prefix<Tier>& a, const Prefix<Tier>& b) {
    return a.tail_ == b.tail_;
  }
  void list(PageId tail, std::span<PageId> out) const { device_.list(tail, out); }
  void list(HostPageId tail, std::span<HostPageId> out) const { host_.list(tail, out); }
  uint64_t host_offset(HostPageId page) const;
  uint64_t host_offset(HostSlotId slot) const;

  uint32_t pages_for(uint32_t tokens) const;

 private:
  struct Record {
    std::vector<PageId> table;
    uint32_t frozen = 0;  // pages at the front of the table that are nodes
    SlotId slot;
  };

  // None when a row of so many pages is allowed, `need` is free now, and an empty pool could hold
  // it with what has to stay `beside` it.
  std::optional<Denied> refuse(uint32_t row_pages, Amount beside, Amount need) const;
  PageId take_page();
  SlotId take_slot();
  void free_page(PageId page);
  void release(PageId tail);
  void release(SlotId slot);
  Record& open_record(uint32_t& index);
  void close_record(uint32_t index);
  void freeze(Record& record, uint32_t pages);
  // A lease of `total` pages, the first `shared` of them those that end with the node `tail`. The
  // copies tell where from; they learn where to. Room was checked.
  Lease lease_behind(PageId tail, uint32_t shared, uint32_t total, Copies& copies);

  // How many pages and slots of a prefix have no twin; `last` becomes the last page that has one.
  template <class Tier>
  Amount without_twin(const Chains<Tier>& chains, typename Tier::Page tail,
                      typename Tier::Slot slot, typename Tier::Page& last) const;
  std::optional<Denied> refuse_parking(uint32_t len, Amount need) const;
  // The next page of a chain in one tier, twin of a page in the other.
  HostPageId take_host_page(HostPageId parent, PageId twin);
  PageId take_woken_page(PageId parent, HostPageId twin);
  void release(HostPageId tail);
  void release(HostSlotId slot);

  Chains<DeviceTier>& chains(DeviceTier) { return device_; }
  const Chains<DeviceTier>& chains(DeviceTier) const { return device_; }
  Chains<HostTier>& chains(HostTier) { return host_; }
  const Chains<HostTier>& chains(HostTier) const { return host_; }

  const Geometry geometry_;
  Occupancy occupancy_;
  uint64_t version_ = 0;
  Chains<DeviceTier> device_;
  std::vector<PageId> free_pages_;  // a stack
  std::vector<SlotId> free_slots_;  // a stack
  std::deque<Record> records_;      // of leases; closed ones keep their memory
  std::vector<uint32_t> free_records_;
  Chains<HostTier> host_;
  Arena arena_;
};

}  // namespace kern::pool
