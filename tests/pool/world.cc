#include "world.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <utility>

namespace kern_test {

using kern::pool::Amount;
using kern::pool::Checkpoint;
using kern::pool::Copies;
using kern::pool::Denied;
using kern::pool::Geometry;
using kern::pool::Lease;
using kern::pool::Occupancy;
using kern::pool::PageId;
using kern::pool::Reason;

namespace {

std::vector<uint32_t> numbers(std::span<const PageId> pages) {
  std::vector<uint32_t> out;
  for (const PageId page : pages) out.push_back(page.value());
  return out;
}

std::string show(const std::vector<uint32_t>& values) {
  std::string out = "[";
  for (const uint32_t value : values) out += (out.size() > 1 ? " " : "") + std::to_string(value);
  return out + "]";
}

std::string show(const Copies& copies) {
  std::string out;
  if (copies.page)
    out += " page " + std::to_string(copies.page->from.value()) + "->" +
           std::to_string(copies.page->to.value());
  if (copies.slot)
    out += " slot " + std::to_string(copies.slot->from.value()) + "->" +
           std::to_string(copies.slot->to.value());
  return out;
}

std::string show(const Denied& denied) {
  return "denied " + std::to_string(static_cast<int>(denied.reason)) + " " +
         std::to_string(denied.missing.pages) + "p " + std::to_string(denied.missing.slots) + "s";
}

uint64_t advance(uint64_t state, uint64_t stamp) {
  return (state ^ stamp) * 0x9E3779B97F4A7C15ULL + 1;
}

}  // namespace

World::World(const Geometry& geometry, Chooser& choose)
    : geometry_(geometry),
      choose_(choose),
      pool_(geometry),
      page_cells_(geometry.pages, std::vector<uint64_t>(geometry.page_tokens)),
      slot_cells_(geometry.slots),
      host_memory_(geometry.host_bytes),
      tree_(pool_),
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
  if (did) ++done_[which];
  // What no handle names is worth nothing: a reader of it must notice.
  const Names now = names();
  for (uint32_t page = 0; page < geometry_.pages; ++page)
    if (now.pages[page] == 0) std::fill(page_cells_[page].begin(), page_cells_[page].end(), 0);
  for (uint32_t slot = 0; slot < slot_cells_.size(); ++slot)
    if (now.slots[slot] == 0) slot_cells_[slot] = ~uint64_t{0};
  forget_twins();
  scramble_host();
  return did;
}

// --- operations -------------------------------------------------------------------------------

bool World::lease() {
  const uint32_t tokens = 1 + choose_.below((geometry_.row_pages_max + 1) * geometry_.page_tokens);
  const Amount need{pages_for(tokens), geometry_.recurrent ? 1u : 0u};
  const auto expected = denied(need.pages, {}, need);
  auto outcome = pool_.lease(tokens);
  if (!outcome) {
    require_denied(outcome.denied(), expected);
    note("lease " + std::to_string(tokens) + ": " + show(outcome.denied()));
    return true;
  }
  require(!expected, "a lease that does not fit is granted");
  Lease granted = *std::move(outcome);
  require(granted.capacity() == need.pages * geometry_.page_tokens, "capacity is whole pages");
  if (geometry_.recurrent) slot_cells_[granted.view().slot().value()] = 0;
  note("lease " + std::to_string(tokens) + ": " + show(numbers(granted.view().pages())) + " slot " +
       std::to_string(granted.view().slot().value()));
  writers_.push_back({std::move(granted), {}});
  return true;
}

bool World::write() {
  if (writers_.empty()) return false;
  Writer& writer = writers_[choose_.below(static_cast<uint32_t>(writers_.size()))];
  const uint32_t room = writer.lease.capacity() - writer.text.len();
  if (room == 0) return false;
  require(writer.lease.writable_from() <= writer.text.len(), "the next position is writable");
  const uint32_t count = 1 + choose_.below(std::min(room, 2 * geometry_.page_tokens));
  append(writer, count);
  note("write " + std::to_string(count));
  return true;
}

