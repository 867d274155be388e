#pragma once
/// The second tier of a Runtime's states: a block of host memory that holds copies of pages and
/// slots, page-locked and near the device where that is a GPU. Pages lie from its low end, slots
/// from its high end, each with the bytes of every state; who owns which place is the caller's
/// business, as it is for the states themselves.
/// Moves run beside programs, in the order in which they were started, and a program waits for them
/// only where `await` says so. A device is given a little of them at a time, so that a program's
/// own copies do not stand behind all; the rest goes on whenever `move`, `await` or `done` is
/// called.
/// Thread safety: the Runtime's one thread.
/// Ownership: the Runtime's; its memory is freed once every move is done.
/// Does not: decide what is parked, or keep two places from overlapping (their counts and sizes
/// do).

#include <cstdint>
#include <span>

#include "kern/base/result.h"

namespace kern::runtime {

/// One page of every paged state, or one slot of every per-sequence state, copied from one tier to
/// the other.
struct TierMove {
  enum class Way : uint8_t { park, wake };  ///< device -> host, host -> device
  Way way = Way::park;
  bool slot = false;   ///< else a page
  int64_t device = 0;  ///< the place among the states
  int64_t host = 0;    ///< the place in host memory, counted from 1
};

/// How large the tier is, and one place of either kind: 0 where there is no such state.
struct TierSize {
  int64_t bytes = 0;
  int64_t page_bytes = 0;
  int64_t slot_bytes = 0;
};

class HostTier {
 public:
  virtual ~HostTier() = default;
  virtual const TierSize& size() const = 0;

  /// Starts moves, behind all that was enqueued so far and all earlier moves; returns a ticket,
  /// counted from 1. What is enqueued afterwards does not wait for them. Kind caller, with nothing
  /// started, when a place lies outside either memory.
  virtual Result<uint64_t> move(std::span<const TierMove> moves) = 0;
  /// Whatever is enqueued from now on comes after the moves of that ticket and of those before it.
  virtual Result<void> await(uint64_t ticket) = 0;
  /// The last ticket that is done together with all before it; 0: none. Waits for nothing.
  virtual Result<uint64_t> done() = 0;
  /// Waits for every move.
  virtual Result<void> settle() = 0;
};

}  // namespace kern::runtime
