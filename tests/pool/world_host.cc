// The world's operations on the host tier, whose memory is bytes. The reference follows from the
// plans: pages are twins from the plan that made them so until one of them is named by nobody.
#include <algorithm>
#include <cstring>
#include <utility>
#include <variant>

#include "world.h"
#include "world_places.h"

namespace kern_test {

using kern::pool::Amount;
using kern::pool::Checkpoint;
using kern::pool::Denied;
using kern::pool::Parked;
using kern::pool::Reason;
using kern::pool::Transfers;

namespace {

// The last place in use; places count from 1.
uint32_t edge(const std::vector<uint32_t>& used) {
  uint32_t last = static_cast<uint32_t>(used.size()) - 1;
  while (last > 0 && used[last] == 0) --last;
  return last;
}

uint32_t live(const std::vector<uint32_t>& used) {
  return static_cast<uint32_t>(used.end() - used.begin() -
                               std::count(used.begin(), used.end(), 0u));
}

uint32_t over(uint32_t wanted, uint32_t there) {
  return wanted - std::min(wanted, there);
}

// Whether a host place has a twin awake.
bool awake(const std::map<uint32_t, uint32_t>& twins, uint32_t host) {
  return std::any_of(twins.begin(), twins.end(), [&](auto& pair) { return pair.second == host; });
}

}  // namespace

Amount World::parking_need(const Reader& reader) const {
  Amount need;
  for (const uint32_t page : reader.at.pages) need.pages += !page_twins_.count(page);
  if (geometry_.recurrent) need.slots = !slot_twins_.count(reader.at.slot);
  return need;
}

bool World::park() {
  if (readers_.empty()) return false;
  const Reader& reader = readers_[one_of(readers_.size())];
  const Amount need = parking_need(reader);
  const auto expected = host_denied(reader.text.len(), need);
  auto outcome = pool_.park(reader.checkpoint);
  if (!outcome) {
    require_denied(outcome.denied(), expected);
    note("park", outcome.denied());
    return true;
  }
  require(!expected, "what does not fit in host memory is not parked");
  require(outcome->transfers.pages.size() == need.pages &&
              outcome->transfers.slot.has_value() == (need.slots > 0),
          "parking copies what has no twin");
  transfer(outcome->transfers, true);
  Places at = places<Places>(outcome->parked.view());
  note("park", reader.text.len(), at, outcome->transfers);
  sleepers_.push_back({std::move(outcome->parked), reader.text, std::move(at)});
  return true;
}

bool World::wake() {
  if (sleepers_.empty()) return false;
  const Sleeper& sleeper = sleepers_[one_of(sleepers_.size())];
  uint32_t len = sleeper.text.len();
  if (!geometry_.recurrent && len > geometry_.page_tokens && choose_.below(2) == 0)
    len = geometry_.page_tokens * (1 + choose_.below(len / geometry_.page_tokens));
  Places asleep = sleeper.at;
  asleep.pages.resize(pages_for(len));
  Amount need;
  for (const uint32_t page : asleep.pages) need.pages += !awake(page_twins_, page);
  if (geometry_.recurrent) need.slots = !awake(slot_twins_, asleep.slot);
  const auto expected = denied(pages_for(len), {}, need);
  auto outcome = pool_.wake(sleeper.parked, len);
  if (!outcome) {
    require_denied(outcome.denied(), expected);
    note("wake", outcome.denied());
    return true;
  }
  require(!expected, "a wake that does not fit is granted");
  require(outcome->transfers.pages.size() == need.pages &&
              outcome->transfers.slot.has_value() == (need.slots > 0),
          "waking brings back what has no twin");
  transfer(outcome->transfers, false);
  {
    const auto again = pool_.park(outcome->checkpoint);
    require(again.granted() && again->transfers.empty(), "sleeping again copies nothing");
    require(shows(again->parked.view(), asleep), "sleeping again is where it slept");
  }
  Places at = places<Places>(outcome->checkpoint.view());
  note("wake", len, at, outcome->transfers);
  readers_.push_back({std::move(outcome->checkpoint), prefix(sleeper.text, len), std::move(at)});
  return true;
}

bool World::share_parked() {
  if (sleepers_.empty()) return false;
  const uint32_t which = one_of(sleepers_.size());
  Sleeper& from = sleepers_[which];
  Sleeper shared{from.parked.share(), from.text, from.at};
  sleepers_.push_back(std::move(shared));
  note("share parked", which);
  return true;
}

bool World::drop_parked() {
  if (sleepers_.empty()) return false;
  const uint32_t which = one_of(sleepers_.size());
  sleepers_.erase(sleepers_.begin() + which);
  note("drop parked", which);
  return true;
}

// --- the memory and the reference -------------------------------------------------------------

void World::transfer(const Transfers& transfers, bool to_host) {
  const auto move = [&](void* device, uint64_t offset, uint64_t bytes) {
    uint8_t* const host = &host_memory_.at(offset);
    require(offset + bytes <= host_memory_.size(), "a place lies in host memory");
    if (to_host)
      std::memcpy(host, device, bytes);
    else
      std::memcpy(device, host, bytes);
  };
  for (const auto& page : transfers.pages) {
    auto& cells = page_cells_[page.device.value()];
    move(cells.data(), pool_.host_offset(page.host), cells.size() * sizeof(uint64_t));
    page_twins_[page.device.value()] = page.host.value();
  }
  if (!transfers.slot) return;
  move(&slot_cells_[transfers.slot->device.value()], pool_.host_offset(transfers.slot->host),
       sizeof(uint64_t));
  slot_twins_[transfers.slot->device.value()] = transfers.slot->host.value();
}

void World::forget_twins() {
  const Names now = names();
  const Names host = host_names();
  std::erase_if(page_twins_, [&](const auto& twins) {
    return now.pages[twins.first] == 0 || host.pages[twins.second] == 0;
  });
  std::erase_if(slot_twins_, [&](const auto& twins) {
    return now.slots[twins.first] == 0 || host.slots[twins.second] == 0;
  });
}

World::Names World::host_names() const {
  const auto room = [&](uint64_t bytes) {
    return Counts(bytes == 0 ? 1 : 1 + geometry_.host_bytes / bytes);
  };
  Names names{room(geometry_.page_bytes), room(geometry_.recurrent ? geometry_.slot_bytes : 0), 0};
  const auto count = [&](const Places& at) {
    for (const uint32_t page : at.pages) ++names.pages[page];
    if (at.slot != 0) ++names.slots[at.slot];
  };
  for (const Sleeper& sleeper : sleepers_) count(sleeper.at);
  for (const Entry& entry : parked_entries_.all) count(entry.at);
  return names;
}

// What no handle names is worth nothing, every byte of it.
void World::scramble_host() {
  const Names names = host_names();
  std::vector<uint8_t> kept(host_memory_.size(), 0xEE);
  const auto keep = [&](uint64_t begin, uint64_t bytes) {
    require(begin + bytes <= kept.size(), "a place lies in host memory");
    std::copy_n(host_memory_.begin() + static_cast<std::ptrdiff_t>(begin), bytes,
                kept.begin() + static_cast<std::ptrdiff_t>(begin));
  };
  for (size_t page = 1; page < names.pages.size(); ++page)
    if (names.pages[page] > 0) keep((page - 1) * geometry_.page_bytes, geometry_.page_bytes);
  for (size_t slot = 1; slot < names.slots.size(); ++slot)
    if (names.slots[slot] > 0)
      keep(geometry_.host_bytes - slot * geometry_.slot_bytes, geometry_.slot_bytes);
  host_memory_ = std::move(kept);
}

std::optional<Denied> World::host_denied(uint32_t len, Amount need) const {
  const uint64_t page = geometry_.page_bytes, slot = geometry_.recurrent ? geometry_.slot_bytes : 0;
  const uint64_t whole = pages_for(len) * page + slot;
  if (whole > geometry_.host_bytes)
    return Denied{Reason::exceeds_pool,
                  {static_cast<uint32_t>((whole - geometry_.host_bytes + page - 1) / page), 0}};
  const Names names = host_names();
  uint64_t middle = geometry_.host_bytes - edge(names.pages) * page - edge(names.slots) * slot;
  Amount missing{over(need.pages, edge(names.pages) - live(names.pages)),
                 over(need.slots, edge(names.slots) - live(names.slots))};
  for (; missing.pages > 0 && middle >= page; middle -= page) --missing.pages;
  for (; missing.slots > 0 && middle >= slot; middle -= slot) --missing.slots;
  if (missing == Amount{}) return std::nullopt;
  return Denied{Reason::busy, missing};
}

uint64_t World::host_cell(uint64_t offset) const {
  uint64_t cell = 0;
  std::memcpy(&cell, &host_memory_.at(offset), sizeof cell);
  return cell;
}

void World::verify_parked(const Text& text, const Places& at) const {
  for (uint32_t i = 0; i < text.len(); ++i) {
    const uint64_t page = (at.pages[i / geometry_.page_tokens] - 1) * geometry_.page_bytes;
    require(host_cell(page + i % geometry_.page_tokens * sizeof(uint64_t)) == text.stamps[i],
            "a parked prefix reads what it wrote");
  }
  if (geometry_.recurrent)
    require(host_cell(geometry_.host_bytes - at.slot * geometry_.slot_bytes) == text.state,
            "a parked prefix holds the state of its end");
}

void World::verify_host() const {
  for (const Sleeper& sleeper : sleepers_) {
    require(sleeper.parked.len() == sleeper.text.len(), "a parked prefix keeps its length");
    require(shows(sleeper.parked.view(), sleeper.at), "a parked prefix names what it was granted");
    verify_parked(sleeper.text, sleeper.at);
  }
  for (const Entry& entry : parked_entries_.all) verify_parked(entry.text, entry.at);
  const Names now = host_names();
  require(pool_.occupancy().host_pages == live(now.pages) &&
              pool_.occupancy().host_slots == live(now.slots),
          "the host tier holds what handles name");
  require(tree_.parked_entries() == parked_entries_.all.size(),
          "the tree holds what was parked there");
}

// --- the tree's other tier --------------------------------------------------------------------

bool World::insert_parked() {
  if (sleepers_.empty()) return false;
  const uint32_t which = one_of(sleepers_.size());
  Sleeper sleeper = std::move(sleepers_[which]);
  sleepers_.erase(sleepers_.begin() + which);
  const size_t before = parked_entries_.all.size();
  note("insert parked", sleeper.text.tokens);
  const bool fresh = tree_.insert(sleeper.text.tokens, std::move(sleeper.parked));
  enter(parked_entries_, {std::move(sleeper.text), std::move(sleeper.at)});
  require(fresh == (parked_entries_.all.size() > before), "a parked prefix is entered once");
  return true;
}

bool World::lookup_any() {
  const Tokens tokens = prompt();
  uint32_t len = 0, parked_len = 0;
  const size_t resident = expected_hit(entries_, tokens, len);
  const size_t parked = expected_hit(parked_entries_, tokens, parked_len);
  const bool none = resident == entries_.all.size() && parked == parked_entries_.all.size();
  auto found = tree_.lookup_any(tokens);
  require(found.has_value() != none, "a usable prefix is found in either tier");
  note("lookup any", tokens, len, parked_len);
  if (none) return true;
  require(found->len == std::max(len, parked_len), "the longest of both tiers is found");
  require(std::holds_alternative<Parked>(found->held) == (parked_len > len),
          "at equal length the resident one is found");
  Entries& tier = parked_len > len ? parked_entries_ : entries_;
  Entry& entry = tier.all[parked_len > len ? parked : resident];
  hit(tier, entry);
  Places at = entry.at;
  at.pages.resize(pages_for(found->len));
  Text text = prefix(entry.text, found->len);
  if (auto* held = std::get_if<Parked>(&found->held)) {
    require(shows(held->view(), at), "a hit is held where its entry sleeps");
    sleepers_.push_back({std::move(*held), std::move(text), std::move(at)});
  } else {
    readers_.push_back(
        {std::move(std::get<Checkpoint>(found->held)), std::move(text), std::move(at)});
  }
  return true;
}

bool World::evict_to_park() {
  const size_t expected = first_to_go(entries_);
  auto leaving = tree_.evict_to_park();
  require(leaving.has_value() == (expected < entries_.all.size()), "the same goes as by eviction");
  if (!leaving) return false;
  const Entry& entry = entries_.all[expected];
  require(leaving->tokens == entry.text.tokens, "what leaves comes with its tokens");
  note("leave", entry.text.tokens);
  readers_.push_back({std::move(leaving->held), entry.text, entry.at});
  leave(entries_, expected);
  return true;
}

bool World::evict_parked() {
  if (readers_.empty() || parked_entries_.all.empty()) return false;
  const Reader& reader = readers_[one_of(readers_.size())];
  uint32_t count = 0;
  std::optional<Denied> still;
  for (;; ++count) {
    forget_twins();  // a page whose twin went needs a place again
    still = host_denied(reader.text.len(), parking_need(reader));
    const size_t next = victim(parked_entries_, host_names(), true, true);
    if (!still || still->reason != Reason::busy || next == parked_entries_.all.size()) break;
    leave(parked_entries_, next);
  }
  const auto done = tree_.evict_parked(reader.checkpoint);
  require(done.entries == count, "parked entries go until there is room, and no more");
  require(done.enough == !still, "an eviction tells whether there is room");
  note("evict parked", count);
  return true;
}

}  // namespace kern_test
