#include "kern/engine/group.h"

#include <algorithm>
#include <map>
#include <optional>
#include <type_traits>
#include <utility>

#include "kern/base/assert.h"
#include "kern/base/checked.h"
#include "kern/engine/decode.h"
#include "kern/pool/pool.h"

namespace kern::engine {
namespace {

/// One generation on this group: expected by some ranks, granted once all do, running, and ended
/// until its ranks are done with it.
struct Sequence {
  Ask ask;
  pool::Lease lease;
  Place place;
  std::vector<bool> landed;   ///< by rank
  uint32_t missing = 0;       ///< ranks that have not landed
  std::vector<bool> expects;  ///< by rank
  uint32_t unready = 0;       ///< ranks that do not expect parts yet
  std::optional<Token> first_token;
  TimeNs deadline = 0;  ///< 0 once it runs or has ended
  bool running = false;
  bool ended = false;
  uint64_t last_item = 0;  ///< the last step that names it
};

}  // namespace

uint32_t rank_pages(uint32_t tokens, uint32_t ranks, uint32_t page_tokens) {
  return ceil_div(ceil_div(tokens, ranks), page_tokens);
}

struct DecodeGroupHead::Impl {
  Impl(const GroupOptions& given, const pool::Geometry& geometry)
      : options(given),
        pool(geometry),
        decode(static_cast<int32_t>(given.hello.seqs_max),
               given.hello.page_tokens * given.hello.ranks),
        up(given.hello.ranks, false),
        at_rest(given.hello.ranks, false),
        done(given.hello.ranks, 0) {}

  GroupOptions options;
  pool::Pool pool;
  DecodeScheduler decode;
  std::map<Generation, Sequence> sequences;
  std::map<RequestId, Generation> running;  ///< which generation a running request is
  std::vector<bool> up, at_rest;
  std::vector<uint64_t> done;  ///< the last item each rank has run
  /// What the first rank to run an item chose, until every rank has run it.
  std::map<uint64_t, std::vector<Token>> chosen;
  Epoch epoch = 0;
  bool rest = false;       ///< every rank is there and at rest in this epoch
  bool connected = false;  ///< to a prefill head
  uint64_t next_item = 1;
  GroupOutput output;
  GroupCounters counters;

