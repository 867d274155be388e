#pragma once
/// What a handle names, read-only: beside plans the only way to a place's number. The one idea: a
/// view is of one moment. It remembers how many changes its pool had seen, and every read of a view
/// that is older than the pool's last grant, freezing or return aborts, so that none can silently
/// outlive what it shows. Take one, read it, forget it; taking costs nothing.
/// Thread safety: one thread with its pool.
/// Ownership / lifetime: owns nothing; copyable; not to be touched after its pool is gone.
/// Does not: keep what it shows alive (its handle does).

#include <cstdint>
#include <span>
#include <vector>

#include "kern/pool/plan.h"

namespace kern::pool {

class Lease;
template <class Tier>
class Prefix;

/// A lease's page table and slot.
class LeaseView {
 public:
  /// Whether nothing has changed since it was taken; only then may the rest be read.
  bool current() const;
  /// The page table from position 0, frozen pages first. The span itself lies where it is until the
  /// lease goes or is retired.
  std::span<const PageId> pages() const;
  /// The line of recurrent state; null when the model has none.
  SlotId slot() const;
  /// Positions that the page table reaches: a whole number of pages, at least what was asked for.
  uint32_t capacity() const;
  /// First position that may still be written. What lies before is frozen and shared.
  uint32_t writable_from() const;

 private:
  friend class Lease;
  LeaseView(const Store& store, uint32_t record);
  const Store* store_;
  uint64_t version_;
  uint32_t record_;
};

/// A frozen prefix's pages and slot, in the memory of one tier.
template <class Tier>
class PrefixView {
 public:
  using Page = typename Tier::Page;
  using Slot = typename Tier::Slot;

  /// Whether nothing has changed since it was taken; only then may the rest be read.
  bool current() const;
  /// Positions in the prefix, at least 1.
  uint32_t len() const;
  /// The state after the last position; null when the model has none.
  Slot slot() const;
  /// Pages that hold the positions.
  uint32_t page_count() const;
  /// Writes the pages from position 0 into `out`, which has room for `page_count()`. One walk.
  void pages_into(std::span<Page> out) const;
  /// The same into a vector of its own.
  std::vector<Page> pages() const;

 private:
  friend class Prefix<Tier>;
  PrefixView(const Store& store, Page tail, Slot slot, uint32_t len);
  const Store* store_;
  uint64_t version_;
  Page tail_;
  Slot slot_;
  uint32_t len_;
};

using CheckpointView = PrefixView<DeviceTier>;
using ParkedView = PrefixView<HostTier>;

extern template class PrefixView<DeviceTier>;
extern template class PrefixView<HostTier>;

}  // namespace kern::pool
