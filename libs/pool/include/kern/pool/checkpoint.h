#pragma once
/// A frozen prefix: its pages, shared in place and never written again, and, when the model has
/// recurrent state, the slot that holds the state exactly after its last token. In device memory it
/// is a `Checkpoint`, in host memory the same thing is `Parked`.
/// Thread safety: one thread with its pool.
/// Ownership / lifetime: move-only; several handles may hold one prefix (`share`), the last one to
/// go frees what nothing else holds; must not outlive the pool. A moved-from handle may only be
/// destroyed or assigned to.
/// Does not: know the tokens (the prefix tree does) or whether its bytes have been computed yet.

#include <cstdint>

#include "kern/pool/denied.h"
#include "kern/pool/plan.h"
#include "kern/pool/view.h"

namespace kern::pool {

template <class Tier>
class Prefix {
 public:
  Prefix(Prefix&& other) noexcept;
  Prefix& operator=(Prefix&& other) noexcept;
  Prefix(const Prefix&) = delete;
  Prefix& operator=(const Prefix&) = delete;
  ~Prefix();

  /// Positions in the prefix, at least 1.
  uint32_t len() const { return len_; }
  /// Its places, for transfers and tests; good until the pool changes.
  PrefixView<Tier> view() const;
  /// Another handle on the same prefix. Costs nothing and moves nothing.
  [[nodiscard]] Prefix share() const;
  /// Whether it can be restored from, or woken, at `len`: its own length or, without recurrent
  /// state, any whole page of it.
  bool usable_at(uint32_t len) const;
  /// Whether this is the only holder of at least one page (pages 0 or 1) and of the slot.
  Amount sole_holder() const;

 private:
  friend class Store;
  Prefix(Store* store, typename Tier::Page tail, typename Tier::Slot slot, uint32_t len)
      : store_(store), tail_(tail), slot_(slot), len_(len) {}
  Store* store_;
  typename Tier::Page tail_;
  typename Tier::Slot slot_;
  uint32_t len_;
};

using Checkpoint = Prefix<DeviceTier>;
using Parked = Prefix<HostTier>;

extern template class Prefix<DeviceTier>;
extern template class Prefix<HostTier>;

}  // namespace kern::pool
