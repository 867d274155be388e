#include "kern/engine/decode.h"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "kern/base/assert.h"

namespace kern::engine {

std::optional<EndReason> end_of(const Emitted& emitted, uint32_t generated, int32_t max_tokens,
                                const std::vector<Token>& stop_tokens) {
  if (emitted.failed || emitted.token < 0) return EndReason::failed;
  if (std::find(stop_tokens.begin(), stop_tokens.end(), emitted.token) != stop_tokens.end())
    return EndReason::stop;
  if (generated >= static_cast<uint32_t>(max_tokens)) return EndReason::length;
  return std::nullopt;
}

struct DecodeScheduler::Impl {
  struct Running {
    DecodeSequence sequence;
    uint64_t serial = 0;  ///< tells a sequence from an earlier one of the same request
  };
  struct Stepping {
    RequestId id;
    uint64_t serial = 0;
  };
  int32_t seqs_max = 1;
  uint32_t tokens_per_page = 0;
  std::map<RequestId, Running> running;
  std::deque<RequestId> order;  ///< the one that waited longest first
  std::optional<uint64_t> step;
  std::vector<Stepping> stepping;
  uint64_t serials = 0;

  /// The part of a page table that a step at `position` reads and writes.
  std::vector<uint32_t> pages_for(const DecodeSequence& sequence) const {
    const std::vector<uint32_t>& all = sequence.place.pages;
    if (tokens_per_page == 0) return all;
    const size_t count = sequence.position / tokens_per_page + 1;
    KERN_ASSERT(count <= all.size(), "position {} lies beyond {} pages", sequence.position,
                all.size());
    return {all.begin(), all.begin() + static_cast<ptrdiff_t>(count)};
  }
  std::optional<DecodeOutcome> advance(const Stepping& mine, const Emitted& emitted);
};

DecodeScheduler::DecodeScheduler(int32_t seqs_max, uint32_t tokens_per_page)
    : impl_(std::make_unique<Impl>()) {
  KERN_ASSERT(seqs_max > 0, "{} sequences a step", seqs_max);
  impl_->seqs_max = seqs_max;
  impl_->tokens_per_page = tokens_per_page;
}
DecodeScheduler::~DecodeScheduler() = default;
DecodeScheduler::DecodeScheduler(DecodeScheduler&&) noexcept = default;
DecodeScheduler& DecodeScheduler::operator=(DecodeScheduler&&) noexcept = default;

void DecodeScheduler::add(DecodeSequence sequence) {
  const RequestId id = sequence.id;
  KERN_ASSERT(sequence.generated >= 1 && sequence.max_tokens > 0, "request {}", id.value());
  KERN_ASSERT(sequence.generated < static_cast<uint32_t>(sequence.max_tokens), "request {}",
              id.value());
  const bool is_new =
      impl_->running.emplace(id, Impl::Running{std::move(sequence), impl_->serials++}).second;
  KERN_ASSERT(is_new, "request {} runs already", id.value());
  impl_->order.push_back(id);
}

void DecodeScheduler::remove(RequestId id) {
  if (impl_->running.erase(id) == 0) return;
  impl_->order.erase(std::find(impl_->order.begin(), impl_->order.end(), id));
}

std::optional<Item> DecodeScheduler::plan(uint64_t item_id) {
  Impl& self = *impl_;
  if (self.step || self.order.empty()) return std::nullopt;
  KERN_ASSERT(self.order.size() == self.running.size());
  Item item{.id = item_id, .phase = Phase::decode};
  const size_t count = std::min(self.order.size(), static_cast<size_t>(self.seqs_max));
  item.slices.reserve(count);
  self.stepping.clear();
  for (size_t i = 0; i < count; ++i) {
    const RequestId id = self.order.front();
    self.order.pop_front();
    self.order.push_back(id);
    const Impl::Running& one = self.running.at(id);
    const DecodeSequence& sequence = one.sequence;
    item.slices.push_back({.request = id,
                           .slot = sequence.place.slot,
                           .start = sequence.position,
                           .pages = self.pages_for(sequence),
                           .tokens = {sequence.next_token},
                           .emits = true,
                           .sampling = sequence.sampling,
                           .draw = sequence.generated,
                           .top_logprobs = sequence.top_logprobs});
    self.stepping.push_back({id, one.serial});
  }
  KERN_ASSERT(self.stepping.size() == item.slices.size() && !item.slices.empty());
  self.step = item_id;
  return item;
}

std::optional<DecodeOutcome> DecodeScheduler::Impl::advance(const Stepping& mine,
                                                            const Emitted& emitted) {
  const auto at = running.find(mine.id);
  if (at == running.end() || at->second.serial != mine.serial) return std::nullopt;
  DecodeSequence& sequence = at->second.sequence;
  KERN_ASSERT(sequence.generated < static_cast<uint32_t>(sequence.max_tokens), "request {}",
              mine.id.value());
  DecodeOutcome outcome{mine.id, sequence.generated, emitted, std::nullopt};
  ++sequence.generated;
  ++sequence.position;
  sequence.next_token = emitted.token;
  outcome.end = end_of(emitted, sequence.generated, sequence.max_tokens, sequence.stop_tokens);
  return outcome;
}

Result<std::vector<DecodeOutcome>> DecodeScheduler::on_result(const ItemResult& result) {
  Impl& self = *impl_;
  if (!self.step || *self.step != result.id)
    return fail(Kind::peer, "step result: expected step {}, got {}", self.step.value_or(0),
                result.id);
  bool matches = self.stepping.size() == result.emitted.size();
  for (size_t i = 0; matches && i < self.stepping.size(); ++i)
    matches = self.stepping[i].id == result.emitted[i].request;
  if (!matches)
    return fail(Kind::peer, "step {}: expected tokens of its {} sequences, got {} others",
                result.id, self.stepping.size(), result.emitted.size());
  std::vector<DecodeOutcome> outcomes;
  for (size_t i = 0; i < self.stepping.size(); ++i) {
    auto outcome = self.advance(self.stepping[i], result.emitted[i]);
    if (!outcome) continue;
    if (outcome->end) remove(outcome->id);
    outcomes.push_back(std::move(*outcome));
  }
  self.step.reset();
  return outcomes;
}

void DecodeScheduler::reset() {
  impl_->running.clear();
  impl_->order.clear();
  impl_->step.reset();
  impl_->stepping.clear();
}

size_t DecodeScheduler::running() const {
  return impl_->running.size();
}
bool DecodeScheduler::step_in_flight() const {
  return impl_->step.has_value();
}
bool DecodeScheduler::contains(RequestId id) const {
  return impl_->running.contains(id);
}

}  // namespace kern::engine