bool World::checkpoint() {
  if (writers_.empty()) return false;
  Writer& writer = writers_[choose_.below(static_cast<uint32_t>(writers_.size()))];
  const uint32_t written = writer.text.len();
  if (written == 0) return false;
  const uint32_t len = geometry_.recurrent ? written : 1 + choose_.below(written);
  const uint32_t table = static_cast<uint32_t>(writer.lease.view().pages().size());
  const bool own_page = len % geometry_.page_tokens != 0 && len > writer.lease.writable_from();
  const Amount need{own_page ? 1u : 0u, geometry_.recurrent ? 1u : 0u};
  const auto expected = denied(pages_for(len), {table, need.slots}, need);
  auto outcome = pool_.checkpoint(writer.lease, len);
  if (!outcome) {
    require_denied(outcome.denied(), expected);
    note("checkpoint " + std::to_string(len) + ": " + show(outcome.denied()));
    return true;
  }
  require(!expected, "a checkpoint that does not fit is granted");
  require(outcome->copies.page.has_value() == own_page, "only a page cut open is copied");
  execute(outcome->copies);
  note("checkpoint " + std::to_string(len) + ": " +
       show(numbers(outcome->checkpoint.view().pages())) + show(outcome->copies));
  readers_.push_back({std::move(outcome->checkpoint), prefix(writer.text, len)});
  return true;
}

// Taken before its positions are computed; the step that computes them writes the state there.
bool World::checkpoint_ahead() {
  if (writers_.empty()) return false;
  Writer& writer = writers_[choose_.below(static_cast<uint32_t>(writers_.size()))];
  const uint32_t room = writer.lease.capacity() - writer.text.len();
  if (room == 0) return false;
  const uint32_t count = 1 + choose_.below(std::min(room, 2 * geometry_.page_tokens));
  const uint32_t len = writer.text.len() + count;
  const uint32_t table = static_cast<uint32_t>(writer.lease.view().pages().size());
  const Amount need{len % geometry_.page_tokens != 0 ? 1u : 0u, geometry_.recurrent ? 1u : 0u};
  const auto expected = denied(pages_for(len), {table, need.slots}, need);
  auto outcome = pool_.checkpoint(writer.lease, len);
  if (!outcome) {
    require_denied(outcome.denied(), expected);
    note("ahead " + std::to_string(len) + ": " + show(outcome.denied()));
    return true;
  }
  require(!expected, "a checkpoint that does not fit is granted");
  append(writer, count);
  Copies copies = outcome->copies;
  if (copies.slot) slot_cells_[std::exchange(copies.slot, {})->to.value()] = writer.text.state;
  execute(copies);
  note("ahead " + std::to_string(len) + ": " + show(numbers(outcome->checkpoint.view().pages())) +
       show(outcome->copies));
  readers_.push_back({std::move(outcome->checkpoint), writer.text});
  return true;
}

bool World::retire() {
  if (writers_.empty()) return false;
  const uint32_t which = choose_.below(static_cast<uint32_t>(writers_.size()));
  const uint32_t written = writers_[which].text.len();
  if (written == 0) return false;
  const uint32_t len = geometry_.recurrent ? written : 1 + choose_.below(written);
  auto pages = numbers(writers_[which].lease.view().pages());
  const uint32_t slot = writers_[which].lease.view().slot().value();
  Text text = prefix(writers_[which].text, len);
  Checkpoint checkpoint = pool_.retire(std::move(writers_[which].lease), len);
  writers_.erase(writers_.begin() + which);
  pages.resize(pages_for(len));
  require(numbers(checkpoint.view().pages()) == pages && checkpoint.view().slot().value() == slot,
          "retiring moves nothing");
  note("retire " + std::to_string(len) + ": " + show(pages));
  readers_.push_back({std::move(checkpoint), std::move(text)});
  return true;
}

