#include "replay.h"

#include <algorithm>
#include <deque>
#include <map>
#include <queue>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "kern/base/assert.h"

namespace kern::replay {

namespace {

using pool::Checkpoint;
using pool::Lease;
using pool::Reason;
using pool::Transfers;

class LeastOftenHit final : public pool::EvictionPolicy {
 public:
  double worth(const pool::EntryView& entry) override { return static_cast<double>(entry.hits); }
  void evicted(double) override {}
};

std::unique_ptr<pool::EvictionPolicy> made(const Setup& setup) {
  if (setup.policy == Policy::cost) return pool::recompute_cost_per_byte(setup.cost);
  if (setup.policy == Policy::hits) return std::make_unique<LeastOftenHit>();
  return nullptr;
}

// The tokens of a trace: a segment (a shared prefix, a turn's prompt, an answer) begins with its
// own number, so that two texts part exactly where their segments do.
class Tokens {
 public:
  explicit Tokens(const Trace& trace) {
    for (const Session& session : trace)
      for (const SharedPrefix& one : session.shared)
        shared_.emplace(one.name, static_cast<int32_t>(shared_.size()));
    first_.reserve(trace.size());
    uint64_t next = shared_.size();
    for (const Session& session : trace) {
      first_.push_back(static_cast<int32_t>(next));
      next += 2 * session.turns.size();
    }
  }
  int32_t shared(const std::string& name) const { return shared_.at(name); }
  int32_t prompt(size_t session, size_t turn) const {
    return first_[session] + static_cast<int32_t>(2 * turn);
  }
  int32_t answer(size_t session, size_t turn) const { return prompt(session, turn) + 1; }

 private:
  std::map<std::string, int32_t> shared_;
  std::vector<int32_t> first_;
};

void append(std::vector<int32_t>& text, int32_t segment, uint32_t tokens) {
  for (uint32_t i = 0; i < tokens; ++i) text.push_back(i == 0 ? segment : static_cast<int32_t>(i));
}

// One session on its way: at most one of its requests is alive.
struct Live {
  std::vector<int32_t> text;  // the prompt of the turn, later its answer too
  size_t turn = 0;
  uint32_t prompt = 0;  // tokens of the turn's whole prompt
  uint32_t found = 0;   // of which so many were not computed again
  uint64_t arrived_us = 0;
  bool waited = false;
  std::optional<Lease> lease;
};

enum class Tier : uint8_t { device, host, none };

// What a request starts with.
struct Start {
  Lease lease;
  uint32_t found = 0;
  Tier tier = Tier::none;
};

enum class Happening : uint8_t { arrival, prompt_out, answered };

struct Event {
  uint64_t at_us;
  uint64_t order;  // of making; breaks ties
  Happening what;
  size_t session;
  bool operator>(const Event& other) const {
    return std::pair(at_us, order) > std::pair(other.at_us, other.order);
  }
};

class Player {
 public:
  Player(const Trace& trace, const Setup& setup)
      : trace_(trace),
        setup_(setup),
        names_(trace),
        pool_(setup.geometry),
        tree_(pool_, made(setup), made(setup)),
        live_(trace.size()) {}

  Outcome play();

 private:
  void arrive(size_t session);
  void serve_waiting();
  // False: busy, and the request has to wait.
  bool admit(size_t session);
  pool::Outcome<Start> start_cold(uint32_t tokens);
  pool::Outcome<Start> start_from(const Live& live, pool::Found found, uint32_t tokens);
  void started(size_t session, Start start);
  void prompt_out(size_t session);
  void answered(size_t session);
  void refuse(size_t session, Reason reason);
  // Cuts a checkpoint of a running request at the last grid line up to `len`.
  void keep(Live& live, uint64_t len);
  void enter(const Live& live, Checkpoint checkpoint);
  // Runs `ask` until it is granted, nothing more can go, or it never can be.
  template <class Ask>
  std::invoke_result_t<Ask> with_room(Ask ask);
  // Makes some room on the device; false when nothing can go that helps.
  bool make_room(const pool::Amount& missing);
  void park(pool::Leaving leaving);
  void count(const pool::Copies& copies);
  uint64_t bytes(const Transfers& transfers) const;
  void note_peaks();
  void schedule(uint64_t at_us, Happening what, size_t session) {
    events_.push({at_us, made_++, what, session});
  }
  const Turn& turn_of(size_t session) const { return trace_[session].turns[live_[session].turn]; }
  uint64_t on_grid(uint64_t len) const { return len - len % setup_.grid; }

