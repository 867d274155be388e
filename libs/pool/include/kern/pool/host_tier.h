#pragma once
/// The second tier: a checkpoint's bytes in host memory, and what moves between the tiers, as data.
/// The one idea: a page (or slot) frozen in one tier never changes, so its copy in the other is its
/// twin while both live, and going back to a tier where a twin lives moves nothing.
/// Thread safety: one thread with its pool.
/// Ownership / lifetime: plans are plain values; `Parked` owns its places as a checkpoint does.
/// Does not: own or touch the memory; `Pool::host_offset` says where in it a place lies.

#include <cstdint>
#include <optional>
#include <vector>

#include "kern/pool/checkpoint.h"
#include "kern/pool/denied.h"
#include "kern/pool/plan.h"

namespace kern::pool {

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
