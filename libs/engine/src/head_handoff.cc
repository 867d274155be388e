#include <algorithm>
#include <type_traits>
#include <utility>

#include "head_impl.h"
#include "kern/base/assert.h"
#include "kern/engine/group.h"

namespace kern::engine {
namespace {

constexpr TimeNs kAskAgainAfter = 50 * kMillisecondNs;  ///< when a group says that it is busy

bool recurrent(const GroupHello& hello) {
  return std::any_of(hello.states.begin(), hello.states.end(),
                     [](const HandoffState& state) { return !state.paged; });
}

}  // namespace

// ---- room ----

uint32_t Group::pages_for(uint32_t tokens) const {
  return rank_pages(tokens, hello.ranks, hello.page_tokens);
}
bool Group::ever_fits(uint32_t tokens) const {
  return tokens <= hello.context_max && pages_for(tokens) < hello.pages;
}
bool Group::fits_now(uint32_t tokens) const {
  return ever_fits(tokens) && pages_for(tokens) <= pages_free && (!recurrent || slots_free > 0);
}

std::optional<GroupId> PrefillHead::Impl::choose(uint32_t tokens, TimeNs now) const {
  std::optional<GroupId> best;
  for (const auto& [id, group] : groups) {
    if (!group.fits_now(tokens) || group.ask_after > now) continue;
    if (!best || group.pages_free > groups.at(*best).pages_free) best = id;
  }
  return best;
}

bool PrefillHead::Impl::any_ever_fits(uint32_t tokens) const {
  return std::any_of(groups.begin(), groups.end(),
                     [tokens](const auto& one) { return one.second.ever_fits(tokens); });
}

// ---- one hand-off ----

void PrefillHead::Impl::ask(RequestId id, GroupId group, TimeNs now) {
  Live& one = live.at(id);
  KERN_ASSERT(!one.handoff, "request {} has a hand-off", id.value());
  const Request& request = ledger.find(id)->request;
  const Generation generation{next_generation++};
  Group& there = groups.at(group);
  const uint32_t tokens = one.prompt_tokens + static_cast<uint32_t>(one.max_tokens);
  Handoff handoff{.request = id,
                  .group = group,
                  .pages = there.pages_for(tokens),
                  .deadline = now + options.answer_within};
  KERN_ASSERT(there.fits_now(tokens), "group {} has no room", group.value());
  there.pages_free -= handoff.pages;
  if (there.recurrent) --there.slots_free;
  ++there.handoffs;
  one.handoff = generation;
  one.sent_whole = false;
  ++one.attempts;
  ++ledger.counters.handoffs;
  const TimeNs fill = options.fill_within + one.prompt_tokens * options.fill_per_token;
  handoffs.emplace(generation, std::move(handoff));
  output.groups.push_back({group, Ask{.request = id,
                                      .generation = generation,
                                      .prompt_tokens = one.prompt_tokens,
                                      .max_tokens = one.max_tokens,
                                      .sampling = request.sampling,
                                      .stop_tokens = request.stop_tokens,
                                      .top_logprobs = request.top_logprobs,
                                      .fill_within = fill}});
  maybe_begin(id);
}

void PrefillHead::Impl::maybe_begin(RequestId id) {
  const Live& one = live.at(id);
  if (!one.handoff || !one.first_token) return;
  Handoff& handoff = handoffs.at(*one.handoff);
  KERN_ASSERT(!handoff.closing && handoff.request == id, "request {}", id.value());
  if (handoff.begun) return;
  handoff.begun = true;
  output.groups.push_back({handoff.group, Begin{*one.handoff, *one.first_token}});
  if (handoff.state == HandoffPhase::landed) ledger.move_to(id, RequestState::running);
}

void PrefillHead::Impl::maybe_send(RequestId id) {
  const auto at = live.find(id);
  if (at == live.end() || !at->second.handoff || !formed) return;
  const Generation generation = *at->second.handoff;
  Handoff& handoff = handoffs.at(generation);
  const auto last = prefill.last_item(id);
  if (handoff.state != HandoffPhase::granted || !last) return;
  KERN_ASSERT(!sends.contains(generation) && !handoff.place.pages.empty(), "generation {}",
              generation.value());
  handoff.state = HandoffPhase::sending;
  at->second.sends += options.stages;
  sends.emplace(generation, Sends{id, std::vector<bool>(up.size(), true), options.stages});
  to_all_stages(SendState{.epoch = epoch,
                          .request = id,
                          .generation = generation,
                          .group = handoff.group,
                          .after_item = *last,
                          .tokens = at->second.prompt_tokens,
                          .from = prefill.place(id),
                          .to = handoff.place});
}

void PrefillHead::Impl::cancel_sends(Generation generation) {
  const auto at = sends.find(generation);
  if (at == sends.end() || at->second.cancelled) return;
  KERN_ASSERT(at->second.left > 0, "generation {}", generation.value());
  at->second.cancelled = true;
  for (size_t stage = 0; stage < up.size(); ++stage)
    if (at->second.waiting[stage])
      output.stages.push_back({static_cast<int32_t>(stage), CancelSend{generation}});
}

void PrefillHead::Impl::close_handoff(Live& one, TimeNs now) {
  if (!one.handoff) return;
  const Generation generation = *std::exchange(one.handoff, std::nullopt);
  Handoff& handoff = handoffs.at(generation);
  KERN_ASSERT(groups.contains(handoff.group), "group {}", handoff.group.value());
  cancel_sends(generation);
  if (handoff.closing) return;
  handoff.closing = true;
  handoff.deadline = now + options.release_within;
  output.groups.push_back({handoff.group, Abort{generation}});
}

void PrefillHead::Impl::hand_off_again(RequestId id, const std::string& why, TimeNs now) {
  Live& one = live.at(id);
  close_handoff(one, now);
  one.sent_whole = false;
  ++ledger.counters.handoffs_failed;
  const Ledger::Entry& entry = *ledger.find(id);
  // once the group has the only copy, or the client has seen its tokens, there is no way back
  if (!prefill.admitted(id) || entry.generated > 1 || one.attempts >= options.attempts_max)
    return fail(id, FailureKind::unavailable, why, now);
  ++ledger.counters.handoffs_again;
  if (entry.state == RequestState::running) ledger.move_to(id, RequestState::landing);
  KERN_ASSERT(!one.handoff && prefill.admitted(id), "request {}", id.value());
  homeless.insert(id);
}

void PrefillHead::Impl::place_homeless(TimeNs now) {
  while (!homeless.empty() && !groups.empty()) {
    const RequestId id = *homeless.begin();
    const Live& one = live.at(id);
    const uint32_t tokens = one.prompt_tokens + static_cast<uint32_t>(one.max_tokens);
    if (!any_ever_fits(tokens)) {
      fail(id, FailureKind::unavailable, "the decode groups that could hold it are gone", now);
      continue;
    }
    const auto group = choose(tokens, now);
    if (!group) return;
    KERN_ASSERT(ledger.find(id) != nullptr, "request {} has ended", id.value());
    homeless.erase(id);
    ask(id, *group, now);
  }
}

void PrefillHead::Impl::forget_handoff(Generation generation) {
  const auto at = handoffs.find(generation);
  KERN_ASSERT(at != handoffs.end(), "generation {}", generation.value());
  const auto group = groups.find(at->second.group);
  if (group != groups.end()) {
    Group& there = group->second;
    there.pages_free += at->second.pages;
    if (there.recurrent) ++there.slots_free;
    --there.handoffs;
    KERN_ASSERT(there.pages_free < there.hello.pages, "room that was never there");
  }
  handoffs.erase(at);
}

// ---- what groups say ----

Handoff* PrefillHead::Impl::current(GroupId group, Generation generation) {
  const auto at = handoffs.find(generation);
  if (at == handoffs.end() || at->second.group != group || at->second.closing) {
    ++ledger.counters.late_messages;
    return nullptr;
  }
  return &at->second;
}

bool PrefillHead::Impl::granted(GroupId group, const Granted& report) {
  Handoff* handoff = current(group, report.generation);
  if (handoff == nullptr) return true;
  const GroupHello& hello = groups.at(group).hello;
  const Place& place = report.place;
  if (handoff->state != HandoffPhase::asked || place.pages.size() != handoff->pages) return false;
  const auto outside = [&](uint32_t page) { return page == 0 || page >= hello.pages; };
  if (std::any_of(place.pages.begin(), place.pages.end(), outside)) return false;
  if (groups.at(group).recurrent && (place.slot == 0 || place.slot >= hello.slots)) return false;
  handoff->state = HandoffPhase::granted;
  handoff->deadline = 0;
  handoff->place = place;
  maybe_send(handoff->request);
  return true;
}

void PrefillHead::Impl::refused(GroupId group, const Refused& report, TimeNs now) {
  const auto at = handoffs.find(report.generation);
  if (at == handoffs.end() || at->second.group != group ||
      at->second.state != HandoffPhase::asked) {
    ++ledger.counters.late_messages;
    return;
  }
  const bool closing = at->second.closing;
  const RequestId id = at->second.request;
  forget_handoff(report.generation);
  if (closing) return;
  Live& one = live.at(id);
  one.handoff.reset();
  if (report.reason == RefusalReason::exceeds_pool || report.reason == RefusalReason::exceeds_row)
    return fail(id, FailureKind::too_long,
                too_long_text(context_max(), one.prompt_tokens, one.max_tokens), now);
  --one.attempts;  // nothing was tried
  groups.at(group).ask_after = now + kAskAgainAfter;
  homeless.insert(id);
}

bool PrefillHead::Impl::step_tokens(GroupId group, const StepTokens& report, TimeNs now) {
  for (const StepToken& one : report.tokens) {
    Handoff* handoff = current(group, one.generation);
    if (handoff == nullptr) continue;
    Ledger::Entry* entry = ledger.find(handoff->request);
    const bool may = handoff->begun && (handoff->state == HandoffPhase::landed ||
                                        handoff->state == HandoffPhase::running);
    if (entry == nullptr || !may || one.index != entry->generated || one.emitted.token < 0 ||
        one.emitted.failed || one.index >= static_cast<uint32_t>(entry->request.max_tokens))
      return false;
    handoff->state = HandoffPhase::running;
    ledger.token(handoff->request, one.emitted, now);
  }
  return true;
}

bool PrefillHead::Impl::ended(GroupId group, const Ended& report, TimeNs now) {
  if (report.reason == EndReason::aborted) {
    const auto at = handoffs.find(report.generation);
    if (at != handoffs.end() && at->second.closing) return true;  // as asked
  }
  Handoff* handoff = current(group, report.generation);
  if (handoff == nullptr) return true;
  const RequestId id = handoff->request;
  const bool whole = report.reason == EndReason::stop || report.reason == EndReason::length;
  if (whole && (!handoff->begun || handoff->state < HandoffPhase::landed)) return false;
  handoff->closing = true;
  handoff->deadline = now + options.release_within;
  if (report.reason == EndReason::expired) ++ledger.counters.handoffs_expired;
  if (!whole && report.reason != EndReason::failed) {
    const bool damaged = report.reason == EndReason::landing_failed;
    hand_off_again(id, damaged ? report.why : "the decode group gave the request up", now);
    return true;
  }
  ledger.end(id, report.reason, now);
  let_go(id, now);
  return true;
}

bool PrefillHead::Impl::released(GroupId group, const Released& report) {
  const auto at = handoffs.find(report.generation);
  if (at == handoffs.end() || at->second.group != group) {
    ++ledger.counters.late_messages;
    return true;
  }
  if (!at->second.closing) return false;
  forget_handoff(report.generation);
  groups.at(group).ask_after = 0;
  return true;
}

void PrefillHead::Impl::group_report(GroupId group, const GroupReport& report, TimeNs now) {
  ledger.counters.last_progress = now;
  const bool kept = std::visit(
      [&](const auto& one) {
        using T = std::decay_t<decltype(one)>;
        if constexpr (std::is_same_v<T, GroupHello>) {
          return false;
        } else if constexpr (std::is_same_v<T, Granted>) {
          return granted(group, one);
        } else if constexpr (std::is_same_v<T, Refused>) {
          refused(group, one, now);
          return true;
        } else if constexpr (std::is_same_v<T, Landed>) {
          Handoff* handoff = current(group, one.generation);
          if (handoff == nullptr) return true;
          if (handoff->state != HandoffPhase::sending) return false;
          handoff->state = HandoffPhase::landed;
          if (handoff->begun) ledger.move_to(handoff->request, RequestState::running);
          return true;
        } else if constexpr (std::is_same_v<T, StepTokens>) {
          return step_tokens(group, one, now);
        } else if constexpr (std::is_same_v<T, Ended>) {
          return ended(group, one, now);
        } else {
          return released(group, one);
        }
      },
      report);
  if (!kept) drop_group(group, "the decode group broke the protocol", now);
}

// ---- groups come and go ----

Result<GroupId> PrefillHead::on_group_up(GroupHello hello, TimeNs now) {
  Impl& self = *impl_;
  Group group{.hello = std::move(hello)};
  const GroupHello& said = group.hello;
  group.recurrent = recurrent(said);
  if (said.ranks < 1 || said.addresses.size() != said.ranks)
    return kern::fail(Kind::peer, "decode group: expected one address for each of {} ranks, got {}",
                      said.ranks, said.addresses.size());
  if (said.page_tokens < 1 || said.pages < 2 || said.seqs_max < 1 || said.context_max < 1)
    return kern::fail(Kind::peer,
                      "decode group: got room for nothing: {} pages of {} tokens, {} "
                      "sequences, context {}",
                      said.pages, said.page_tokens, said.seqs_max, said.context_max);
  if (said.states.empty() || (group.recurrent && said.slots < 2))
    return kern::fail(Kind::peer, "decode group: got {} states and {} slots", said.states.size(),
                      said.slots);
  group.pages_free = said.pages - 1;
  group.slots_free = group.recurrent ? said.slots - 1 : 0;
  const GroupId id{self.next_group++};
  self.to_all_stages(GroupUp{id, said});
  const uint64_t memory = uint64_t{said.pages - 1} * said.page_tokens * said.ranks;
  const auto context = static_cast<uint32_t>(std::min<uint64_t>(memory, said.context_max));
  self.group_context = self.groups.empty() ? context : std::max(self.group_context, context);
  self.groups.emplace(id, std::move(group));
  self.pump(now);
  return id;
}

void PrefillHead::on_group_lost(GroupId group, TimeNs now) {
  impl_->lose_group(group, "the decode group was lost", now);
  impl_->pump(now);
}

void PrefillHead::on_group_report(GroupId group, const GroupReport& report, TimeNs now) {
  if (!impl_->groups.contains(group)) {
    ++impl_->ledger.counters.late_messages;
    return;
  }
  impl_->group_report(group, report, now);
  impl_->pump(now);
}

void PrefillHead::Impl::lose_group(GroupId group, const std::string& why, TimeNs now) {
  if (groups.erase(group) == 0) return;
  std::vector<std::pair<Generation, RequestId>> gone;
  for (const auto& [generation, one] : handoffs)
    if (one.group == group) gone.emplace_back(generation, one.request);
  std::vector<RequestId> orphans;
  for (const auto& [generation, id] : gone) {
    cancel_sends(generation);
    forget_handoff(generation);
    const auto at = live.find(id);
    if (at == live.end() || at->second.handoff != generation) continue;
    at->second.handoff.reset();
    orphans.push_back(id);
  }
  to_all_stages(GroupGone{group});
  for (const RequestId id : orphans) hand_off_again(id, why, now);
}

void PrefillHead::Impl::drop_group(GroupId group, const std::string& why, TimeNs now) {
  if (!groups.contains(group)) return;
  output.dropped_groups.push_back(group);
  lose_group(group, why, now);
}

}  // namespace kern::engine
