#include "kern/engine/prefill.h"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "kern/base/assert.h"
#include "kern/base/checked.h"
#include "packing.h"
#include "prompt_memory.h"

namespace kern::engine {
namespace {

/// Who goes first: lower priority number, then earlier.
struct Turn {
  int32_t priority = 0;
  uint64_t arrival = 0;
  friend auto operator<=>(const Turn&, const Turn&) = default;
};

/// Instead of an item's id: the moves that the next item will carry.
constexpr uint64_t kDue = UINT64_MAX;

/// An admitted job. Its handles go back to the pool when it goes.
struct Admitted {
  PrefillJob job;
  Turn turn;
  uint64_t admission = 0;
  pool::Lease lease;
  pool::Copies copies;                       ///< due with the first slice
  std::optional<pool::Checkpoint> source;    ///< held until the copies are in an item
  std::optional<pool::Checkpoint> snapshot;  ///< enters the cache when the prompt came out whole
  uint32_t cached = 0;
  uint32_t planned = 0;      ///< rows in items so far, cached ones included
  uint64_t after_moves = 0;  ///< of this item, or kDue, and before: then its memory is its own
  std::optional<uint64_t> last_item;
};

struct InFlight {
  uint64_t id = 0;
  std::vector<RequestId> emitting;
};

uint32_t floor_to(uint32_t value, uint32_t step) {
  return value / step * step;
}

}  // namespace

struct PrefillScheduler::Impl {
  explicit Impl(const PrefillOptions& given, const pool::Geometry& geometry)
      : options(given), memory(geometry, given.park_tokens_min) {
    const auto page = static_cast<uint32_t>(given.limits.page_tokens);
    grid = page > kGridTokens ? page : kGridTokens;
  }

  PrefillOptions options;
  uint32_t grid = kGridTokens;  ///< checkpoints lie on whole pages and grid lines
  PromptMemory memory;
  std::map<Turn, PrefillJob> queue;
  std::map<RequestId, Turn> queued;
  std::map<RequestId, Admitted> admitted;
  std::map<Turn, RequestId> unplanned;  ///< admitted, with rows not yet in an item
  std::deque<InFlight> in_flight;
  uint64_t arrivals = 0;
  uint64_t admissions = 0;
  bool blocked = false;   ///< the last admission was denied and nothing has changed since
  uint64_t moving = 0;    ///< the last item that carried moves
  uint64_t is_moved = 0;  ///< the moves of items up to this one are done
  uint64_t items = 0, prompt_tokens = 0, cache_queries = 0, cache_hits = 0;