  uint32_t ranks() const { return options.hello.ranks; }
  void to_all_ranks(const RankCommand& command);
  void begin_epoch();
  void drop_all();
  void lose_rank(int32_t rank);
  void ask(const Ask& one, TimeNs now);
  void grant(const Ask& one, pool::Lease lease, TimeNs now);
  void maybe_run(Generation generation);
  void end(Generation generation, EndReason reason, std::string why);
  void free_ended();
  void rank_expects(int32_t rank, const RankExpecting& report);
  void rank_landed(int32_t rank, const RankLanded& report);
  bool agrees(const ItemResult& result);
  void item_done(int32_t rank, const ItemDone& report);
  void broke(int32_t rank);
  void plan();
};

DecodeGroupHead::DecodeGroupHead(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DecodeGroupHead::~DecodeGroupHead() = default;
DecodeGroupHead::DecodeGroupHead(DecodeGroupHead&&) noexcept = default;
DecodeGroupHead& DecodeGroupHead::operator=(DecodeGroupHead&&) noexcept = default;

Result<DecodeGroupHead> DecodeGroupHead::create(const GroupOptions& options) {
  const GroupHello& hello = options.hello;
  if (hello.ranks < 1 || hello.addresses.size() != hello.ranks)
    return fail(Kind::caller, "`ranks`: expected one address for each of {}, got {}", hello.ranks,
                hello.addresses.size());
  if (hello.states.empty() || hello.seqs_max < 1 || hello.context_max < 1)
    return fail(Kind::caller, "group: got {} states, {} sequences, context {}", hello.states.size(),
                hello.seqs_max, hello.context_max);
  const bool recurrent = std::any_of(hello.states.begin(), hello.states.end(),
                                     [](const HandoffState& state) { return !state.paged; });
  if (hello.page_tokens < 1)
    return fail(Kind::caller, "`page_tokens`: expected at least 1, got {}", hello.page_tokens);
  const pool::Geometry geometry{
      .page_tokens = hello.page_tokens,
      .pages = hello.pages,
      .slots = hello.slots,
      .recurrent = recurrent,
      .row_pages_max = rank_pages(hello.context_max, hello.ranks, hello.page_tokens)};
  if (const std::string why = pool::refusal(geometry); !why.empty())
    return fail(Kind::caller, "state memory: {}", why);
  return DecodeGroupHead(std::make_unique<Impl>(options, geometry));
}

// ---- lives ----

void DecodeGroupHead::Impl::to_all_ranks(const RankCommand& command) {
  for (size_t rank = 0; rank < up.size(); ++rank)
    if (up[rank]) output.ranks.push_back({static_cast<int32_t>(rank), command});
}

void DecodeGroupHead::Impl::drop_all() {
  decode.reset();
  running.clear();
  sequences.clear();
  KERN_ASSERT(pool.occupancy().pages_leased == 0 && pool.occupancy().slots_leased == 0);
}

void DecodeGroupHead::Impl::begin_epoch() {
  drop_all();
  ++epoch;
  rest = false;
  at_rest.assign(at_rest.size(), false);
  done.assign(done.size(), next_item - 1);
  chosen.clear();
  KERN_ASSERT(sequences.empty() && decode.running() == 0);
  to_all_ranks(ResetEpoch{epoch});
}

void DecodeGroupHead::Impl::lose_rank(int32_t rank) {
  const auto at = static_cast<size_t>(rank);
  if (!up[at]) return;
  up[at] = false;
  if (std::exchange(connected, false)) {
    output.head.clear();
    output.drop_head = true;
  }
  begin_epoch();
}

void DecodeGroupHead::Impl::broke(int32_t rank) {
  output.dropped_ranks.push_back(rank);
  lose_rank(rank);
}

void DecodeGroupHead::on_rank_up(int32_t rank, TimeNs) {
  KERN_ASSERT(rank >= 0 && static_cast<uint32_t>(rank) < impl_->ranks(), "rank {}", rank);
  impl_->lose_rank(rank);
  impl_->up[static_cast<size_t>(rank)] = true;
  const auto& up = impl_->up;
  if (std::find(up.begin(), up.end(), false) == up.end()) impl_->begin_epoch();
}

void DecodeGroupHead::set_address(int32_t rank, std::string address) {
  KERN_ASSERT(rank >= 0 && static_cast<uint32_t>(rank) < impl_->ranks(), "rank {}", rank);
  impl_->options.hello.addresses[static_cast<size_t>(rank)] = std::move(address);
}

void DecodeGroupHead::on_rank_lost(int32_t rank, TimeNs) {
  KERN_ASSERT(rank >= 0 && static_cast<uint32_t>(rank) < impl_->ranks(), "rank {}", rank);
  impl_->lose_rank(rank);
}

void DecodeGroupHead::on_head_up(TimeNs) {
  KERN_ASSERT(!impl_->connected, "a second head");
  if (!impl_->rest) {
    impl_->output.drop_head = true;  // a rank was lost while the head was dialled
    return;
  }
  impl_->connected = true;
  impl_->output.head.push_back(impl_->options.hello);
}

void DecodeGroupHead::on_head_lost(TimeNs) {
  if (!std::exchange(impl_->connected, false)) return;
  impl_->output.head.clear();
  impl_->begin_epoch();
}

// ---- grants ----

void DecodeGroupHead::Impl::ask(const Ask& one, TimeNs now) {
  const auto refuse = [&](RefusalReason reason) {
    ++counters.refusals;
    output.head.push_back(Refused{one.generation, reason});
  };
  if (sequences.contains(one.generation)) {
    ++counters.late_messages;
    return;
  }
  const uint64_t tokens = uint64_t{one.prompt_tokens} + static_cast<uint32_t>(one.max_tokens);
  if (one.prompt_tokens == 0 || one.max_tokens < 1 || tokens > options.hello.context_max)
    return refuse(RefusalReason::exceeds_row);
  auto lease = pool.lease(ceil_div(static_cast<uint32_t>(tokens), ranks()));
  if (!lease) {
    switch (lease.denied().reason) {
      case pool::Reason::busy:
        return refuse(RefusalReason::busy);
      case pool::Reason::exceeds_pool:
        return refuse(RefusalReason::exceeds_pool);
      case pool::Reason::exceeds_row:
        return refuse(RefusalReason::exceeds_row);
    }
  }
  grant(one, std::move(*lease), now);
}

void DecodeGroupHead::Impl::grant(const Ask& one, pool::Lease lease, TimeNs now) {
  KERN_ASSERT(connected && one.generation.value() != 0, "a grant to nobody");
  Place place{.slot = lease.view().slot().value()};
  for (const pool::PageId page : lease.view().pages()) place.pages.push_back(page.value());
  const TimeNs within = std::clamp<TimeNs>(one.fill_within, 1, options.fill_within_max);
  Sequence sequence{.ask = one,
                    .lease = std::move(lease),
                    .place = place,
                    .landed = std::vector<bool>(ranks(), false),
                    .missing = ranks(),
                    .expects = std::vector<bool>(ranks(), false),
                    .unready = ranks(),
                    .first_token = std::nullopt,
                    .deadline = now + within};
  sequences.emplace(one.generation, std::move(sequence));
  ++counters.grants;
  to_all_ranks(ExpectParts{epoch, one.request, one.generation, one.prompt_tokens, place});
}

void DecodeGroupHead::Impl::rank_expects(int32_t rank, const RankExpecting& report) {
  const auto at = sequences.find(report.generation);
  if (report.epoch != epoch || at == sequences.end() || at->second.ended ||
      at->second.expects[static_cast<size_t>(rank)]) {
    ++counters.late_messages;
    return;
  }
  at->second.expects[static_cast<size_t>(rank)] = true;
  KERN_ASSERT(at->second.unready > 0);
  if (--at->second.unready == 0)
    output.head.push_back(Granted{report.generation, at->second.place});
}

void DecodeGroupHead::on_head_command(const GroupCommand& command, TimeNs now) {
  Impl& self = *impl_;
  if (!self.connected) {
    ++self.counters.late_messages;
    return;
  }
  if (const auto* ask = std::get_if<Ask>(&command)) {
    self.ask(*ask, now);
  } else if (const auto* begin = std::get_if<Begin>(&command)) {
    const auto at = self.sequences.find(begin->generation);
    if (at == self.sequences.end() || at->second.ended || at->second.first_token ||
        begin->first_token < 0) {
      ++self.counters.late_messages;
      return;
    }
    at->second.first_token = begin->first_token;
    self.maybe_run(begin->generation);
  } else {
    self.end(std::get<Abort>(command).generation, EndReason::aborted, {});
  }
  self.free_ended();
  self.plan();
}

void DecodeGroupHead::Impl::rank_landed(int32_t rank, const RankLanded& report) {
  const auto at = sequences.find(report.generation);
  if (report.epoch != epoch || at == sequences.end() || at->second.ended ||
      at->second.landed[static_cast<size_t>(rank)]) {
    ++counters.late_messages;
    return;
  }
  if (!report.whole) {
    ++counters.landing_failed;
    return end(report.generation, EndReason::landing_failed, report.why);
  }
  at->second.landed[static_cast<size_t>(rank)] = true;
  KERN_ASSERT(at->second.missing > 0);
  if (--at->second.missing > 0) return;
  output.head.push_back(Landed{report.generation});
  maybe_run(report.generation);
}

void DecodeGroupHead::Impl::maybe_run(Generation generation) {
  Sequence& one = sequences.at(generation);
  if (one.missing > 0 || !one.first_token || one.running) return;
  if (one.ask.max_tokens < 2 || running.contains(one.ask.request))
    return end(generation, EndReason::failed, "nothing to decode");
  KERN_ASSERT(!one.ended && one.unready == 0, "generation {} runs ungranted", generation.value());
  one.running = true;
  one.deadline = 0;
  running.emplace(one.ask.request, generation);
  decode.add({.id = one.ask.request,
              .place = one.place,
              .position = one.ask.prompt_tokens,
              .next_token = *one.first_token,
              .generated = 1,
              .max_tokens = one.ask.max_tokens,
              .stop_tokens = one.ask.stop_tokens,
              .sampling = one.ask.sampling,
              .top_logprobs = one.ask.top_logprobs});
}

/// The head hears that no token follows; the ranks take no more parts; memory waits for free_ended.
void DecodeGroupHead::Impl::end(Generation generation, EndReason reason, std::string why) {
  const auto at = sequences.find(generation);
  if (at == sequences.end() || at->second.ended) {
    ++counters.late_messages;
    return;
  }
  Sequence& one = at->second;
  if (one.running) {
    decode.remove(one.ask.request);
    running.erase(one.ask.request);
  } else {
    to_all_ranks(StopExpecting{generation});
  }
  KERN_ASSERT(!decode.contains(one.ask.request) || running.contains(one.ask.request),
              "request {} runs under no generation", one.ask.request.value());
  one.running = false;
  one.ended = true;
  one.deadline = 0;
  output.head.push_back(Ended{generation, reason, std::move(why)});
}

void DecodeGroupHead::Impl::free_ended() {
  const uint64_t everywhere = *std::min_element(done.begin(), done.end());
  KERN_ASSERT(everywhere < next_item, "item {} has run and was never planned", everywhere);
  for (auto at = sequences.begin(); at != sequences.end();) {
    if (!at->second.ended || at->second.last_item > everywhere) {
      ++at;
      continue;
    }
    output.head.push_back(Released{at->first});
    at = sequences.erase(at);
  }
}

// ---- steps ----

/// Ranks compute the same step from the same logits, so another token means that one of them is
/// wrong, and nobody knows which.
bool DecodeGroupHead::Impl::agrees(const ItemResult& result) {
  std::vector<Token> tokens;
  for (const Emitted& one : result.emitted) tokens.push_back(one.failed ? -1 : one.token);
  const auto [first, fresh] = chosen.try_emplace(result.id, tokens);
  const bool same = fresh || first->second == tokens;
  const uint64_t slowest = *std::min_element(done.begin(), done.end());
  chosen.erase(chosen.begin(), chosen.upper_bound(slowest));
  return same;
}

void DecodeGroupHead::Impl::item_done(int32_t rank, const ItemDone& report) {
  const auto at = static_cast<size_t>(rank);
  if (report.epoch != epoch) {
    ++counters.late_messages;
    return;
  }
  if (report.result.id != done[at] + 1 || report.result.id >= next_item) return broke(rank);
  done[at] = report.result.id;
  if (!agrees(report.result)) {
    ++counters.disagreements;
    return broke(rank);
  }
  if (rank != 0) return;
  auto outcomes = decode.on_result(report.result);
  if (!outcomes) return broke(rank);
  StepTokens tokens;
  std::vector<std::pair<Generation, EndReason>> ends;
  for (DecodeOutcome& one : *outcomes) {
    const Generation generation = running.at(one.id);
    if (one.end) ends.emplace_back(generation, *one.end);
    if (one.end && *one.end != EndReason::length) continue;
    tokens.tokens.push_back({generation, one.index, std::move(one.emitted)});
  }
  counters.tokens += tokens.tokens.size();
  if (!tokens.tokens.empty()) output.head.push_back(std::move(tokens));
  for (const auto& [generation, reason] : ends) end(generation, reason, {});
}

/// A sequence that ends with the step ahead is named by the one behind it too; its memory waits for
/// that one (`last_item`).
void DecodeGroupHead::Impl::plan() {
  if (!connected || !rest) return;
  const size_t steps_max = options.feeds ? DecodeScheduler::kStepsMax : 1;
  while (auto item = decode.plan(next_item, steps_max)) {
    for (const Slice& slice : item->slices)
      sequences.at(running.at(slice.request)).last_item = next_item;
    KERN_ASSERT(running.size() == decode.running(), "{} run, {} step", running.size(),
                decode.running());
    ++next_item;
    ++counters.steps;
    to_all_ranks(RunItem{epoch, std::move(*item)});
  }
}

void DecodeGroupHead::on_rank_report(int32_t rank, const RankReport& report, TimeNs) {
  Impl& self = *impl_;
  KERN_ASSERT(rank >= 0 && static_cast<uint32_t>(rank) < self.ranks(), "rank {}", rank);
  if (!self.up[static_cast<size_t>(rank)]) {
    ++self.counters.late_messages;
    return;
  }
  if (const auto* ready = std::get_if<EpochReady>(&report)) {
    if (ready->epoch == self.epoch) self.at_rest[static_cast<size_t>(rank)] = true;
    self.rest = std::find(self.at_rest.begin(), self.at_rest.end(), false) == self.at_rest.end();
  } else if (const auto* done = std::get_if<ItemDone>(&report)) {
    self.item_done(rank, *done);
  } else if (const auto* expects = std::get_if<RankExpecting>(&report)) {
    self.rank_expects(rank, *expects);
  } else {
    self.rank_landed(rank, std::get<RankLanded>(report));
  }
  self.free_ended();
  self.plan();
}

void DecodeGroupHead::tick(TimeNs now) {
  Impl& self = *impl_;
  std::vector<Generation> expired;
  for (const auto& [generation, one] : self.sequences)
    if (one.deadline != 0 && one.deadline <= now) expired.push_back(generation);
  for (const Generation generation : expired) {
    ++self.counters.expired;
    self.end(generation, EndReason::expired, "the grant was not filled in time");
  }
  self.free_ended();
  self.plan();
}

GroupOutput DecodeGroupHead::take_output() {
  return std::exchange(impl_->output, {});
}

TimeNs DecodeGroupHead::wake_at() const {
  TimeNs wake = 0;
  for (const auto& [generation, one] : impl_->sequences)
    if (one.deadline != 0 && (wake == 0 || one.deadline < wake)) wake = one.deadline;
  return wake;
}

bool DecodeGroupHead::joined() const {
  return impl_->rest;
}
bool DecodeGroupHead::idle() const {
  return impl_->sequences.empty();
}

GroupCounters DecodeGroupHead::counters() const {
  GroupCounters counters = impl_->counters;
  const pool::Occupancy& pool = impl_->pool.occupancy();
  counters.running = static_cast<uint32_t>(impl_->running.size());
  counters.granted = static_cast<uint32_t>(impl_->sequences.size()) - counters.running;
  counters.pages_used = pool.pages_leased;
  counters.slots_used = pool.slots_leased;
  return counters;
}

}  // namespace kern::engine
