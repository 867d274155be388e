#include "kern/engine/head.h"

#include <algorithm>
#include <utility>

#include "head_impl.h"
#include "kern/base/assert.h"
#include "kern/engine/decode.h"

namespace kern::engine {

PrefillHead::PrefillHead(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PrefillHead::~PrefillHead() = default;
PrefillHead::PrefillHead(PrefillHead&&) noexcept = default;
PrefillHead& PrefillHead::operator=(PrefillHead&&) noexcept = default;

Result<PrefillHead> PrefillHead::create(const HeadOptions& options) {
  if (options.stages < 1)
    return kern::fail(Kind::caller, "`stages`: expected at least 1, got {}", options.stages);
  if (options.attempts_max < 1)
    return kern::fail(Kind::caller, "`attempts_max`: expected at least 1, got {}",
                      options.attempts_max);
  KERN_TRY(prefill, PrefillScheduler::create({.limits = options.limits,
                                              .pipeline_depth = options.stages,
                                              .items_max = 2 * options.stages,
                                              .prefix_cache = options.prefix_cache,
                                              .park_tokens_min = options.park_tokens_min}));
  return PrefillHead(std::make_unique<Impl>(options, std::move(prefill)));
}

// ---- clients ----

uint32_t PrefillHead::Impl::context_max() const {
  uint64_t most = static_cast<uint32_t>(options.limits.context_max);
  const auto page = static_cast<uint32_t>(options.limits.page_tokens);
  most = std::min(most, uint64_t{options.limits.pages - 1} * page);
  if (group_context != 0) most = std::min<uint64_t>(most, group_context);
  return static_cast<uint32_t>(most);
}

void PrefillHead::submit(Request request, TimeNs now) {
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
  if (!self.ready() &&
      (!self.was_ready || now - *self.unready_since >= self.options.wait_for_pipeline))
    return self.ledger.refuse(id, FailureKind::unavailable,
                              self.formed ? "no decode group is here" : "a stage is missing");
  if (self.prefill.queued() >= static_cast<size_t>(self.options.queue_max))
    return self.ledger.refuse(id, FailureKind::queue_full,
                              fmt::format("{} requests wait already", self.prefill.queued()));
  PrefillJob job{.id = id,
                 .prompt = {},
                 .lease_tokens = static_cast<uint32_t>(length),
                 .priority = request.priority,
                 .sampling = request.sampling,
                 .top_logprobs = request.top_logprobs};
  job.prompt = self.ledger.open(std::move(request), now);
  self.prefill.submit(std::move(job));
  self.pump(now);
}

void PrefillHead::abort(RequestId id, TimeNs now) {
  Impl& self = *impl_;
  if (self.ledger.find(id) == nullptr) return;
  self.ledger.finish(id, FinishReason::aborted, now);
  self.let_go(id, now);
  self.pump(now);
}

void PrefillHead::Impl::fail(RequestId id, FailureKind kind, std::string why, TimeNs now) {
  ledger.fail(id, kind, std::move(why));
  let_go(id, now);
}

void PrefillHead::Impl::let_go(RequestId id, TimeNs now) {
  KERN_ASSERT(ledger.find(id) == nullptr, "request {} has not ended", id.value());
  homeless.erase(id);
  const auto at = live.find(id);
  if (at == live.end()) return prefill.release(id);  // it was queued
  close_handoff(at->second, now);
  maybe_release(id);
}

/// The stages' memory goes when the client is answered or the group has everything, and no stage
/// reads it any more.
void PrefillHead::Impl::maybe_release(RequestId id) {
  const auto at = live.find(id);
  if (at == live.end() || at->second.sends > 0) return;
  KERN_ASSERT(at->second.sends == 0, "request {}", id.value());
  const bool ended = ledger.find(id) == nullptr;
  const bool handed_over = at->second.sent_whole && at->second.first_token.has_value();
  if (ended || handed_over) prefill.release(id);
  if (ended) live.erase(at);
}

// ---- stages ----

void PrefillHead::Impl::to_all_stages(const StageCommand& command) {
  for (int32_t stage = 0; stage < options.stages; ++stage)
    if (up[static_cast<size_t>(stage)]) output.stages.push_back({stage, command});
}

void PrefillHead::Impl::begin_epoch() {
  ++epoch;
  formed = false;
  KERN_ASSERT(at_rest.size() == up.size());
  at_rest.assign(at_rest.size(), false);
  to_all_stages(ResetEpoch{epoch});
}

void PrefillHead::on_stage_up(int32_t stage, TimeNs now) {
  Impl& self = *impl_;
  KERN_ASSERT(stage >= 0 && stage < self.options.stages, "stage {}", stage);
  if (self.up[static_cast<size_t>(stage)]) self.lose_stage(stage, now);
  self.up[static_cast<size_t>(stage)] = true;
  for (const auto& [id, group] : self.groups)
    self.output.stages.push_back({stage, GroupUp{id, group.hello}});
  if (std::find(self.up.begin(), self.up.end(), false) == self.up.end()) self.begin_epoch();
  self.pump(now);
}

void PrefillHead::on_stage_lost(int32_t stage, TimeNs now) {
  KERN_ASSERT(stage >= 0 && stage < impl_->options.stages, "stage {}", stage);
  impl_->lose_stage(stage, now);
  impl_->pump(now);
}

void PrefillHead::Impl::lose_stage(int32_t stage, TimeNs now) {
  const auto at = static_cast<size_t>(stage);
  if (!up[at]) return;
  up[at] = false;
  begin_epoch();  // the stages that are left drop their work and wait for the next epoch
  sends.clear();
  for (auto& [id, one] : live) one.sends = 0;
  for (const RequestId id : prefill.reset()) {
    if (ledger.find(id) != nullptr)
      ledger.fail(id, FailureKind::unavailable, fmt::format("stage {} was lost", stage));
    let_go(id, now);
  }
}

void PrefillHead::on_stage_report(int32_t stage, const StageReport& report, TimeNs now) {
  Impl& self = *impl_;
  KERN_ASSERT(stage >= 0 && stage < self.options.stages, "stage {}", stage);
  if (!self.up[static_cast<size_t>(stage)]) {
    ++self.ledger.counters.late_messages;
    return;
  }
  if (const auto* ready = std::get_if<EpochReady>(&report)) {
    if (ready->epoch == self.epoch) {
      self.at_rest[static_cast<size_t>(stage)] = true;
      const auto missing = std::find(self.at_rest.begin(), self.at_rest.end(), false);
      if (missing == self.at_rest.end() && !self.formed) {
        self.formed = true;
        ++self.ledger.counters.epochs;
      }
    }
  } else if (const auto* done = std::get_if<ItemDone>(&report)) {
    self.item_done(stage, *done, now);
  } else {
    self.parts_sent(stage, std::get<PartsSent>(report), now);
  }
  self.pump(now);
}

void PrefillHead::Impl::item_done(int32_t stage, const ItemDone& done, TimeNs now) {
  if (done.epoch != epoch || !formed) {
    ++ledger.counters.late_messages;
    return;
  }
  ledger.counters.last_progress = now;
  if (stage + 1 != options.stages) return;
  auto prompts = prefill.on_result(done.result);
  if (!prompts) {
    output.dropped_stages.push_back(stage);
    return lose_stage(stage, now);
  }
  for (const PrefillDone& one : *prompts) prompt_done(one, now);
}

void PrefillHead::Impl::prompt_done(const PrefillDone& done, TimeNs now) {
  const Ledger::Entry* entry = ledger.find(done.id);
  if (entry == nullptr) return;  // aborted; its memory waits for sends
  const Request& request = entry->request;
  const auto end = end_of(done.emitted, 1, request.max_tokens, request.stop_tokens);
  if (!end || *end == EndReason::length) ledger.token(done.id, done.emitted, now);
  if (end) {
    ledger.end(done.id, *end, now);
    return let_go(done.id, now);
  }
  KERN_ASSERT(!live.at(done.id).first_token, "request {} is done twice", done.id.value());
  live.at(done.id).first_token = done.emitted.token;
  ledger.move_to(done.id, RequestState::landing);
  maybe_begin(done.id);
  maybe_release(done.id);
}

void PrefillHead::Impl::parts_sent(int32_t stage, const PartsSent& report, TimeNs now) {
  const auto at = sends.find(report.generation);
  if (at == sends.end() || !at->second.waiting[static_cast<size_t>(stage)]) {
    ++ledger.counters.late_messages;
    return;
  }
  Sends& mine = at->second;
  const RequestId id = mine.request;
  mine.waiting[static_cast<size_t>(stage)] = false;
  const bool broke = mine.whole && !report.whole && !mine.cancelled;
  mine.whole &= report.whole;
  Live& one = live.at(id);
  KERN_ASSERT(one.sends > 0 && mine.left > 0, "request {}", id.value());
  --one.sends;
  const bool last = --mine.left == 0;
  if (last && mine.whole && one.handoff == report.generation) one.sent_whole = true;
  if (last) sends.erase(at);
  if (broke && one.handoff == report.generation && ledger.find(id) != nullptr)
    hand_off_again(id, report.why, now);
  maybe_release(id);
}

// ---- the turn ----

void PrefillHead::Impl::admit(TimeNs now) {
  while (const PrefillJob* job = prefill.next()) {
    const RequestId id = job->id;
    Ledger::Entry& entry = *ledger.find(id);
    const auto tokens = entry.prompt_tokens + static_cast<uint32_t>(entry.request.max_tokens);
    const bool alone = entry.request.max_tokens == 1;  // the prompt's own token is the answer
    if (!alone && !any_ever_fits(tokens)) {
      fail(id, FailureKind::too_long,
           too_long_text(context_max(), entry.prompt_tokens, entry.request.max_tokens), now);
      continue;
    }
    const auto group = alone ? std::optional<GroupId>() : choose(tokens, now);
    if ((!alone && !group) || !prefill.admit_next()) return;
    entry.cached_tokens = prefill.cached_tokens(id);
    Live one;
    one.prompt_tokens = entry.prompt_tokens;
    one.max_tokens = entry.request.max_tokens;
    live.emplace(id, one);
    ledger.move_to(id, RequestState::prefilling);
    if (group) ask(id, *group, now);
  }
}

void PrefillHead::Impl::plan() {
  while (auto item = prefill.plan(next_item)) {
    KERN_ASSERT(formed && item->id == next_item, "item {}", item->id);
    ++next_item;
    to_all_stages(RunItem{epoch, *item});
    for (const Slice& slice : item->slices)
      if (slice.emits) maybe_send(slice.request);
  }
}

void PrefillHead::Impl::pump(TimeNs now) {
  note_readiness(now);
  place_homeless(now);
  if (!formed) return;
  if (!groups.empty()) admit(now);
  plan();
}

void PrefillHead::Impl::note_readiness(TimeNs now) {
  if (ready()) {
    was_ready = true;
    unready_since.reset();
  } else if (!unready_since) {
    unready_since = now;
  }
}

/// The pipeline or the groups have been gone for too long: whoever waits for them hears so.
void PrefillHead::Impl::fail_waiting(TimeNs now) {
  const std::string why = formed ? "no decode group is here" : "a stage is missing";
  std::vector<RequestId> waiting;
  for (const auto& [id, entry] : ledger.entries())
    if (entry.state == RequestState::queued || homeless.contains(id)) waiting.push_back(id);
  for (const RequestId id : waiting) fail(id, FailureKind::unavailable, why, now);
}

void PrefillHead::Impl::overdue_handoffs(TimeNs now) {
  std::set<GroupId> deaf;
  for (const auto& [generation, one] : handoffs)
    if (one.deadline != 0 && one.deadline <= now) deaf.insert(one.group);
  for (const GroupId group : deaf) drop_group(group, "the decode group does not answer", now);
}

void PrefillHead::tick(TimeNs now) {
  Impl& self = *impl_;
  self.note_readiness(now);
  while (const auto id = self.ledger.overdue(now))
    self.fail(*id, FailureKind::deadline, "the request's deadline has passed", now);
  self.overdue_handoffs(now);
  for (auto& [id, group] : self.groups)
    if (group.ask_after <= now) group.ask_after = 0;
  self.note_readiness(now);
  if (self.unready_since && now - *self.unready_since >= self.options.wait_for_pipeline)
    self.fail_waiting(now);
  self.pump(now);
}

TimeNs PrefillHead::wake_at() const {
  const Impl& self = *impl_;
  TimeNs wake = 0;
  const auto sooner = [&wake](TimeNs at) {
    if (at != 0 && (wake == 0 || at < wake)) wake = at;
  };
  sooner(self.ledger.next_deadline());
  for (const auto& [generation, one] : self.handoffs) sooner(one.deadline);
  const bool waiting = self.prefill.queued() > 0 || !self.homeless.empty();
  if (self.unready_since && waiting) sooner(*self.unready_since + self.options.wait_for_pipeline);
  if (waiting)
    for (const auto& [id, group] : self.groups) sooner(group.ask_after);
  return wake;
}

HeadOutput PrefillHead::take_output() {
  HeadOutput output = std::exchange(impl_->output, {});
  output.events = impl_->ledger.take_events();
  return output;
}

bool PrefillHead::ready() const {
  return impl_->ready();
}
bool PrefillHead::idle() const {
  return impl_->ledger.empty() && impl_->live.empty() && impl_->handoffs.empty() &&
         impl_->sends.empty() && impl_->prefill.items_in_flight() == 0;
}
uint32_t PrefillHead::context_max() const {
  return impl_->context_max();
}

Counters PrefillHead::counters() const {
  Counters counters = impl_->ledger.counters;
  impl_->prefill.count(counters);
  counters.groups = impl_->groups.size();
  counters.ready = impl_->ready();
  return counters;
}

std::vector<GroupStatus> PrefillHead::groups() const {
  std::vector<GroupStatus> all;
  for (const auto& [id, group] : impl_->groups)
    all.push_back({.id = id.value(),
                   .ranks = group.hello.ranks,
                   .pages_free = group.pages_free,
                   .pages_max = group.hello.pages - 1,
                   .slots_free = group.slots_free,
                   .slots_max = group.hello.slots > 0 ? group.hello.slots - 1 : 0,
                   .handoffs = group.handoffs});
  return all;
}

}  // namespace kern::engine
