#include "world.h"

#include <algorithm>
#include <array>
#include <utility>

#include "world_places.h"

namespace kern_test {

using kern::pool::Amount;
using kern::pool::Checkpoint;
using kern::pool::Copies;
using kern::pool::Denied;
using kern::pool::Geometry;
using kern::pool::Lease;
using kern::pool::Occupancy;
using kern::pool::Reason;

namespace {

uint64_t advance(uint64_t state, uint64_t stamp) {
  return (state ^ stamp) * 0x9E3779B97F4A7C15ULL + 1;
}

uint32_t over(uint32_t wanted, uint32_t there) {
  return wanted - std::min(wanted, there);
}

std::unique_ptr<kern::pool::EvictionPolicy> policy(const Setup& setup) {
  if (!setup.by_cost) return nullptr;
  return kern::pool::recompute_cost_per_byte({.per_token = 3,
                                              .per_token_pair = 2,
                                              .page_bytes = 5,
                                              .slot_bytes = 7,
                                              .page_tokens = setup.geometry.page_tokens});
}

}  // namespace

std::span<const Setup> setups() {
  static const std::array<Setup, 12> kSetups{{
      {{.page_tokens = 4, .pages = 24, .slots = 9, .recurrent = true, .row_pages_max = 8}},
      {{.page_tokens = 4, .pages = 24, .recurrent = false, .row_pages_max = 8}},
      {{.page_tokens = 3, .pages = 8, .slots = 4, .recurrent = true, .row_pages_max = 5}},
      {{.page_tokens = 3, .pages = 8, .recurrent = false, .row_pages_max = 9}},
      {{.page_tokens = 1, .pages = 16, .slots = 6, .recurrent = true, .row_pages_max = 6}},
      // with a host tier, roomy and tight; a slot as large as several pages, and smaller than one
      {{4, 24, 9, true, 8, 4000, 32, 80}},
      {{4, 24, 0, false, 8, 1000, 32, 0}},
      {{3, 8, 4, true, 5, 310, 24, 88}},
      {{1, 16, 6, true, 6, 100, 16, 8}},
      {{4, 24, 9, true, 8, 4000, 32, 80}, true},
      {{4, 24, 0, false, 8, 1000, 32, 0}, true},
      {{2, 12, 5, true, 6, 200, 16, 8}, true},
  }};
  return kSetups;
}

World::World(const Setup& setup, Chooser& choose)
    : setup_(setup),
      geometry_(setup_.geometry),
      choose_(choose),
      pool_(geometry_),
      page_cells_(geometry_.pages, std::vector<uint64_t>(geometry_.page_tokens)),
      slot_cells_(geometry_.slots),
      host_memory_(geometry_.host_bytes),
      tree_(pool_, policy(setup_), policy(setup_)),
      done_(kOperations) {}

bool World::step() {
  static constexpr bool (World::*kSteps[kOperations])() = {
      &World::lease,         &World::write,       &World::checkpoint,    &World::checkpoint_ahead,
      &World::retire,        &World::restore,     &World::drop_lease,    &World::drop_checkpoint,
      &World::share,         &World::insert,      &World::lookup,        &World::evict_one,
      &World::evict_missing, &World::fork,        &World::park,          &World::wake,
      &World::share_parked,  &World::drop_parked, &World::insert_parked, &World::lookup_any,
      &World::evict_to_park, &World::evict_parked};
  const uint32_t which = choose_.below(geometry_.host_bytes > 0 ? kOperations : kResident);
  const bool did = (this->*kSteps[which])();
  if (!did) return false;
  ++done_[which];
  // What no handle names is worth nothing: a reader of it must notice.
  const Names now = names();
  for (uint32_t page = 0; page < geometry_.pages; ++page)
    if (now.pages[page] == 0) std::fill(page_cells_[page].begin(), page_cells_[page].end(), 0);
  for (uint32_t slot = 0; slot < slot_cells_.size(); ++slot)
    if (now.slots[slot] == 0) slot_cells_[slot] = ~uint64_t{0};
  if (geometry_.host_bytes == 0) return true;
  forget_twins();
  scramble_host();
  return true;
}

// --- operations -------------------------------------------------------------------------------

bool World::lease() {
  const uint32_t tokens = 1 + choose_.below((geometry_.row_pages_max + 1) * geometry_.page_tokens);
  const Amount need{pages_for(tokens), geometry_.recurrent ? 1u : 0u};
  const auto expected = denied(need.pages, {}, need);
  auto outcome = pool_.lease(tokens);
  if (!outcome) {
    require_denied(outcome.denied(), expected);
    note("lease", tokens, outcome.denied());
    return true;
  }
  require(!expected, "a lease that does not fit is granted");
  Lease granted = *std::move(outcome);
  require(granted.capacity() == need.pages * geometry_.page_tokens, "capacity is whole pages");
  Places at = places<Places>(granted.view());
  if (geometry_.recurrent) slot_cells_[at.slot] = 0;
  note("lease", tokens, at);
  writers_.push_back({std::move(granted), {}, std::move(at)});
  return true;
}

uint32_t World::some_positions(const Writer& writer) {
  const uint32_t room = writer.lease.capacity() - writer.text.len();
  if (room == 0 || setup_.narrow) return std::min(room, 1u);
  return 1 + choose_.below(std::min(room, 2 * geometry_.page_tokens));
}

bool World::write() {
  if (writers_.empty()) return false;
  Writer& writer = writers_[one_of(writers_.size())];
  const uint32_t count = some_positions(writer);
  if (count == 0) return false;
  require(writer.lease.writable_from() <= writer.text.len(), "the next position is writable");
  append(writer, count);
  note("write", count);
  return true;
}

bool World::checkpoint() {
  if (writers_.empty()) return false;
  Writer& writer = writers_[one_of(writers_.size())];
  const uint32_t written = writer.text.len();
  if (written == 0) return false;
  const uint32_t len = geometry_.recurrent ? written : 1 + choose_.below(written);
  const uint32_t table = static_cast<uint32_t>(writer.at.pages.size());
  const bool own_page = len % geometry_.page_tokens != 0 && len > writer.lease.writable_from();
  const Amount need{own_page ? 1u : 0u, geometry_.recurrent ? 1u : 0u};
  const auto expected = denied(pages_for(len), {table, need.slots}, need);
  auto outcome = pool_.checkpoint(writer.lease, len);
  if (!outcome) {
    require_denied(outcome.denied(), expected);
    note("checkpoint", len, outcome.denied());
    return true;
  }
  require(!expected, "a checkpoint that does not fit is granted");
  require(outcome->copies.page.has_value() == own_page, "only a page cut open is copied");
  execute(outcome->copies);
  Places at = places<Places>(outcome->checkpoint.view());
  note("checkpoint", len, at, outcome->copies);
  readers_.push_back({std::move(outcome->checkpoint), prefix(writer.text, len), std::move(at)});
  return true;
}

// Taken before its positions are computed; the step that computes them writes the state there.
bool World::checkpoint_ahead() {
  if (writers_.empty()) return false;
  Writer& writer = writers_[one_of(writers_.size())];
  const uint32_t count = some_positions(writer);
  if (count == 0) return false;
  const uint32_t len = writer.text.len() + count;
  const uint32_t table = static_cast<uint32_t>(writer.at.pages.size());
  const Amount need{len % geometry_.page_tokens != 0 ? 1u : 0u, geometry_.recurrent ? 1u : 0u};
  const auto expected = denied(pages_for(len), {table, need.slots}, need);
  auto outcome = pool_.checkpoint(writer.lease, len);
  if (!outcome) {
    require_denied(outcome.denied(), expected);
    note("ahead", len, outcome.denied());
    return true;
  }
  require(!expected, "a checkpoint that does not fit is granted");
  append(writer, count);
  Copies copies = outcome->copies;
  if (copies.slot) slot_cells_[std::exchange(copies.slot, {})->to.value()] = writer.text.state;
  execute(copies);
  Places at = places<Places>(outcome->checkpoint.view());
  note("ahead", len, at, outcome->copies);
  readers_.push_back({std::move(outcome->checkpoint), writer.text, std::move(at)});
  return true;
}

bool World::retire() {
  if (writers_.empty()) return false;
  const uint32_t which = one_of(writers_.size());
  const uint32_t written = writers_[which].text.len();
  if (written == 0) return false;
  const uint32_t len = geometry_.recurrent ? written : 1 + choose_.below(written);
  Places at = writers_[which].at;
  Text text = prefix(writers_[which].text, len);
  Checkpoint checkpoint = pool_.retire(std::move(writers_[which].lease), len);
  writers_.erase(writers_.begin() + which);
  at.pages.resize(pages_for(len));
  require(places<Places>(checkpoint.view()) == at, "retiring moves nothing");
  note("retire", len, at);
  readers_.push_back({std::move(checkpoint), std::move(text), std::move(at)});
  return true;
}

bool World::restore() {
  if (readers_.empty()) return false;
  const Reader& reader = readers_[one_of(readers_.size())];
  uint32_t len = reader.text.len();
  if (!geometry_.recurrent && len > geometry_.page_tokens && choose_.below(2) == 0)
    len = geometry_.page_tokens * (1 + choose_.below(len / geometry_.page_tokens));
  const uint32_t tokens = len + choose_.below(2 * geometry_.page_tokens);
  const uint32_t shared = len / geometry_.page_tokens;
  const Amount need{pages_for(tokens) - shared, geometry_.recurrent ? 1u : 0u};
  const auto expected = denied(pages_for(tokens), {pages_for(reader.text.len()), need.slots}, need);
  auto outcome = pool_.restore(reader.checkpoint, len, tokens);
  if (!outcome) {
    require_denied(outcome.denied(), expected);
    note("restore", len, outcome.denied());
    return true;
  }
  require(!expected, "a restore that does not fit is granted");
  require(outcome->lease.writable_from() == shared * geometry_.page_tokens,
          "a restored lease writes behind what it shares");
  execute(outcome->copies);
  Places at = places<Places>(outcome->lease.view());
  note("restore", len, at, outcome->copies);
  writers_.push_back({std::move(outcome->lease), prefix(reader.text, len), std::move(at)});
  return true;
}

bool World::fork() {
  if (writers_.empty()) return false;
  Writer& writer = writers_[one_of(writers_.size())];
  const uint32_t written = writer.text.len();
  if (written == 0) return false;
  const uint32_t len = geometry_.recurrent ? written : 1 + choose_.below(written);
  const uint32_t tokens = len + choose_.below(2 * geometry_.page_tokens);
  const uint32_t table = static_cast<uint32_t>(writer.at.pages.size());
  const uint32_t shared = len / geometry_.page_tokens;
  const uint32_t frozen = writer.lease.writable_from();
  const Amount need{pages_for(tokens) - shared, geometry_.recurrent ? 1u : 0u};
  const auto expected = denied(pages_for(tokens), {table, need.slots}, need);
  auto outcome = pool_.fork(writer.lease, len, tokens);
  if (!outcome) {
    require_denied(outcome.denied(), expected);
    require(writer.lease.writable_from() == frozen, "a fork denied freezes nothing");
    note("fork", len, outcome.denied());
    return true;
  }
  require(!expected, "a fork that does not fit is granted");
  const uint32_t begin = shared * geometry_.page_tokens;
  require(writer.lease.writable_from() == std::max(frozen, begin), "a fork freezes what it shares");
  require(outcome->lease.writable_from() == begin, "a fork writes behind what it shares");
  require(outcome->copies.page.has_value() == (len > begin), "only a page cut open is copied");
  execute(outcome->copies);
  Places at = places<Places>(outcome->lease.view());
  note("fork", len, at, outcome->copies);
  Text text = prefix(writer.text, len);
  writers_.push_back({std::move(outcome->lease), std::move(text), std::move(at)});
  return true;
}

bool World::drop_lease() {
  if (writers_.empty()) return false;
  const uint32_t which = one_of(writers_.size());
  writers_.erase(writers_.begin() + which);
  note("drop lease", which);
  return true;
}

bool World::drop_checkpoint() {
  if (readers_.empty()) return false;
  const uint32_t which = one_of(readers_.size());
  readers_.erase(readers_.begin() + which);
  note("drop checkpoint", which);
  return true;
}

bool World::share() {
  if (readers_.empty()) return false;
  const uint32_t which = one_of(readers_.size());
  Reader& from = readers_[which];
  Reader shared{from.checkpoint.share(), from.text, from.at};
  readers_.push_back(std::move(shared));
  note("share", which);
  return true;
}

// --- the memory and the reference -------------------------------------------------------------

void World::append(Writer& writer, uint32_t count) {
  const int32_t token = static_cast<int32_t>(choose_.below(2));
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t position = writer.text.len();
    const uint64_t stamp = ++stamps_;
    page_cells_[writer.at.pages[position / geometry_.page_tokens]]
               [position % geometry_.page_tokens] = stamp;
    writer.text.tokens.push_back(token);
    writer.text.stamps.push_back(stamp);
    if (geometry_.recurrent) writer.text.state = advance(writer.text.state, stamp);
  }
  if (geometry_.recurrent) slot_cells_[writer.at.slot] = writer.text.state;
}

