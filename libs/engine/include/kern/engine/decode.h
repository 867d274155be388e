#pragma once
/// Turns running sequences into decode steps of one token each, and says when an answer ends. One
/// step is in flight, or two: the second takes tokens of the first that nobody has read yet. A
/// sequence that turns out to have ended with the first has a row in the second all the same, whose
/// outcome is dropped. With more sequences than a step holds, the ones that waited longest go
/// first. A row that failed ends its own sequence and no other. Thread safety: one thread.
/// Determinism: same calls, same items. Does not: own memory; the caller frees a sequence's place
/// after it has ended.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "kern/base/result.h"
#include "kern/engine/item.h"
#include "kern/engine/messages.h"

namespace kern::engine {

/// A sequence whose state is in place up to `position` and whose next token is known.
struct DecodeSequence {
  RequestId id;
  Place place;
  uint32_t position = 0;  ///< where next_token will be written: the tokens already in the state
  Token next_token = 0;
  uint32_t generated = 1;  ///< tokens of the answer so far, next_token included
  int32_t max_tokens = 1;  ///< more than `generated`
  std::vector<Token> stop_tokens;
  Sampling sampling;
  int32_t top_logprobs = -1;
};

/// What a step did to one sequence.
struct DecodeOutcome {
  RequestId id;
  uint32_t index = 0;  ///< of the token in the answer
  Emitted emitted;
  std::optional<EndReason> end;  ///< stop (the token is no part of the answer), length, or failed
};

/// How an answer ends with this token, if it does. `generated` counts it.
std::optional<EndReason> end_of(const Emitted& emitted, uint32_t generated, int32_t max_tokens,
                                const std::vector<Token>& stop_tokens);

class DecodeScheduler {
 public:
  /// A step carries of each page table what it reads: `tokens_per_page` tokens of a sequence fill
  /// one entry (a page's tokens times the ranks that share them); 0: whole tables.
  explicit DecodeScheduler(int32_t seqs_max, uint32_t tokens_per_page = 0);
  ~DecodeScheduler();
  DecodeScheduler(DecodeScheduler&&) noexcept;
  DecodeScheduler& operator=(DecodeScheduler&&) noexcept;

  void add(DecodeSequence sequence);
  /// A step in flight still names the sequence; its outcome is dropped.
  void remove(RequestId id);
  /// The next step under this item id, or nothing: no sequence that goes on for certain, or as many
  /// steps in flight as may be. Behind another step it is planned only where the executor feeds
  /// tokens (ExecutorLimits::feeds).
  std::optional<Item> plan(uint64_t item_id, size_t steps_max = 1);
  /// The outcomes of the oldest step in flight; a result that does not answer that step is kind
  /// peer.
  Result<std::vector<DecodeOutcome>> on_result(const ItemResult& result);
  /// Forgets every sequence and the steps in flight.
  void reset();

  size_t running() const;
  size_t steps_in_flight() const;
  static constexpr size_t kStepsMax = 2;
  bool contains(RequestId id) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kern::engine
