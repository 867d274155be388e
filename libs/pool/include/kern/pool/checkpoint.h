#pragma once
/// A frozen prefix: its pages, shared in place and never written again, and, when the model has
/// recurrent state, the slot that holds the state exactly after its last token.
/// Thread safety: one thread with its pool.
/// Ownership / lifetime: move-only; several handles may hold one prefix (`share`), the last one to
/// go frees what nothing else holds; must not outlive the pool. A moved-from checkpoint may only be
/// destroyed or assigned to.
/// Does not: know the tokens (the prefix tree does) or whether its bytes have been computed yet.

#include <cstdint>
#include <vector>

#include "kern/pool/denied.h"
#include "kern/pool/plan.h"

namespace kern::pool {

class Checkpoint {
 public:
  Checkpoint(Checkpoint&& other) noexcept;
  Checkpoint& operator=(Checkpoint&& other) noexcept;
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;
  ~Checkpoint();

  /// Positions in the prefix, at least 1.
  uint32_t len() const { return len_; }
  /// The state after the last position; null when the model has none.
  SlotId slot() const { return slot_; }
  /// The pages from position 0; a walk and an allocation, for transfers and tests.
  std::vector<PageId> pages() const;
  /// Another handle on the same prefix. Costs nothing and moves nothing.
  [[nodiscard]] Checkpoint share() const;
  /// Whether a restore at `len` is allowed: its own length or, without recurrent state, any whole
  /// page of it.
  bool usable_at(uint32_t len) const;
  /// Whether this is the only holder of at least one page (pages 0 or 1) and of the slot.
  Amount sole_holder() const;

 private:
  friend class Store;
  Checkpoint(Store* store, PageId tail, SlotId slot, uint32_t len)
      : store_(store), tail_(tail), slot_(slot), len_(len) {}
  Store* store_;
  PageId tail_;
  SlotId slot_;
  uint32_t len_;
};

}  // namespace kern::pool