bool World::restore() {
  if (readers_.empty()) return false;
  const Reader& reader = readers_[choose_.below(static_cast<uint32_t>(readers_.size()))];
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
    note("restore " + std::to_string(len) + ": " + show(outcome.denied()));
    return true;
  }
  require(!expected, "a restore that does not fit is granted");
  require(outcome->lease.writable_from() == shared * geometry_.page_tokens,
          "a restored lease writes behind what it shares");
  execute(outcome->copies);
  note("restore " + std::to_string(len) + ": " + show(numbers(outcome->lease.view().pages())) +
       show(outcome->copies));
  writers_.push_back({std::move(outcome->lease), prefix(reader.text, len)});
  return true;
}

bool World::fork() {
  if (writers_.empty()) return false;
  Writer& writer = writers_[choose_.below(static_cast<uint32_t>(writers_.size()))];
  const uint32_t written = writer.text.len();
  if (written == 0) return false;
  const uint32_t len = geometry_.recurrent ? written : 1 + choose_.below(written);
  const uint32_t tokens = len + choose_.below(2 * geometry_.page_tokens);
  const uint32_t table = static_cast<uint32_t>(writer.lease.view().pages().size());
  const uint32_t shared = len / geometry_.page_tokens;
  const uint32_t frozen = writer.lease.writable_from();
  const Amount need{pages_for(tokens) - shared, geometry_.recurrent ? 1u : 0u};
  const auto expected = denied(pages_for(tokens), {table, need.slots}, need);
  auto outcome = pool_.fork(writer.lease, len, tokens);
  if (!outcome) {
    require_denied(outcome.denied(), expected);
    require(writer.lease.writable_from() == frozen, "a fork denied freezes nothing");
    note("fork " + std::to_string(len) + ": " + show(outcome.denied()));
    return true;
  }
  require(!expected, "a fork that does not fit is granted");
  const uint32_t begin = shared * geometry_.page_tokens;
  require(writer.lease.writable_from() == std::max(frozen, begin), "a fork freezes what it shares");
  require(outcome->lease.writable_from() == begin, "a fork writes behind what it shares");
  require(outcome->copies.page.has_value() == (len > begin), "only a page cut open is copied");
  execute(outcome->copies);
  note("fork " + std::to_string(len) + ": " + show(numbers(outcome->lease.view().pages())) +
       show(outcome->copies));
  writers_.push_back({std::move(outcome->lease), prefix(writer.text, len)});
  return true;
}

bool World::drop_lease() {
  if (writers_.empty()) return false;
  const uint32_t which = choose_.below(static_cast<uint32_t>(writers_.size()));
  writers_.erase(writers_.begin() + which);
  note("drop lease " + std::to_string(which));
  return true;
}

bool World::drop_checkpoint() {
  if (readers_.empty()) return false;
  const uint32_t which = choose_.below(static_cast<uint32_t>(readers_.size()));
  readers_.erase(readers_.begin() + which);
  note("drop checkpoint " + std::to_string(which));
  return true;
}

bool World::share() {
  if (readers_.empty()) return false;
  const uint32_t which = choose_.below(static_cast<uint32_t>(readers_.size()));
  readers_.push_back({readers_[which].checkpoint.share(), readers_[which].text});
  note("share " + std::to_string(which));
  return true;
}

// --- the memory and the reference -------------------------------------------------------------

void World::append(Writer& writer, uint32_t count) {
  const auto pages = writer.lease.view().pages();
  const int32_t token = static_cast<int32_t>(choose_.below(2));
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t position = writer.text.len();
    const uint64_t stamp = ++stamps_;
    page_cells_[pages[position / geometry_.page_tokens].value()][position % geometry_.page_tokens] =
        stamp;
    writer.text.tokens.push_back(token);
    writer.text.stamps.push_back(stamp);
    if (geometry_.recurrent) writer.text.state = advance(writer.text.state, stamp);
  }
  if (geometry_.recurrent) slot_cells_[writer.lease.view().slot().value()] = writer.text.state;
}

