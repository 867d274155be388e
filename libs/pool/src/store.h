#pragma once
// The pool's state behind its handles. Which page is whose:
//   free     in free_pages_, refs 0
//   leased   in exactly one lease's table at or behind its `frozen`, refs 1
//   frozen   a node: `parent` is the page before it in its prefix; refs counts the nodes
//            whose parent it is, the checkpoints whose tail it is and the leases whose last
//            frozen page it is
// A node keeps its parent alive, so holding a tail holds a whole prefix with one count. A page's
// predecessor never changes once frozen, because its contents depend on all that came before.

#include <deque>
#include <span>
#include <vector>

#include "arena.h"
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

  Outcome<Lease> lease(uint32_t tokens);
  Outcome<Frozen> checkpoint(Lease& lease, uint32_t len);
  Checkpoint retire(Lease lease, uint32_t len);
  Outcome<Restored> restore(const Checkpoint& checkpoint, uint32_t len, uint32_t tokens);
  Outcome<Restored> fork(Lease& lease, uint32_t len, uint32_t tokens);
  // A handle on the first `len` positions of `from`, where `from.usable_at(len)`.
  Checkpoint share(const Checkpoint& from, uint32_t len);
  Outcome<Slept> park(const Checkpoint& checkpoint);
  // Why a checkpoint cannot be parked now.
  std::optional<Denied> parking_denied(const Checkpoint& checkpoint) const;
  Outcome<Woken> wake(const Parked& parked, uint32_t len);
  Parked share(const Parked& from, uint32_t len);

  // For the handles.
  std::span<const PageId> table(const Lease& lease) const { return records_[lease.record_].table; }
  SlotId slot(const Lease& lease) const { return records_[lease.record_].slot; }
  uint32_t frozen(const Lease& lease) const { return records_[lease.record_].frozen; }
  void drop(const Lease& lease);
  void drop(const Checkpoint& checkpoint);
  std::vector<PageId> pages(const Checkpoint& checkpoint) const;
  Amount sole_holder(const Checkpoint& checkpoint) const;
  void drop(const Parked& parked);
  std::vector<HostPageId> pages(const Parked& parked) const;
  Amount sole_holder(const Parked& parked) const;
  uint64_t host_offset(HostPageId page) const;
  uint64_t host_offset(HostSlotId slot) const;

  uint32_t pages_for(uint32_t tokens) const;

 private:
  struct Node {
    PageId parent;
    uint32_t refs = 0;
    HostPageId twin;  // the same bytes in the host tier
  };
  struct HostNode {
    HostPageId parent;
    PageId twin;
    uint32_t refs = 0;
  };
  struct HostSlot {
    SlotId twin;
    uint32_t refs = 0;
  };
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
  void release_slot(SlotId slot);
  void retain(PageId tail);
  void release(PageId tail);
  PageId ancestor(PageId tail, uint32_t steps) const;
  Record& open_record(uint32_t& index);
  void close_record(uint32_t index);
  void freeze(Record& record, uint32_t pages);
  // A lease of `total` pages, the first `shared` of them those that end with the node `tail`. The
  // copies tell where from; they learn where to. Room was checked.
  Lease lease_behind(PageId tail, uint32_t shared, uint32_t total, Copies& copies);
  std::optional<Denied> refuse_parking(const Checkpoint& checkpoint, Amount need) const;
  // The next page of a parked chain, made of a device page.
  HostPageId take_host_page(HostPageId parent, PageId twin);
  void retain(HostPageId tail);
  void release(HostPageId tail);
  void release(HostSlotId slot);
  HostPageId host_ancestor(HostPageId tail, uint32_t steps) const;
  HostNode& host_node(HostPageId page) { return host_nodes_[page.value()]; }
  const HostNode& host_node(HostPageId page) const { return host_nodes_[page.value()]; }
  Node& node(PageId page) { return nodes_[page.value()]; }
  const Node& node(PageId page) const { return nodes_[page.value()]; }

  const Geometry geometry_;
  Occupancy occupancy_;
  std::vector<Node> nodes_;          // by page
  std::vector<uint32_t> slot_refs_;  // by slot
  std::vector<PageId> free_pages_;   // a stack
  std::vector<SlotId> free_slots_;   // a stack
  std::deque<Record> records_;       // of leases; closed ones keep their memory
  std::vector<uint32_t> free_records_;
  Arena arena_;
  std::vector<HostNode> host_nodes_;    // by host page
  std::vector<HostSlot> host_slots_;    // by host slot
  std::vector<HostSlotId> slot_twins_;  // by slot
};

}  // namespace kern::pool