void World::execute(const Copies& copies) {
  if (copies.page) page_cells_[copies.page->to.value()] = page_cells_[copies.page->from.value()];
  if (copies.slot) slot_cells_[copies.slot->to.value()] = slot_cells_[copies.slot->from.value()];
}

World::Text World::prefix(const Text& text, uint32_t len) const {
  return {Tokens(text.tokens.begin(), text.tokens.begin() + len),
          Stamps(text.stamps.begin(), text.stamps.begin() + len), text.state};
}

uint32_t World::pages_for(uint32_t tokens) const {
  return (tokens + geometry_.page_tokens - 1) / geometry_.page_tokens;
}

World::Names World::names() const {
  Names names{Counts(geometry_.pages), Counts(geometry_.slots), 0};
  const auto count = [&](const Places& at) {
    for (const uint32_t page : at.pages) ++names.pages[page];
    if (at.slot != 0) ++names.slots[at.slot];
  };
  for (const Writer& writer : writers_) {
    count(writer.at);
    names.writable +=
        (writer.lease.capacity() - writer.lease.writable_from()) / geometry_.page_tokens;
  }
  for (const Reader& reader : readers_) count(reader.at);
  for (const Entry& entry : entries_.all) count(entry.at);
  return names;
}

Amount World::free_now(const Names& names) const {
  const auto unnamed = [](const Counts& counts) {
    return counts.empty() ? 0u
                          : static_cast<uint32_t>(std::count(counts.begin() + 1, counts.end(), 0u));
  };
  return {unnamed(names.pages), geometry_.recurrent ? unnamed(names.slots) : 0};
}