  const Trace& trace_;
  const Setup& setup_;
  const Tokens names_;
  pool::Pool pool_;
  pool::PrefixTree tree_;
  std::vector<Live> live_;  // leases go before the pool does
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::deque<size_t> waiting_;
  uint64_t made_ = 0, now_us_ = 0, pipeline_free_us_ = 0;
  uint32_t running_ = 0;  // leases
  Outcome out_;
};

// --- the course of a request --------------------------------------------------------------------

Outcome Player::play() {
  for (size_t i = 0; i < trace_.size(); ++i)
    schedule((trace_[i].at_ms + turn_of(i).think_ms) * 1000, Happening::arrival, i);
  while (!events_.empty()) {
    const Event event = events_.top();
    events_.pop();
    now_us_ = event.at_us;
    if (event.what == Happening::arrival) arrive(event.session);
    if (event.what == Happening::prompt_out) prompt_out(event.session);
    if (event.what == Happening::answered) answered(event.session);
    serve_waiting();
  }
  KERN_ASSERT(waiting_.empty() && running_ == 0, "the last event leaves nobody behind");
  out_.end_us = now_us_;
  return out_;
}

void Player::arrive(size_t session) {
  Live& live = live_[session];
  if (live.turn == 0)
    for (const SharedPrefix& one : trace_[session].shared)
      append(live.text, names_.shared(one.name), one.tokens);
  append(live.text, names_.prompt(session, live.turn), turn_of(session).prompt);
  live.prompt = static_cast<uint32_t>(live.text.size());
  live.arrived_us = now_us_;
  live.waited = false;
  waiting_.push_back(session);
}

void Player::serve_waiting() {
  while (!waiting_.empty()) {
    const size_t session = waiting_.front();
    const bool served = admit(session);
    note_peaks();
    if (!served) {
      KERN_ASSERT(running_ > 0, "what fits an idle pool is granted");
      out_.waited += !std::exchange(live_[session].waited, true);
      return;
    }
    waiting_.pop_front();
  }
}

bool Player::admit(size_t session) {
  const Live& live = live_[session];
  const uint32_t tokens = live.prompt + (setup_.answers_elsewhere ? 0 : turn_of(session).answer);
  auto found = tree_.lookup_any(live.text);
  auto start = found ? start_from(live, *std::move(found), tokens) : start_cold(tokens);
  found.reset();
  // What was found may be in the way itself: beside it there is no room, or never will be.
  if (!start && (start.denied().reason != Reason::busy || running_ == 0))
    start = start_cold(tokens);
  if (start)
    started(session, *std::move(start));
  else if (start.denied().reason == Reason::busy)
    return false;
  else
    refuse(session, start.denied().reason);
  return true;
}

pool::Outcome<Start> Player::start_cold(uint32_t tokens) {
  auto lease = with_room([&] { return pool_.lease(tokens); });
  if (!lease) return lease.denied();
  return Start{*std::move(lease)};
}

pool::Outcome<Start> Player::start_from(const Live& live, pool::Found found, uint32_t tokens) {
  std::optional<pool::Woken> woken;
  if (const auto* parked = std::get_if<pool::Parked>(&found.held)) {
    auto granted = with_room([&] { return pool_.wake(*parked, found.len); });
    if (!granted) return granted.denied();
    woken = *std::move(granted);
  }
  const Checkpoint& source = woken ? woken->checkpoint : std::get<Checkpoint>(found.held);
  auto restored = with_room([&] { return pool_.restore(source, found.len, tokens); });
  if (!restored) return restored.denied();
  count(restored->copies);
  if (woken) {
    out_.bytes_woken += bytes(woken->transfers);
    tree_.insert(std::span(live.text).first(found.len), std::move(woken->checkpoint));
  }
  return Start{std::move(restored->lease), found.len, woken ? Tier::host : Tier::device};
}

void Player::started(size_t session, Start start) {
  Live& live = live_[session];
  const uint32_t computed = live.prompt - start.found;
  out_.requests.device += start.tier == Tier::device;
  out_.requests.host += start.tier == Tier::host;
  out_.requests.miss += start.tier == Tier::none;
  out_.tokens.device += start.tier == Tier::device ? start.found : 0;
  out_.tokens.host += start.tier == Tier::host ? start.found : 0;
  out_.tokens.miss += computed;
  const uint64_t wait_us = now_us_ - live.arrived_us;
  out_.wait_us += wait_us;
  out_.wait_us_max = std::max(out_.wait_us_max, wait_us);
  live.found = start.found;
  live.lease = std::move(start.lease);
  ++running_;
  const uint64_t rate = setup_.prefill_tokens_per_s;
  pipeline_free_us_ =
      std::max(pipeline_free_us_, now_us_) + (uint64_t{computed} * 1'000'000 + rate - 1) / rate;
  schedule(pipeline_free_us_, Happening::prompt_out, session);
}

void Player::prompt_out(size_t session) {
  Live& live = live_[session];
  uint64_t shared = 0;
  for (const SharedPrefix& one : trace_[session].shared) {
    shared += one.tokens;
    if (setup_.keep.shared) keep(live, shared);
  }
  if (setup_.keep.prompt) keep(live, live.prompt);
  if (setup_.answers_elsewhere) {
    live.lease.reset();
    --running_;
  }
  const Turn& turn = turn_of(session);
  schedule(now_us_ + uint64_t{turn.answer - 1} * setup_.step_us, Happening::answered, session);
}

void Player::answered(size_t session) {
  Live& live = live_[session];
  append(live.text, names_.answer(session, live.turn), turn_of(session).answer);
  if (live.lease) {
    const uint64_t computed = live.text.size() - 1, len = on_grid(computed);
    const bool state_is_there = !setup_.geometry.recurrent || len == computed;
    if (setup_.keep.answer && state_is_there && len > live.found)
      enter(live, pool_.retire(*std::move(live.lease), static_cast<uint32_t>(len)));
    else if (setup_.keep.answer)
      keep(live, len);
    live.lease.reset();
    --running_;
  }
  if (++live.turn < trace_[session].turns.size())
    schedule(now_us_ + turn_of(session).think_ms * 1000, Happening::arrival, session);
  else
    live.text = {};
}

void Player::refuse(size_t session, Reason reason) {
  ++(reason == Reason::exceeds_row ? out_.exceeded_row : out_.exceeded_pool);
  out_.abandoned += trace_[session].turns.size() - live_[session].turn - 1;
  live_[session].text = {};
}

// --- what is kept, and what goes ----------------------------------------------------------------

void Player::keep(Live& live, uint64_t len) {
  len = on_grid(len);
  if (len <= live.found) return;
  auto frozen =
      with_room([&] { return pool_.checkpoint(*live.lease, static_cast<uint32_t>(len)); });
  note_peaks();
  if (!frozen) {
    ++out_.not_kept;
    return;
  }
  frozen->copies.slot.reset();  // the kernel that passes `len` writes the state there itself
  count(frozen->copies);
  enter(live, std::move(frozen->checkpoint));
}

void Player::enter(const Live& live, Checkpoint checkpoint) {
  const auto tokens = std::span(live.text).first(checkpoint.len());
  out_.kept += tree_.insert(tokens, std::move(checkpoint));
}

template <class Ask>
std::invoke_result_t<Ask> Player::with_room(Ask ask) {
  auto got = ask();
  while (!got && got.denied().reason == Reason::busy && make_room(got.denied().missing))
    got = ask();
  return got;
}

bool Player::make_room(const pool::Amount& missing) {
  if (setup_.geometry.host_bytes == 0) {
    const pool::Evicted evicted = tree_.evict(missing);
    out_.dropped += evicted.entries;
    return evicted.enough;
  }
  // Evicting to park takes what is worth least even where its going frees nothing; at least it is
  // not begun where all that is frozen would not be enough.
  const pool::Occupancy& now = pool_.occupancy();
  if (missing.pages > now.pages_frozen || missing.slots > now.slots_frozen) return false;
  auto leaving = tree_.evict_to_park();
  if (!leaving) return false;
  park(*std::move(leaving));
  return true;
}

void Player::park(pool::Leaving leaving) {
  if (leaving.held.len() < setup_.park_tokens_min) {
    ++out_.dropped;
    return;
  }
  auto slept = pool_.park(leaving.held);
  if (!slept && slept.denied().reason == Reason::busy) {
    out_.host_dropped += tree_.evict_parked(leaving.held).entries;
    slept = pool_.park(leaving.held);
  }
  if (!slept) {
    ++out_.dropped;
    return;
  }
  ++out_.parked;
  out_.bytes_parked += bytes(slept->transfers);
  tree_.insert(leaving.tokens, std::move(slept->parked));
}

// --- counting -----------------------------------------------------------------------------------

void Player::count(const pool::Copies& copies) {
  out_.bytes_copied += (copies.page ? setup_.geometry.page_bytes : 0) +
                       (copies.slot ? setup_.geometry.slot_bytes : 0);
}

uint64_t Player::bytes(const Transfers& transfers) const {
  return transfers.pages.size() * setup_.geometry.page_bytes +
         (transfers.slot ? setup_.geometry.slot_bytes : 0);
}

void Player::note_peaks() {
  const pool::Occupancy& now = pool_.occupancy();
  const auto raise = [](auto& peak, auto value) { peak = std::max<uint64_t>(peak, value); };
  raise(out_.pages_peak, now.pages_leased + now.pages_frozen);
  raise(out_.pages_leased_peak, now.pages_leased);
  raise(out_.slots_peak, now.slots_leased + now.slots_frozen);
  raise(out_.slots_leased_peak, now.slots_leased);
  raise(out_.host_bytes_peak,
        now.host_pages * setup_.geometry.page_bytes + now.host_slots * setup_.geometry.slot_bytes);
}

}  // namespace

std::optional<Policy> policy_named(std::string_view name) {
  if (name == "lru") return Policy::lru;
  if (name == "hits") return Policy::hits;
  if (name == "cost") return Policy::cost;
  return std::nullopt;
}

std::string_view to_string(Policy policy) {
  if (policy == Policy::lru) return "lru";
  return policy == Policy::hits ? "hits" : "cost";
}

Outcome play(const Trace& trace, const Setup& setup) {
  KERN_ASSERT(setup.grid > 0 && setup.prefill_tokens_per_s > 0, "a grid and a rate are not 0");
  KERN_ASSERT(!(setup.keep.answer && setup.answers_elsewhere),
              "what is decoded elsewhere is not kept here");
  return Player(trace, setup).play();
}

}  // namespace kern::replay
