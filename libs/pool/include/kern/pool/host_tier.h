#pragma once
/// The second tier: a checkpoint's bytes in host memory, and what moves between the tiers, as data.
/// The one idea: a page (or slot) frozen in one tier never changes, so its copy in the other is its
/// twin while both live, and going back to a tier where a twin lives moves nothing.
/// Thread safety: one thread with its pool.
/// Ownership / lifetime: move-only; several handles may hold one parked prefix (`share`), the last
/// one to go frees what nothing else holds; must not outlive the pool. A moved-from handle may only
/// be destroyed or assigned to.
/// Does not: own or touch the memory; `Pool::host_offset` says where in it a place lies.

#include <cstdint>
#include <optional>
#include <vector>

#include "kern/pool/checkpoint.h"
#include "kern/pool/denied.h"
#include "kern/pool/plan.h"

namespace kern::pool {

/// The bytes of one page of every paged state, in host memory. Counted from its low end.
using HostPageId = Place<struct HostPageTag>;
/// The bytes of one line of every per-sequence state, in host memory. Counted from its high end.
using HostSlotId = Place<struct HostSlotTag>;

/// Two places that hold the same bytes once the plan is executed.
struct PageTransfer {
  PageId device;
  HostPageId host;
  friend bool operator==(const PageTransfer&, const PageTransfer&) = default;
};

struct SlotTransfer {
  SlotId device;
  HostSlotId host;
  friend bool operator==(const SlotTransfer&, const SlotTransfer&) = default;
};

/// What moves between the tiers, oldest page first: device to host for `park`, the other way for
/// `wake`. Execute (or queue, in the order of the calls) before the handle it came from goes: plans
/// to come count on it.
struct Transfers {
  std::vector<PageTransfer> pages;
  std::optional<SlotTransfer> slot;
  bool empty() const { return pages.empty() && !slot; }
  friend bool operator==(const Transfers&, const Transfers&) = default;
};

/// A checkpoint in host memory.
class Parked {
 public:
  Parked(Parked&& other) noexcept;
  Parked& operator=(Parked&& other) noexcept;
  Parked(const Parked&) = delete;
  Parked& operator=(const Parked&) = delete;
  ~Parked();

  /// Positions in the prefix, at least 1.
  uint32_t len() const { return len_; }
  /// The state after the last position; null when the model has none.
  HostSlotId slot() const { return slot_; }
  /// The pages from position 0; a walk and an allocation, for transfers and tests.
  std::vector<HostPageId> pages() const;
  /// Another handle on the same prefix. Costs nothing and moves nothing.
  [[nodiscard]] Parked share() const;
  /// Whether it can be woken at `len`: its own length or, without recurrent state, any whole page.
  bool usable_at(uint32_t len) const;
  /// Whether this is the only holder of at least one page (pages 0 or 1) and of the slot.
  Amount sole_holder() const;

 private:
  friend class Store;
  Parked(Store* store, HostPageId tail, HostSlotId slot, uint32_t len)
      : store_(store), tail_(tail), slot_(slot), len_(len) {}
  Store* store_;
  HostPageId tail_;
  HostSlotId slot_;
  uint32_t len_;
};

/// What `park` grants. The transfers are device -> host.
struct Slept {
  Parked parked;
  Transfers transfers;
};

/// What `wake` grants. The transfers are host -> device.
struct Woken {
  Checkpoint checkpoint;
  Transfers transfers;
};

}  // namespace kern::pool