std::optional<Denied> World::denied(uint32_t row, Amount beside, Amount need) const {
  if (row > geometry_.row_pages_max)
    return Denied{Reason::exceeds_row, {over(row, geometry_.row_pages_max), 0}};
  const Amount all{geometry_.pages - 1, geometry_.recurrent ? geometry_.slots - 1 : 0};
  const Amount never{over(beside.pages + need.pages, all.pages),
                     over(beside.slots + need.slots, all.slots)};
  if (never.pages + never.slots > 0) return Denied{Reason::exceeds_pool, never};
  const Amount free = free_now(names());
  const Amount now{over(need.pages, free.pages), over(need.slots, free.slots)};
  if (now.pages + now.slots > 0) return Denied{Reason::busy, now};
  return std::nullopt;
}

// --- what must hold ---------------------------------------------------------------------------

void World::verify() const {
  for (const Writer& writer : writers_) {
    require(shows(writer.lease.view(), writer.at), "a lease names what it was granted");
    verify_text(writer.text, writer.at, "lease");
  }
  for (const Reader& reader : readers_) {
    require(reader.checkpoint.len() == reader.text.len(), "a checkpoint keeps its length");
    require(shows(reader.checkpoint.view(), reader.at), "a checkpoint names what it was granted");
    verify_text(reader.text, reader.at, "checkpoint");
  }
  for (const Entry& entry : entries_.all) verify_text(entry.text, entry.at, "entry");
  verify_occupancy();
  if (geometry_.host_bytes > 0) verify_host();
}

