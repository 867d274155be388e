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
    uint64_t serial = 0;     ///< tells a sequence from an earlier one of the same request
    uint32_t ahead = 0;      ///< steps in flight that name it
    int32_t last_slice = 0;  ///< its place in the newest of them
  };
  struct Stepping {
    RequestId id;
    uint64_t serial = 0;
  };
  int32_t seqs_max = 1;
  uint32_t tokens_per_page = 0;
  std::map<RequestId, Running> running;
  std::deque<RequestId> order;  ///< the one that waited longest first
  struct Step {
    uint64_t id = 0;
    std::vector<Stepping> slices;
  };
  std::deque<Step> steps;  ///< in flight, the oldest first
  uint64_t serials = 0;

  /// The part of a page table that a step at `position` reads and writes.
  std::vector<uint32_t> pages_for(const DecodeSequence& sequence, uint32_t position) const {
    const std::vector<uint32_t>& all = sequence.place.pages;
    if (tokens_per_page == 0) return all;
    const size_t count = position / tokens_per_page + 1;
    KERN_ASSERT(count <= all.size(), "position {} lies beyond {} pages", position, all.size());
    return {all.begin(), all.begin() + static_cast<ptrdiff_t>(count)};
  }
  Slice slice_of(RequestId id, const Running& one) const;
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

Slice DecodeScheduler::Impl::slice_of(RequestId id, const Running& one) const {
  const DecodeSequence& sequence = one.sequence;
  const uint32_t position = sequence.position + one.ahead;
  return {.request = id,
          .slot = sequence.place.slot,
          .start = position,
          .pages = pages_for(sequence, position),
          .tokens = {one.ahead > 0 ? 0 : sequence.next_token},
          .fed_from = one.ahead > 0 ? one.last_slice : -1,
          .emits = true,
          .sampling = sequence.sampling,
          .draw = sequence.generated + one.ahead,
          .top_logprobs = sequence.top_logprobs};
}

std::optional<Item> DecodeScheduler::plan(uint64_t item_id, size_t steps_max) {
  Impl& self = *impl_;
  KERN_ASSERT(steps_max >= 1 && steps_max <= kStepsMax, "{} steps in flight", steps_max);
  if (self.steps.size() >= steps_max) return std::nullopt;
  KERN_ASSERT(self.order.size() == self.running.size());
  Item item{.id = item_id, .phase = Phase::decode};
  Impl::Step step{item_id, {}};
  std::deque<RequestId> stay, go;
  for (const RequestId id : self.order) {
    Impl::Running& one = self.running.at(id);
    const DecodeSequence& sequence = one.sequence;
    const bool ends =  // with a step in flight, whatever its token
        sequence.generated + one.ahead >= static_cast<uint32_t>(sequence.max_tokens);
    if (ends || item.slices.size() == static_cast<size_t>(self.seqs_max)) {
      stay.push_back(id);
      continue;
    }
    go.push_back(id);
    item.slices.push_back(self.slice_of(id, one));
    step.slices.push_back({id, one.serial});
    ++one.ahead;
    one.last_slice = static_cast<int32_t>(item.slices.size()) - 1;
  }
  if (item.slices.empty()) return std::nullopt;
  stay.insert(stay.end(), go.begin(), go.end());
  self.order = std::move(stay);
  self.steps.push_back(std::move(step));
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
  KERN_ASSERT(at->second.ahead > 0, "request {}", mine.id.value());
  --at->second.ahead;
  ++sequence.generated;
  ++sequence.position;
  sequence.next_token = emitted.token;
  outcome.end = end_of(emitted, sequence.generated, sequence.max_tokens, sequence.stop_tokens);
  return outcome;
}

Result<std::vector<DecodeOutcome>> DecodeScheduler::on_result(const ItemResult& result) {
  Impl& self = *impl_;
  if (self.steps.empty() || self.steps.front().id != result.id)
    return fail(Kind::peer, "step result: expected step {}, got {}",
                self.steps.empty() ? 0 : self.steps.front().id, result.id);
  const std::vector<Impl::Stepping>& stepping = self.steps.front().slices;
  bool matches = stepping.size() == result.emitted.size();
  for (size_t i = 0; matches && i < stepping.size(); ++i)
    matches = stepping[i].id == result.emitted[i].request;
  if (!matches)
    return fail(Kind::peer, "step {}: expected tokens of its {} sequences, got {} others",
                result.id, stepping.size(), result.emitted.size());
  std::vector<DecodeOutcome> outcomes;
  for (size_t i = 0; i < stepping.size(); ++i) {
    auto outcome = self.advance(stepping[i], result.emitted[i]);
    if (!outcome) continue;
    if (outcome->end) remove(outcome->id);
    outcomes.push_back(std::move(*outcome));
  }
  self.steps.pop_front();
  return outcomes;
}

void DecodeScheduler::reset() {
  impl_->running.clear();
  impl_->order.clear();
  impl_->steps.clear();
}

size_t DecodeScheduler::running() const {
  return impl_->running.size();
}
size_t DecodeScheduler::steps_in_flight() const {
  return impl_->steps.size();
}
bool DecodeScheduler::contains(RequestId id) const {
  return impl_->running.contains(id);
}

}  // namespace kern::engine