  /// What somebody who was granted memory just now has to wait for.
  uint64_t moves_so_far() const { return memory.moves_due() ? kDue : moving; }
  bool is_ready(const Admitted& one) const { return one.after_moves <= is_moved; }
  void carry(Item& item);
  void keep(const PrefillJob& job, Turn turn, pool::Restored restored,
            std::optional<pool::Checkpoint> source, uint32_t cached);
  std::vector<Admitted*> candidates(bool may_wait);
  bool admit(const PrefillJob& job, Turn turn);
  void add_slice(Item& item, InFlight& flight, Admitted& one, uint32_t rows);
  void take_snapshot(Slice& slice, Admitted& one, uint32_t end);
  /// Where a prompt's checkpoint lies. The same prompt again runs one row at least, and a recurrent
  /// state begins nowhere but where it was kept: so that line is before the last row.
  uint32_t boundary(const PrefillJob& job) const {
    const auto length = static_cast<uint32_t>(job.prompt.size());
    return floor_to(options.limits.recurrent ? length - 1 : length, grid);
  }
  /// Where a step must end so that the state is kept there, 0 for nowhere: steps keep what it is at
  /// the last line they pass.
  uint32_t cut(const PrefillJob& job) const {
    const uint32_t at = boundary(job);
    return at == floor_to(static_cast<uint32_t>(job.prompt.size()), kGridTokens) ? 0 : at;
  }
};

PrefillScheduler::PrefillScheduler(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PrefillScheduler::~PrefillScheduler() = default;
PrefillScheduler::PrefillScheduler(PrefillScheduler&&) noexcept = default;
PrefillScheduler& PrefillScheduler::operator=(PrefillScheduler&&) noexcept = default;

Result<PrefillScheduler> PrefillScheduler::create(const PrefillOptions& options) {
  const ExecutorLimits& limits = options.limits;
  if (limits.prefill_rows_max < static_cast<int32_t>(kGridTokens))
    return fail(Kind::caller, "`prefill_rows_max`: expected at least {}, got {}", kGridTokens,
                limits.prefill_rows_max);
  if (limits.prefill_seqs_max < 1)
    return fail(Kind::caller, "`prefill_seqs_max`: expected at least 1, got {}",
                limits.prefill_seqs_max);
  if (limits.context_max < 1)
    return fail(Kind::caller, "`context_max`: expected at least 1, got {}", limits.context_max);
  const int32_t page = limits.page_tokens;
  const auto step = static_cast<int32_t>(kGridTokens);
  if (page < 1 || (page <= step ? step % page : page % step) != 0)
    return fail(Kind::caller, "`page_tokens`: expected a divisor or a multiple of {}, got {}",
                kGridTokens, page);
  if (options.pipeline_depth < 1 || options.items_max < options.pipeline_depth)
    return fail(Kind::caller, "`items_max`: expected at least the pipeline's depth {}, got {}",
                options.pipeline_depth, options.items_max);
  const pool::Geometry geometry{
      .page_tokens = static_cast<uint32_t>(page),
      .pages = limits.pages,
      .slots = limits.slots,
      .recurrent = limits.recurrent,
      .row_pages_max = static_cast<uint32_t>(ceil_div(limits.context_max, page)),
      .host_bytes = options.prefix_cache ? limits.host_bytes : 0,
      .page_bytes = std::max<uint64_t>(limits.host_page_bytes, 1),
      .slot_bytes = std::max<uint64_t>(limits.host_slot_bytes, 1)};
  if (const std::string why = pool::refusal(geometry); !why.empty())
    return fail(Kind::caller, "state memory: {}", why);
  return PrefillScheduler(std::make_unique<Impl>(options, geometry));
}

Fit PrefillScheduler::fit(uint32_t tokens) const {
  const ExecutorLimits& limits = impl_->options.limits;
  if (tokens > static_cast<uint32_t>(limits.context_max)) return Fit::exceeds_context;
  if (ceil_div(tokens, static_cast<uint32_t>(limits.page_tokens)) >= limits.pages)
    return Fit::exceeds_pool;
  return Fit::fits;
}

void PrefillScheduler::submit(PrefillJob job) {
  KERN_ASSERT(!job.prompt.empty() && job.lease_tokens >= job.prompt.size(), "request {}",
              job.id.value());
  KERN_ASSERT(fit(job.lease_tokens) == Fit::fits, "request {}", job.id.value());
  KERN_ASSERT(!impl_->queued.contains(job.id) && !impl_->admitted.contains(job.id), "request {}",
              job.id.value());
  const Turn turn{job.priority, impl_->arrivals++};
  impl_->queued.emplace(job.id, turn);
  impl_->queue.emplace(turn, std::move(job));
  if (impl_->queue.begin()->first == turn) impl_->blocked = false;
}

const PrefillJob* PrefillScheduler::next() const {
  if (impl_->queue.empty() || impl_->blocked) return nullptr;
  if (impl_->unplanned.size() >= static_cast<size_t>(impl_->options.limits.prefill_seqs_max))
    return nullptr;
  return &impl_->queue.begin()->second;
}

void PrefillScheduler::Impl::keep(const PrefillJob& job, Turn turn, pool::Restored restored,
                                  std::optional<pool::Checkpoint> source, uint32_t cached) {
  Admitted one{.job = {},
               .turn = turn,
               .admission = admissions++,
               .lease = std::move(restored.lease),
               .copies = restored.copies,
               .source = std::move(source),
               .snapshot = std::nullopt,
               .cached = cached,
               .planned = cached,
               .after_moves = moves_so_far(),
               .last_item = std::nullopt};
  admitted.emplace(job.id, std::move(one));
  unplanned.emplace(turn, job.id);
  prompt_tokens += job.prompt.size();
  if (options.prefix_cache) cache_queries += job.prompt.size();
  cache_hits += cached;
}

bool PrefillScheduler::Impl::admit(const PrefillJob& job, Turn turn) {
  if (options.prefix_cache) {
    auto found = memory.find(job.prompt, grid);
    if (!found) return false;  // no room to wake it in now
    if (std::optional<pool::Hit>& hit = *found) {
      auto restored = memory.with_room(
          [&] { return memory.pool().restore(hit->held, hit->len, job.lease_tokens); });
      if (restored) {
        keep(job, turn, std::move(*restored), std::move(hit->held), hit->len);
        return true;
      }
      if (restored.denied().reason == pool::Reason::busy) return false;
      // the prompt does not fit beside its own prefix: run it from nothing
    }
  }
  auto leased = memory.with_room([&] { return memory.pool().lease(job.lease_tokens); });
  if (!leased) return false;
  keep(job, turn, {std::move(*leased), {}}, std::nullopt, 0);
  return true;
}

bool PrefillScheduler::admit_next() {
  KERN_ASSERT(next() != nullptr);
  const auto first = impl_->queue.begin();
  if (!impl_->admit(first->second, first->first)) {
    impl_->blocked = true;
    return false;
  }
  const RequestId id = first->second.id;
  KERN_ASSERT(impl_->admitted.contains(id) && impl_->queued.contains(id), "request {}", id.value());
  impl_->admitted.at(id).job = std::move(first->second);
  impl_->queue.erase(first);
  impl_->queued.erase(id);
  return true;
}

void PrefillScheduler::Impl::take_snapshot(Slice& slice, Admitted& one, uint32_t end) {
  const uint32_t at = boundary(one.job);
  if (!options.prefix_cache || at <= slice.start || at > end) return;
  KERN_ASSERT(floor_to(end, kGridTokens) == at || !options.limits.recurrent,
              "the state at {} is not the last one of rows up to {}", at, end);
  auto frozen = memory.with_room([&] { return memory.pool().checkpoint(one.lease, at); });
  KERN_ASSERT(!one.snapshot, "request {} is frozen twice", one.job.id.value());
  if (!frozen) return;  // no slot for it now: the prompt runs on, uncached
  KERN_ASSERT(!frozen->copies.page, "a checkpoint at {} splits a page", at);
  slice.snapshot_slot = frozen->checkpoint.view().slot().value();
  one.snapshot = std::move(frozen->checkpoint);
}

void PrefillScheduler::Impl::add_slice(Item& item, InFlight& flight, Admitted& one, uint32_t rows) {
  const auto length = static_cast<uint32_t>(one.job.prompt.size());
  const uint32_t end = one.planned + rows;
  KERN_ASSERT(rows > 0 && end <= length && (end == length || end % kGridTokens == 0),
              "rows {}..{} of {}", one.planned, end, length);
  Slice slice{.request = one.job.id,
              .slot = one.lease.view().slot().value(),
              .start = one.planned,
              .sampling = one.job.sampling,
              .top_logprobs = one.job.top_logprobs};
  for (const pool::PageId page : one.lease.view().pages()) slice.pages.push_back(page.value());
  slice.tokens.assign(one.job.prompt.begin() + one.planned, one.job.prompt.begin() + end);
  slice.emits = end == length;
  if (one.planned == one.cached) {
    if (one.copies.page)
      item.page_copies.push_back({one.copies.page->from.value(), one.copies.page->to.value()});
    if (one.copies.slot)
      item.slot_copies.push_back({one.copies.slot->from.value(), one.copies.slot->to.value()});
    else if (slice.slot != 0)
      item.zero_slots.push_back(slice.slot);
    one.source.reset();
  }
  take_snapshot(slice, one, end);
  one.planned = end;
  if (slice.emits) {
    one.last_item = item.id;
    flight.emitting.push_back(one.job.id);
    unplanned.erase(one.turn);
  }
  item.slices.push_back(std::move(slice));
}

/// Gives an item the moves that are due; whoever waits for them waits for this item's.
void PrefillScheduler::Impl::carry(Item& item) {
  if (!memory.moves_due()) return;
  KERN_ASSERT(item.moves.empty() && item.id > moving, "item {} after {}", item.id, moving);
  item.moves = memory.take_moves();
  moving = item.id;
  for (auto& [id, one] : admitted)
    if (one.after_moves == kDue) one.after_moves = item.id;
}

void PrefillScheduler::carry_moves(Item& item) {
  impl_->carry(item);
}

void PrefillScheduler::moved(uint64_t item_id) {
  impl_->is_moved = std::max(impl_->is_moved, std::min(item_id, impl_->moving));
}

/// Whose rows may go into the next item, by turn.
std::vector<Admitted*> PrefillScheduler::Impl::candidates(bool may_wait) {
  std::vector<Admitted*> ready, all;
  for (const auto& [turn, id] : unplanned) {
    all.push_back(&admitted.at(id));
    if (is_ready(*all.back())) ready.push_back(all.back());
  }
  return ready.empty() && may_wait ? all : ready;
}

std::optional<Item> PrefillScheduler::plan(uint64_t item_id, bool may_wait) {
  Impl& self = *impl_;
  const auto out = static_cast<int32_t>(self.in_flight.size());
  if (self.unplanned.empty() || out >= self.options.items_max) return std::nullopt;
  KERN_ASSERT(self.in_flight.empty() || self.in_flight.back().id < item_id, "item {}", item_id);
  const std::vector<Admitted*> ones = self.candidates(may_wait);
  if (ones.empty()) return std::nullopt;
  std::vector<Want> wants;
  for (const Admitted* one : ones) {
    const auto left = static_cast<uint32_t>(one->job.prompt.size()) - one->planned;
    wants.push_back({one->planned, left, self.cut(one->job)});
  }
  const ExecutorLimits& limits = self.options.limits;
  const Packing packing = share_rows(wants, static_cast<uint32_t>(limits.prefill_rows_max),
                                     static_cast<uint32_t>(limits.prefill_seqs_max));
  if (!packing.full && out >= self.options.pipeline_depth) return std::nullopt;
  Item item{.id = item_id, .phase = Phase::prefill};
  InFlight flight{.id = item_id};
  for (size_t i = 0; i < ones.size(); ++i)
    if (packing.rows[i] > 0) self.add_slice(item, flight, *ones[i], packing.rows[i]);
  KERN_ASSERT(!item.slices.empty());
  self.carry(item);  // last: a slice may have needed room for its checkpoint
  for (size_t i = 0; i < ones.size(); ++i)
    if (packing.rows[i] > 0) item.after_moves = std::max(item.after_moves, ones[i]->after_moves);
  for (const Slice& slice : item.slices)
    if (slice.snapshot_slot != 0) item.after_moves = std::max(item.after_moves, self.moving);
  self.in_flight.push_back(std::move(flight));
  ++self.items;
  return item;
}

Result<std::vector<PrefillDone>> PrefillScheduler::on_result(const ItemResult& result) {
  Impl& self = *impl_;
  if (self.in_flight.empty() || self.in_flight.front().id != result.id)
    return fail(Kind::peer, "item result: expected item {}, got {}",
                self.in_flight.empty() ? 0 : self.in_flight.front().id, result.id);
  const InFlight& flight = self.in_flight.front();
  bool matches = flight.emitting.size() == result.emitted.size();
  for (size_t i = 0; matches && i < flight.emitting.size(); ++i)
    matches = flight.emitting[i] == result.emitted[i].request;
  if (!matches)
    return fail(Kind::peer, "item {}: expected tokens of the {} prompts it ends, got {} others",
                result.id, flight.emitting.size(), result.emitted.size());
  std::vector<PrefillDone> done;
  for (const Emitted& emitted : result.emitted) {
    const auto at = self.admitted.find(emitted.request);
    if (at == self.admitted.end()) continue;  // released while the item ran
    Admitted& one = at->second;
    PrefillDone mine{emitted.request, emitted, one.cached};
    mine.emitted.failed |= emitted.token < 0;
    if (one.snapshot && !mine.emitted.failed) {
      self.memory.insert(one.job.prompt, std::move(*one.snapshot));
    }
    one.snapshot.reset();
    done.push_back(std::move(mine));
  }
  self.in_flight.pop_front();
  self.blocked = false;
  moved(result.moved);
  return done;
}

void PrefillScheduler::release(RequestId id) {
  Impl& self = *impl_;
  if (const auto at = self.queued.find(id); at != self.queued.end()) {
    self.queue.erase(at->second);
    self.queued.erase(at);
  } else if (const auto one = self.admitted.find(id); one != self.admitted.end()) {
    self.unplanned.erase(one->second.turn);
    self.admitted.erase(one);
  }
  self.blocked = false;
}

Place PrefillScheduler::place(RequestId id) const {
  const pool::Lease& lease = impl_->admitted.at(id).lease;
  Place place{.slot = lease.view().slot().value()};
  for (const pool::PageId page : lease.view().pages()) place.pages.push_back(page.value());
  return place;
}

std::optional<uint64_t> PrefillScheduler::last_item(RequestId id) const {
  const auto at = impl_->admitted.find(id);
  return at == impl_->admitted.end() ? std::nullopt : at->second.last_item;
}

uint32_t PrefillScheduler::cached_tokens(RequestId id) const {
  const auto at = impl_->admitted.find(id);
  return at == impl_->admitted.end() ? 0 : at->second.cached;
}

bool PrefillScheduler::admitted(RequestId id) const {
  return impl_->admitted.contains(id);
}

std::vector<RequestId> PrefillScheduler::reset() {
  std::map<uint64_t, RequestId> order;
  for (const auto& [id, one] : impl_->admitted) order.emplace(one.admission, id);
  std::vector<RequestId> ids;
  for (const auto& [admission, id] : order) ids.push_back(id);
  impl_->admitted.clear();
  impl_->unplanned.clear();
  impl_->in_flight.clear();
  impl_->memory.forget();
  (void)impl_->memory.take_moves();
  impl_->moving = impl_->is_moved = 0;  // a stage settles its moves before the next epoch
  impl_->blocked = false;
  const pool::Occupancy& now = impl_->memory.pool().occupancy();
  KERN_ASSERT(now.pages_free + 1 == impl_->options.limits.pages && now.host_pages == 0,
              "pages are held by nobody");
  return ids;
}

size_t PrefillScheduler::queued() const {
  return impl_->queue.size();
}
int32_t PrefillScheduler::items_in_flight() const {
  return static_cast<int32_t>(impl_->in_flight.size());
}

void PrefillScheduler::count(Counters& counters) const {
  impl_->memory.count(counters);
  counters.items_in_flight += impl_->in_flight.size();
  counters.items += impl_->items;
  counters.prompt_tokens += impl_->prompt_tokens;
  counters.cache_queries += impl_->cache_queries;
  counters.cache_hits += impl_->cache_hits;
}

void PrefillScheduler::drop_cache() {
  impl_->memory.forget();
  impl_->blocked = false;
}

}  // namespace kern::engine
