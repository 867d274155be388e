#include "kern/engine/unified.h"

#include <deque>
#include <utility>

#include "kern/base/assert.h"
#include "kern/engine/decode.h"
#include "kern/engine/prefill.h"
#include "ledger.h"

namespace kern::engine {
namespace {

constexpr size_t kOutMax = 2;  ///< items that the executor has at most

/// An item that the executor has and has not answered.
struct Out {
  uint64_t id = 0;
  Phase phase = Phase::prefill;
};

}  // namespace

struct UnifiedHead::Impl {
  Impl(const UnifiedOptions& given, PrefillScheduler scheduler)
      : options(given),
        prefill(std::move(scheduler)),
        decode(given.limits.decode_seqs_max, static_cast<uint32_t>(given.limits.page_tokens)) {}

  UnifiedOptions options;
  PrefillScheduler prefill;
  DecodeScheduler decode;
  Ledger ledger;
  std::deque<Out> out;
  std::vector<Item> items;
  uint64_t next_item = 1;
  uint64_t steps = 0;
  bool lost = false;

  uint32_t context_max() const {
    const ExecutorLimits& limits = options.limits;
    const uint64_t memory = uint64_t{limits.pages - 1} * static_cast<uint32_t>(limits.page_tokens);
    return static_cast<uint32_t>(
        std::min<uint64_t>(memory, static_cast<uint32_t>(limits.context_max)));
  }
  bool is_out(Phase phase) const {
    for (const Out& one : out)
      if (one.phase == phase) return true;
    return false;
  }
  void put(Item item) {
    KERN_ASSERT(out.size() < kOutMax, "item {} is a third", item.id);
    out.push_back({item.id, item.phase});
    items.push_back(std::move(item));
    ++next_item;
  }
  void pump();
  void plan_step(size_t steps_max);
  void forget(RequestId id) {
    decode.remove(id);
    prefill.release(id);
  }
  void prompt_done(const PrefillDone& done, TimeNs now);
  void stepped(const DecodeOutcome& outcome, TimeNs now);
};

UnifiedHead::UnifiedHead(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
UnifiedHead::~UnifiedHead() = default;
UnifiedHead::UnifiedHead(UnifiedHead&&) noexcept = default;
UnifiedHead& UnifiedHead::operator=(UnifiedHead&&) noexcept = default;

Result<UnifiedHead> UnifiedHead::create(const UnifiedOptions& options) {
  if (options.limits.decode_seqs_max < 1)
    return fail(Kind::caller, "`decode_seqs_max`: expected at least 1, got {}",
                options.limits.decode_seqs_max);
  KERN_TRY(prefill, PrefillScheduler::create({.limits = options.limits,
                                              .pipeline_depth = 1,
                                              .items_max = 1,
                                              .prefix_cache = options.prefix_cache,
                                              .park_tokens_min = options.park_tokens_min}));
  return UnifiedHead(std::make_unique<Impl>(options, std::move(prefill)));
}

void UnifiedHead::Impl::pump() {
  if (lost) return;
  // a step first: it is what clients wait for, and a chunk behind it keeps the executor busy
  if (!is_out(Phase::decode)) plan_step(1);
  while (const PrefillJob* job = prefill.next()) {
    const RequestId id = job->id;
    if (!prefill.admit_next()) break;
    ledger.move_to(id, RequestState::prefilling);
    ledger.find(id)->cached_tokens = prefill.cached_tokens(id);
  }
  // a prompt whose memory is on the move would keep the steps behind it waiting
  if (!is_out(Phase::prefill) && out.size() < kOutMax)
    if (auto item = prefill.plan(next_item, decode.running() == 0)) put(std::move(*item));
  // or, where there is none, the next step
  if (options.limits.feeds && is_out(Phase::decode) && out.size() < kOutMax)
    plan_step(DecodeScheduler::kStepsMax);
}

void UnifiedHead::Impl::plan_step(size_t steps_max) {
  auto step = decode.plan(next_item, steps_max);
  if (!step) return;
  ++steps;
  prefill.carry_moves(*step);
  put(std::move(*step));
}

void UnifiedHead::submit(Request request, TimeNs now) {
  Impl& self = *impl_;
  const RequestId id = request.id;
  const size_t length = request.prompt.size();
  if (length == 0 || request.max_tokens < 1)
    return self.ledger.refuse(id, FailureKind::internal,
                              "a request has a prompt and asks for more");
  const uint64_t tokens = length + static_cast<uint64_t>(request.max_tokens);
  if (tokens > self.context_max())
    return self.ledger.refuse(id, FailureKind::too_long,
                              too_long_text(self.context_max(), length, request.max_tokens));
  if (self.lost) return self.ledger.refuse(id, FailureKind::unavailable, "the executor is lost");
  if (self.prefill.queued() >= static_cast<size_t>(self.options.queue_max))
    return self.ledger.refuse(id, FailureKind::queue_full,
                              fmt::format("{} requests wait already", self.prefill.queued()));
  PrefillJob job{.id = id,
                 .prompt = {},
                 .lease_tokens = static_cast<uint32_t>(tokens),
                 .priority = request.priority,
                 .sampling = request.sampling,
                 .top_logprobs = request.top_logprobs};
  job.prompt = self.ledger.open(std::move(request), now);
  self.prefill.submit(std::move(job));
  self.pump();
}

void UnifiedHead::abort(RequestId id, TimeNs now) {
  if (impl_->ledger.find(id) == nullptr) return;
  impl_->ledger.finish(id, FinishReason::aborted, now);
  impl_->forget(id);
  impl_->pump();
}

void UnifiedHead::Impl::prompt_done(const PrefillDone& done, TimeNs now) {
  Ledger::Entry& entry = *ledger.find(done.id);
  const Request& request = entry.request;
  const auto end = end_of(done.emitted, 1, request.max_tokens, request.stop_tokens);
  if (!end || *end == EndReason::length) ledger.token(done.id, done.emitted, now);
  if (end) {
    ledger.end(done.id, *end, now);
    return forget(done.id);
  }
  decode.add({.id = done.id,
              .place = prefill.place(done.id),
              .position = entry.prompt_tokens,
              .next_token = done.emitted.token,
              .generated = 1,
              .max_tokens = request.max_tokens,
              .stop_tokens = request.stop_tokens,
              .sampling = request.sampling,
              .top_logprobs = request.top_logprobs});
  ledger.move_to(done.id, RequestState::running);
}

void UnifiedHead::Impl::stepped(const DecodeOutcome& outcome, TimeNs now) {
  if (!outcome.end || *outcome.end == EndReason::length)
    ledger.token(outcome.id, outcome.emitted, now);
  if (!outcome.end) return;
  ledger.end(outcome.id, *outcome.end, now);
  forget(outcome.id);
}

Result<void> UnifiedHead::on_result(const ItemResult& result, TimeNs now) {
  Impl& self = *impl_;
  if (self.out.empty() || self.out.front().id != result.id)
    return fail(Kind::peer, "item result: expected item {}, got {}",
                self.out.empty() ? 0 : self.out.front().id, result.id);
  if (self.out.front().phase == Phase::prefill) {
    KERN_TRY(done, self.prefill.on_result(result));
    for (const PrefillDone& one : done) self.prompt_done(one, now);
  } else {
    KERN_TRY(outcomes, self.decode.on_result(result));
    self.prefill.moved(result.moved);
    for (const DecodeOutcome& one : outcomes) self.stepped(one, now);
  }
  self.out.pop_front();
  self.ledger.counters.last_progress = now;
  self.pump();
  return {};
}

void UnifiedHead::on_executor_lost(TimeNs) {
  Impl& self = *impl_;
  self.lost = true;
  self.out.clear();
  self.items.clear();
  self.decode.reset();
  self.prefill.reset();
  while (!self.ledger.empty()) {
    const RequestId id = self.ledger.entries().begin()->first;
    self.ledger.fail(id, FailureKind::unavailable, "the executor is lost");
    self.prefill.release(id);
  }
}

void UnifiedHead::tick(TimeNs now) {
  while (const auto id = impl_->ledger.overdue(now)) {
    impl_->ledger.fail(*id, FailureKind::deadline, "the request's deadline has passed");
    impl_->forget(*id);
  }
  impl_->pump();
}

std::vector<Item> UnifiedHead::take_items() {
  return std::exchange(impl_->items, {});
}
std::vector<RequestEvent> UnifiedHead::take_events() {
  return impl_->ledger.take_events();
}
TimeNs UnifiedHead::wake_at() const {
  return impl_->ledger.next_deadline();
}
bool UnifiedHead::idle() const {
  return impl_->ledger.empty() && impl_->out.empty();
}

Counters UnifiedHead::counters() const {
  Counters counters = impl_->ledger.counters;
  impl_->prefill.count(counters);
  counters.decode_steps = impl_->steps;
  counters.items_in_flight = impl_->out.size();
  counters.ready = !impl_->lost;
  return counters;
}

}  // namespace kern::engine
