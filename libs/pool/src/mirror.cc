#include "kern/pool/mirror.h"

#include <algorithm>
#include <utility>

#include "check.h"

namespace kern::pool {

namespace {

std::string at(uint64_t id, const std::string& place) {
  return "grant " + std::to_string(id) + ", " + place + ": ";
}

bool names_twice(std::vector<uint32_t> pages) {
  std::sort(pages.begin(), pages.end());
  return std::adjacent_find(pages.begin(), pages.end()) != pages.end();
}

// Why a place cannot be granted so; empty when it can.
std::string clash(const std::vector<uint32_t>& holders, uint32_t place, bool shared) {
  if (place == 0 || place >= holders.size())
    return "expected 1 to " + std::to_string(holders.size() - 1) + ", got " + std::to_string(place);
  const bool held = holders[place] > 0;
  if (shared && !held) return "expected one that is held, got " + std::to_string(place);
  if (!shared && held) return "expected a free one, got " + std::to_string(place);
  return "";
}

}  // namespace

GrantRecord record(uint64_t id, const Lease& lease, const Geometry& geometry) {
  const LeaseView view = lease.view();
  GrantRecord out{id, {}, view.writable_from() / geometry.page_tokens, view.slot().value(), false};
  for (const PageId page : view.pages()) out.pages.push_back(page.value());
  return out;
}

namespace {

// That of a checkpoint whose last `fresh_pages` pages nobody held before, and whose slot if
// `fresh`.
GrantRecord record_of(uint64_t id, const CheckpointView& view, size_t fresh_pages,
                      bool fresh_slot) {
  GrantRecord out{id, {}, 0, view.slot().value(), !fresh_slot && !view.slot().null()};
  for (const PageId page : view.pages()) out.pages.push_back(page.value());
  out.pages_shared = static_cast<uint32_t>(out.pages.size() - fresh_pages);
  return out;
}

}  // namespace

GrantRecord record(uint64_t id, const Checkpoint& checkpoint, const Copies& copies) {
  return record_of(id, checkpoint.view(), copies.page ? 1 : 0, copies.slot.has_value());
}

GrantRecord record(uint64_t id, const Woken& woken) {
  return record_of(id, woken.checkpoint.view(), woken.transfers.pages.size(),
                   woken.transfers.slot.has_value());
}

Mirror::Mirror(const Geometry& geometry) : geometry_(geometry) {
  KERN_POOL_ASSERT(refusal(geometry).empty(), "a pool is mirrored over its own geometry");
  page_holders_.resize(geometry.pages);
  slot_holders_.resize(geometry.recurrent ? geometry.slots : 1);
}

std::string Mirror::contradiction(const GrantRecord& record) const {
  if (records_.count(record.id) > 0)
    return at(record.id, "id") + "expected one not in use, got it a second time";
  const size_t pages = record.pages.size();
  if (pages < 1 || pages > geometry_.row_pages_max)
    return at(record.id, "pages") + "expected 1 to " + std::to_string(geometry_.row_pages_max) +
           ", got " + std::to_string(pages);
  if (record.pages_shared > pages)
    return at(record.id, "pages shared") + "expected at most " + std::to_string(pages) + ", got " +
           std::to_string(record.pages_shared);
  for (size_t i = 0; i < pages; ++i) {
    const auto why = clash(page_holders_, record.pages[i], i < record.pages_shared);
    if (!why.empty()) return at(record.id, "page " + std::to_string(i)) + why;
  }
  if (names_twice(record.pages)) return at(record.id, "pages") + "expected each once";
  if (!geometry_.recurrent) {
    if (record.slot == 0 && !record.slot_shared) return "";
    return at(record.id, "slot") + "expected none without recurrent state, got " +
           std::to_string(record.slot);
  }
  const auto why = clash(slot_holders_, record.slot, record.slot_shared);
  return why.empty() ? why : at(record.id, "slot") + why;
}

std::string Mirror::granted(const GrantRecord& record) {
  std::string why = contradiction(record);
  if (!why.empty()) return why;
  for (const uint32_t page : record.pages)
    if (page_holders_[page]++ == 0) ++held_.pages;
  if (record.slot != 0 && slot_holders_[record.slot]++ == 0) ++held_.slots;
  records_.emplace(record.id, record);
  return why;
}

std::string Mirror::returned(uint64_t id) {
  const auto found = records_.find(id);
  if (found == records_.end())
    return "return " + std::to_string(id) + ": expected a handle that was granted, got none";
  for (const uint32_t page : found->second.pages) {
    KERN_POOL_ASSERT(page_holders_[page] > 0, "a place is held while a record names it");
    if (--page_holders_[page] == 0) --held_.pages;
  }
  const uint32_t slot = found->second.slot;
  if (slot != 0 && --slot_holders_[slot] == 0) --held_.slots;
  records_.erase(found);
  return "";
}

const GrantRecord* Mirror::find(uint64_t id) const {
  const auto found = records_.find(id);
  return found == records_.end() ? nullptr : &found->second;
}

std::optional<Spot> Mirror::spot(uint64_t id, uint32_t position) const {
  const GrantRecord* const record = find(id);
  const uint32_t index = position / geometry_.page_tokens;
  if (record == nullptr || index >= record->pages.size()) return std::nullopt;
  return Spot{record->pages[index], position % geometry_.page_tokens};
}

}  // namespace kern::pool