void World::execute(const Copies& copies) {
  if (copies.page) page_cells_[copies.page->to.value()] = page_cells_[copies.page->from.value()];
  if (copies.slot) slot_cells_[copies.slot->to.value()] = slot_cells_[copies.slot->from.value()];
}

World::Text World::prefix(const Text& text, uint32_t len) const {
  Text out = text;
  out.tokens.resize(len);
  out.stamps.resize(len);
  return out;
}

uint32_t World::pages_for(uint32_t tokens) const {
  return (tokens + geometry_.page_tokens - 1) / geometry_.page_tokens;
}

World::Names World::names() const {
  Names names{std::vector<uint32_t>(geometry_.pages), std::vector<uint32_t>(geometry_.slots)};
  const auto count = [&](const std::vector<uint32_t>& pages, uint32_t slot) {
    for (const uint32_t page : pages) ++names.pages[page];
    if (slot != 0) ++names.slots[slot];
  };
  for (const Writer& writer : writers_) {
    count(numbers(writer.lease.view().pages()), writer.lease.view().slot().value());
    names.writable +=
        (writer.lease.capacity() - writer.lease.writable_from()) / geometry_.page_tokens;
  }
  for (const Reader& reader : readers_)
    count(numbers(reader.checkpoint.view().pages()), reader.checkpoint.view().slot().value());
  for (const Entry& entry : entries_) count(entry.pages, entry.slot);
  return names;
}

Amount World::free_now(const Names& names) const {
  const auto unnamed = [](const std::vector<uint32_t>& counts) {
    return counts.empty() ? 0u
                          : static_cast<uint32_t>(std::count(counts.begin() + 1, counts.end(), 0u));
  };
  return {unnamed(names.pages), geometry_.recurrent ? unnamed(names.slots) : 0};
}

std::optional<Denied> World::denied(uint32_t row, Amount beside, Amount need) const {
  const auto over = [](uint32_t wanted, uint32_t there) {
    return wanted - std::min(wanted, there);
  };
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
  for (const Writer& writer : writers_)
    verify_text(writer.text, numbers(writer.lease.view().pages()),
                writer.lease.view().slot().value(), "lease");
  for (const Reader& reader : readers_) {
    require(reader.checkpoint.len() == reader.text.len(), "a checkpoint keeps its length");
    verify_text(reader.text, numbers(reader.checkpoint.view().pages()),
                reader.checkpoint.view().slot().value(), "checkpoint");
  }
  for (const Entry& entry : entries_) verify_text(entry.text, entry.pages, entry.slot, "entry");
  verify_occupancy();
  verify_host();
}

void World::verify_text(const Text& text, const std::vector<uint32_t>& pages, uint32_t slot,
                        const char* who) const {
  for (uint32_t i = 0; i < text.len(); ++i) {
    const uint64_t cell = page_cells_[pages[i / geometry_.page_tokens]][i % geometry_.page_tokens];
    if (cell != text.stamps[i])
      fail(std::string(who) + " reads what it or its prefix wrote at " + std::to_string(i));
  }
  if ((slot != 0) != geometry_.recurrent) fail(std::string(who) + " has a slot if there is state");
  if (geometry_.recurrent && slot_cells_[slot] != text.state)
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
  require(tree_.entries() == entries_.size(), "the tree holds what went in and did not go");
}

void World::fail(const std::string& what) const {
  FAIL("broken: " << what << "\nafter:\n" << trace_);
  std::abort();
}

void World::require_denied(const Denied& got, const std::optional<Denied>& expected) const {
  if (!expected) fail("what fits is granted, got " + show(got));
  if (got != *expected) fail("expected " + show(*expected) + ", got " + show(got));
}

}  // namespace kern_test