void World::verify_text(const Text& text, const Places& at, const char* who) const {
  for (uint32_t i = 0; i < text.len(); ++i) {
    const auto& cells = page_cells_[at.pages[i / geometry_.page_tokens]];
    if (cells[i % geometry_.page_tokens] != text.stamps[i])
      fail(std::string(who) + " reads what it or its prefix wrote at " + std::to_string(i));
  }
  if ((at.slot != 0) != geometry_.recurrent)
    fail(std::string(who) + " has a slot if there is state");
  if (geometry_.recurrent && slot_cells_[at.slot] != text.state)
    fail(std::string(who) + " holds the state of its end");
}

void World::verify_occupancy() const {
  const Names now = names();
  require(now.pages[0] == 0 && (now.slots.empty() || now.slots[0] == 0), "0 is never granted");
  const Amount free = free_now(now);
  const uint32_t slots = geometry_.recurrent ? geometry_.slots - 1 : 0;
  const uint32_t leased_slots = geometry_.recurrent ? static_cast<uint32_t>(writers_.size()) : 0;
  const Occupancy host = pool_.occupancy();  // `verify_host` looks at these
  const Occupancy expected{
      free.pages,      now.writable,   geometry_.pages - 1 - free.pages - now.writable,
      free.slots,      leased_slots,   slots - free.slots - leased_slots,
      host.host_pages, host.host_slots};
  require(pool_.occupancy() == expected, "the occupancy is what the handles name");
  require(tree_.entries() == entries_.all.size(), "the tree holds what went in and did not go");
}

