// The world's operations on the host tier, whose memory is bytes. The reference follows from the
// plans: pages are twins from the plan that made them so until one of them is named by nobody.
#include <algorithm>
#include <cstring>
#include <utility>

#include "world.h"

namespace kern_test {

using kern::pool::Amount;
using kern::pool::Checkpoint;
using kern::pool::Denied;
using kern::pool::HostPageId;
using kern::pool::Parked;
using kern::pool::Reason;
using kern::pool::Transfers;

namespace {

// The last place in use; places count from 1.
uint32_t edge(const std::map<uint32_t, uint32_t>& used) {
  return used.empty() ? 0 : used.rbegin()->first;
}

uint32_t over(uint64_t wanted, uint64_t there) {
  return static_cast<uint32_t>(wanted - std::min(wanted, there));
}

std::vector<uint32_t> numbers(const Parked& parked) {
  std::vector<uint32_t> out;
  for (const HostPageId page : parked.view().pages()) out.push_back(page.value());
  return out;
}

std::string show(const Transfers& transfers) {
  std::string out;
  for (const auto& page : transfers.pages)
    out += " " + std::to_string(page.device.value()) + "=" + std::to_string(page.host.value());
  if (transfers.slot)
    out += " slot " + std::to_string(transfers.slot->device.value()) + "=" +
           std::to_string(transfers.slot->host.value());
  return out;
}

}  // namespace

Amount World::parking_need(const Reader& reader) const {
  Amount need;
  for (const auto page : reader.checkpoint.view().pages())
    need.pages += !page_twins_.count(page.value());
  if (geometry_.recurrent) need.slots = !slot_twins_.count(reader.checkpoint.view().slot().value());
  return need;
}

bool World::park() {
  if (readers_.empty()) return false;
  const Reader& reader = readers_[choose_.below(static_cast<uint32_t>(readers_.size()))];
  const Amount need = parking_need(reader);
  const auto expected = host_denied(reader.text.len(), need);
  auto outcome = pool_.park(reader.checkpoint);
  if (!outcome) {
    require_denied(outcome.denied(), expected);
    note("park: denied");
    return true;
  }
  require(!expected, "what does not fit in host memory is not parked");
  require(outcome->transfers.pages.size() == need.pages &&
              outcome->transfers.slot.has_value() == (need.slots > 0),
          "parking copies what has no twin");
  transfer(outcome->transfers, true);
  note("park " + std::to_string(reader.text.len()) + ":" + show(outcome->transfers));
  sleepers_.push_back({std::move(outcome->parked), reader.text});
  return true;
}

bool World::wake() {
  if (sleepers_.empty()) return false;
  const Sleeper& sleeper = sleepers_[choose_.below(static_cast<uint32_t>(sleepers_.size()))];
  uint32_t len = sleeper.text.len();
  if (!geometry_.recurrent && len > geometry_.page_tokens && choose_.below(2) == 0)
    len = geometry_.page_tokens * (1 + choose_.below(len / geometry_.page_tokens));
  const auto awake = [](const std::map<uint32_t, uint32_t>& twins, uint32_t host) {
    return std::any_of(twins.begin(), twins.end(), [&](auto& t) { return t.second == host; });
  };
  auto pages = sleeper.parked.view().pages();
  pages.resize(pages_for(len));
  Amount need;
  for (const HostPageId page : pages) need.pages += !awake(page_twins_, page.value());
  if (geometry_.recurrent) need.slots = !awake(slot_twins_, sleeper.parked.view().slot().value());
  const auto expected = denied(pages_for(len), {}, need);
  auto outcome = pool_.wake(sleeper.parked, len);
  if (!outcome) {
    require_denied(outcome.denied(), expected);
    note("wake: denied");
    return true;
  }
  require(!expected, "a wake that does not fit is granted");
  require(outcome->transfers.pages.size() == need.pages &&
              outcome->transfers.slot.has_value() == (need.slots > 0),
          "waking brings back what has no twin");
  transfer(outcome->transfers, false);
  const auto again = pool_.park(outcome->checkpoint);
  require(again.granted() && again->transfers.empty(), "sleeping again copies nothing");
  require(
      len != sleeper.text.len() || again->parked.view().pages() == sleeper.parked.view().pages(),
      "sleeping again is where it slept");
  note("wake " + std::to_string(len) + ":" + show(outcome->transfers));
  readers_.push_back({std::move(outcome->checkpoint), prefix(sleeper.text, len)});
  return true;
}

bool World::share_parked() {
  if (sleepers_.empty()) return false;
  const uint32_t which = choose_.below(static_cast<uint32_t>(sleepers_.size()));
  sleepers_.push_back({sleepers_[which].parked.share(), sleepers_[which].text});
  note("share parked " + std::to_string(which));
  return true;
}

bool World::drop_parked() {
  if (sleepers_.empty()) return false;
  const uint32_t which = choose_.below(static_cast<uint32_t>(sleepers_.size()));
  sleepers_.erase(sleepers_.begin() + which);
  note("drop parked " + std::to_string(which));
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
  const HostNames host = host_names();
  std::erase_if(page_twins_, [&](const auto& twins) {
    return now.pages[twins.first] == 0 || !host.pages.count(twins.second);
  });
  std::erase_if(slot_twins_, [&](const auto& twins) {
    return now.slots[twins.first] == 0 || !host.slots.count(twins.second);
  });
}

World::HostNames World::host_names() const {
  HostNames names;
  for (const Sleeper& sleeper : sleepers_) {
    for (const HostPageId page : sleeper.parked.view().pages()) ++names.pages[page.value()];
    if (geometry_.recurrent) ++names.slots[sleeper.parked.view().slot().value()];
  }
  for (const Entry& entry : parked_entries_) {
    for (const uint32_t page : entry.pages) ++names.pages[page];
    if (geometry_.recurrent) ++names.slots[entry.slot];
  }
  return names;
}

// What no handle names is worth nothing, every byte of it.
void World::scramble_host() {
  const HostNames names = host_names();
  std::vector<uint8_t> kept(host_memory_.size(), 0xEE);
  const auto keep = [&](uint64_t begin, uint64_t bytes) {
    require(begin + bytes <= kept.size(), "a place lies in host memory");
    std::copy_n(host_memory_.begin() + static_cast<std::ptrdiff_t>(begin), bytes,
                kept.begin() + static_cast<std::ptrdiff_t>(begin));
  };
  for (const auto& [page, holders] : names.pages)
    keep((page - 1) * geometry_.page_bytes, geometry_.page_bytes);
  for (const auto& [slot, holders] : names.slots)
    keep(geometry_.host_bytes - slot * geometry_.slot_bytes, geometry_.slot_bytes);
  host_memory_ = std::move(kept);
}

std::optional<Denied> World::host_denied(uint32_t len, Amount need) const {
  const uint64_t page = geometry_.page_bytes, slot = geometry_.recurrent ? geometry_.slot_bytes : 0;
  const uint64_t whole = pages_for(len) * page + slot;
  if (whole > geometry_.host_bytes)
    return Denied{Reason::exceeds_pool,
                  {static_cast<uint32_t>((whole - geometry_.host_bytes + page - 1) / page), 0}};
  const HostNames names = host_names();
  uint64_t middle = geometry_.host_bytes - edge(names.pages) * page - edge(names.slots) * slot;
  Amount missing{over(need.pages, edge(names.pages) - names.pages.size()),
                 over(need.slots, edge(names.slots) - names.slots.size())};
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

void World::verify_parked(const std::vector<uint32_t>& pages, uint32_t slot,
                          const Text& text) const {
  for (uint32_t i = 0; i < text.len(); ++i) {
    const uint64_t page = (pages[i / geometry_.page_tokens] - 1) * geometry_.page_bytes;
    require(host_cell(page + i % geometry_.page_tokens * sizeof(uint64_t)) == text.stamps[i],
            "a parked prefix reads what it wrote");
  }
  if (geometry_.recurrent)
    require(host_cell(geometry_.host_bytes - slot * geometry_.slot_bytes) == text.state,
            "a parked prefix holds the state of its end");
}

void World::verify_host() const {
  for (const Sleeper& sleeper : sleepers_) {
    require(sleeper.parked.len() == sleeper.text.len(), "a parked prefix keeps its length");
    verify_parked(numbers(sleeper.parked), sleeper.parked.view().slot().value(), sleeper.text);
  }
  for (const Entry& entry : parked_entries_) verify_parked(entry.pages, entry.slot, entry.text);
  const HostNames now = host_names();
  require(pool_.occupancy().host_pages == now.pages.size() &&
              pool_.occupancy().host_slots == now.slots.size(),
          "the host tier holds what handles name");
  require(tree_.parked_entries() == parked_entries_.size(), "the tree holds what was parked there");
}

// --- the tree's other tier --------------------------------------------------------------------

bool World::insert_parked() {
  if (sleepers_.empty()) return false;
  const uint32_t which = choose_.below(static_cast<uint32_t>(sleepers_.size()));
  Sleeper sleeper = std::move(sleepers_[which]);
  sleepers_.erase(sleepers_.begin() + which);
  const auto same =
      std::find_if(parked_entries_.begin(), parked_entries_.end(),
                   [&](const Entry& entry) { return entry.text.tokens == sleeper.text.tokens; });
  Entry entry{sleeper.text, numbers(sleeper.parked), sleeper.parked.view().slot().value(),
              ++parked_uses_};
  const bool fresh = tree_.insert(sleeper.text.tokens, std::move(sleeper.parked));
  require(fresh == (same == parked_entries_.end()), "a parked prefix is entered once");
  note("insert parked " + std::to_string(entry.text.len()));
  if (fresh)
    parked_entries_.push_back(std::move(entry));
  else
    same->last_hit = parked_uses_;
  return true;
}

bool World::lookup_any() {
  const Tokens tokens = prompt();
  uint32_t len = 0, parked_len = 0;
  const size_t resident = expected_hit(entries_, tokens, len);
  const size_t parked = expected_hit(parked_entries_, tokens, parked_len);
  const bool none = resident == entries_.size() && parked == parked_entries_.size();
  auto found = tree_.lookup_any(tokens);
  require(found.has_value() != none, "a usable prefix is found in either tier");
  if (none) return true;
  require(found->len == std::max(len, parked_len), "the longest of both tiers is found");
  require(std::holds_alternative<Parked>(found->held) == (parked_len > len),
          "at equal length the resident one is found");
  note("lookup any: " + std::to_string(found->len));
  Entry& entry = parked_len > len ? parked_entries_[parked] : entries_[resident];
  entry.last_hit = parked_len > len ? ++parked_uses_ : ++uses_;
  std::vector<uint32_t> pages = entry.pages;
  pages.resize(pages_for(found->len));
  const Text text = prefix(entry.text, found->len);
  if (auto* held = std::get_if<Parked>(&found->held)) {
    require(numbers(*held) == pages, "a hit is held where its entry sleeps");
    sleepers_.push_back({std::move(*held), text});
  } else {
    readers_.push_back({std::move(std::get<Checkpoint>(found->held)), text});
  }
  return true;
}

bool World::evict_to_park() {
  const size_t expected = victim(names(), {}, true);
  auto leaving = tree_.evict_to_park();
  require(leaving.has_value() == (expected < entries_.size()), "the same goes as by eviction");
  if (!leaving) return false;
  const Text text = entries_[expected].text;
  require(leaving->tokens == text.tokens, "what leaves comes with its tokens");
  entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(expected));
  note("leave " + std::to_string(text.len()));
  readers_.push_back({std::move(leaving->held), text});
  return true;
}

// The parked entry to go first among those whose going frees anything.
size_t World::parked_victim() const {
  const HostNames names = host_names();
  size_t first = parked_entries_.size();
  for (size_t i = 0; i < parked_entries_.size(); ++i) {
    const Entry& entry = parked_entries_[i];
    if (names.pages.at(entry.pages.back()) > 1 &&
        (!geometry_.recurrent || names.slots.at(entry.slot) > 1))
      continue;
    const auto order = [&](const Entry& e) {
      return std::pair(is_interior(parked_entries_, e), e.last_hit);
    };
    if (first == parked_entries_.size() || order(entry) < order(parked_entries_[first])) first = i;
  }
  return first;
}

bool World::evict_parked() {
  if (readers_.empty() || parked_entries_.empty()) return false;
  const Reader& reader = readers_[choose_.below(static_cast<uint32_t>(readers_.size()))];
  uint32_t count = 0;
  std::optional<Denied> still;
  for (;; ++count) {
    forget_twins();  // a page whose twin went needs a place again
    still = host_denied(reader.text.len(), parking_need(reader));
    const size_t next = parked_victim();
    if (!still || still->reason != Reason::busy || next == parked_entries_.size()) break;
    parked_entries_.erase(parked_entries_.begin() + static_cast<std::ptrdiff_t>(next));
  }
  const auto done = tree_.evict_parked(reader.checkpoint);
  require(done.entries == count, "parked entries go until there is room, and no more");
  require(done.enough == !still, "an eviction tells whether there is room");
  note("evict parked: " + std::to_string(count));
  return true;
}

}  // namespace kern_test
