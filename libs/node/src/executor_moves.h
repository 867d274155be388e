#pragma once
/// An item's moves on a runtime's host tier: from items' ids to the tier's tickets.
/// Thread safety: one thread.

#include <deque>
#include <utility>

#include "kern/engine/item.h"
#include "kern/runtime/host_tier.h"

namespace kern::node {

class ExecutorMoves {
 public:
  /// `tier` may be null, and outlives this.
  explicit ExecutorMoves(runtime::HostTier* tier) : tier_(tier) {}

  /// Starts the item's moves; once, however often it is called. Kind caller without a tier.
  Result<void> start(const engine::Item& item);
  /// What is enqueued from now on comes after the moves that the item waits for.
  Result<void> await(const engine::Item& item);
  /// The last item up to which every move is done; 0: none.
  Result<uint64_t> moved();
  Result<void> settle();

 private:
  struct Started {
    uint64_t item = 0, ticket = 0;
  };

  runtime::HostTier* tier_;
  uint64_t last_item_ = 0;  ///< whose moves were started
  uint64_t moved_ = 0;
  std::deque<Started> under_way_;
};

}  // namespace kern::node