void World::fail(const std::string& what) const {
  constexpr size_t kShown = 4000;
  const size_t cut = trace_.size() > kShown ? trace_.size() - kShown : 0;
  throw Broken("broken: " + what + "\nafter:\n" + trace_.substr(cut));
}

void World::require_denied(const Denied& got, const std::optional<Denied>& expected) const {
  if (!expected) fail("what fits is granted");
  if (got != *expected) fail("expected " + sentence(*expected) + ", got " + sentence(got));
}

// --- the trace --------------------------------------------------------------------------------

void World::append_part(const Tokens& tokens) {
  trace_ += ' ';
  for (const int32_t token : tokens) trace_ += std::to_string(token);
}

void World::append_part(const Places& at) {
  trace_ += ": [";
  for (const uint32_t page : at.pages) append_part(page);
  trace_ += " ] slot";
  append_part(at.slot);
}

void World::append_part(const Copies& copies) {
  if (copies.page)
    trace_ += " page " + std::to_string(copies.page->from.value()) + "->" +
              std::to_string(copies.page->to.value());
  if (copies.slot)
    trace_ += " slot " + std::to_string(copies.slot->from.value()) + "->" +
              std::to_string(copies.slot->to.value());
}

void World::append_part(const Denied& denied) {
  trace_ += ": " + sentence(denied);
}

void World::append_part(const kern::pool::Transfers& transfers) {
  for (const auto& page : transfers.pages)
    trace_ += " " + std::to_string(page.device.value()) + "=" + std::to_string(page.host.value());
  if (transfers.slot)
    trace_ += " slot " + std::to_string(transfers.slot->device.value()) + "=" +
              std::to_string(transfers.slot->host.value());
}

}  // namespace kern_test
