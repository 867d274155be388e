#pragma once
/// What an executor has to move, as data. The pool decides and moves no byte; whoever owns the
/// memory executes a plan before the first use of the handle that came with it.
/// Thread safety: plain values.
/// Determinism: plans compare by value; equal histories give equal plans.

#include <compare>
#include <cstdint>
#include <optional>

namespace kern::pool {

class Store;

/// A place in state memory. Only a pool makes one that is not null, so none can be invented.
template <class Tag>
class Place {
 public:
  constexpr Place() = default;
  /// The number kernels see. 0 is never granted.
  constexpr uint32_t value() const { return value_; }
  constexpr bool null() const { return value_ == 0; }
  friend constexpr auto operator<=>(Place, Place) = default;

 private:
  friend class Store;
  constexpr explicit Place(uint32_t value) : value_(value) {}
  uint32_t value_ = 0;
};

/// A page of every paged state at once.
using PageId = Place<struct PageTag>;
/// One sequence's line of every per-sequence state at once.
using SlotId = Place<struct SlotTag>;
/// The bytes of one page of every paged state, in host memory. Counted from its low end.
using HostPageId = Place<struct HostPageTag>;
/// The bytes of one line of every per-sequence state, in host memory. Counted from its high end.
using HostSlotId = Place<struct HostSlotTag>;

/// The two memories that hold frozen prefixes, as the places in them.
struct DeviceTier {
  using Page = PageId;
  using Slot = SlotId;
  using Other = struct HostTier;
};
struct HostTier {
  using Page = HostPageId;
  using Slot = HostSlotId;
  using Other = DeviceTier;
};

struct PageCopy {
  PageId from, to;
  friend bool operator==(const PageCopy&, const PageCopy&) = default;
};

struct SlotCopy {
  SlotId from, to;
  friend bool operator==(const SlotCopy&, const SlotCopy&) = default;
};

/// At most the one page that a prefix ends inside, and at most one line of recurrent state.
/// The sources stay what they are only as long as their holder lives and does not run on: execute
/// (or queue, where work runs in order) before the source's handle goes or its lease is advanced.
struct Copies {
  std::optional<PageCopy> page;
  std::optional<SlotCopy> slot;
  bool empty() const { return !page && !slot; }
  friend bool operator==(const Copies&, const Copies&) = default;
};

}  // namespace kern::pool
