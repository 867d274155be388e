#pragma once
/// One unit of device work, as data: which sequences feed which tokens, where their state lies, and
/// the copies to do first. A head builds it once; every stage or rank runs the same item on its own
/// memory, because a page or slot number means the same place on each of them.
/// Thread safety: plain values.

#include <cstdint>
#include <vector>

#include "kern/engine/request.h"

namespace kern::engine {

enum class Phase : uint8_t { prefill, decode };

/// One sequence's part of an item.
struct Slice {
  RequestId request;
  uint32_t slot = 0;            ///< line of the per-sequence states
  uint32_t snapshot_slot = 0;   ///< 0, or where the state at the last 64-token boundary also goes
  uint32_t start = 0;           ///< position of the first token
  std::vector<uint32_t> pages;  ///< the sequence's page table, from position 0
  std::vector<Token> tokens;    ///< fed in this item, at least one
  /// Of a step: the slice of the step before whose token this one takes, before anybody has read
  /// it; its own is 0 then. -1: takes its own.
  int32_t fed_from = -1;
  bool emits = false;  ///< whether the last row's next token is wanted
  Sampling sampling;   ///< of the emitted token
  uint32_t draw = 0;   ///< index of the emitted token in the answer
  int32_t top_logprobs = -1;
};

struct Copy {
  uint32_t from = 0, to = 0;
  friend bool operator==(const Copy&, const Copy&) = default;
};

/// A page or slot of every state, copied to its place in host memory or back from it.
struct Move {
  enum class What : uint32_t { park_page, wake_page, park_slot, wake_slot };
  What what = What::park_page;
  uint32_t device = 0;
  uint32_t host = 0;  ///< counted from 1
  friend bool operator==(const Move&, const Move&) = default;
};

struct Item {
  uint64_t id = 0;  ///< counts up within an epoch; items run in this order everywhere
  Phase phase = Phase::prefill;
  /// Started before anything else of this item and after all of earlier ones; they are done in this
  /// order, beside this item and later ones.
  std::vector<Move> moves;
  /// What follows here waits for the moves of every item up to this one; 0: for none.
  uint64_t after_moves = 0;
  std::vector<uint32_t> zero_slots;  ///< done first
  std::vector<Copy> page_copies;     ///< then these
  std::vector<Copy> slot_copies;
  std::vector<Slice> slices;  ///< rows lie back to back in this order
};

/// What came out for one emitting slice, in slice order.
struct Emitted {
  RequestId request;
  Token token = 0;
  bool failed = false;  ///< the row held a NaN: fail this request alone
  float logprob = 0;
  std::vector<TokenLogprob> top;
};

struct ItemResult {
  uint64_t id = 0;
  std::vector<Emitted> emitted;  ///< empty on a stage that is not the last
  uint64_t moved = 0;  ///< the moves of every item up to this one are done here; 0: not said
};

}  // namespace kern::engine
