#include "store.h"

#include <algorithm>
#include <utility>

namespace kern::pool {

Store::Store(const Geometry& geometry)
    : geometry_(geometry),
      arena_(geometry.host_bytes, geometry.page_bytes,
             geometry.recurrent ? geometry.slot_bytes : 0) {
  KERN_POOL_ASSERT(refusal(geometry).empty(), "a pool is laid over a geometry without a refusal");
  device_.reach(geometry.pages, geometry.recurrent ? geometry.slots : 0);
  free_pages_.reserve(geometry.pages - 1);
  for (uint32_t page = geometry.pages - 1; page >= 1; --page) free_pages_.push_back(PageId(page));
  occupancy_.pages_free = geometry.pages - 1;
  if (!geometry.recurrent) return;
  free_slots_.reserve(geometry.slots - 1);
  for (uint32_t slot = geometry.slots - 1; slot >= 1; --slot) free_slots_.push_back(SlotId(slot));
  occupancy_.slots_free = geometry.slots - 1;
}

Store::~Store() {
  KERN_POOL_ASSERT(arena_.live() == Amount{}, "handles go before their pool");
  KERN_POOL_ASSERT(free_pages_.size() == geometry_.pages - 1, "handles go before their pool");
  KERN_POOL_ASSERT(!geometry_.recurrent || free_slots_.size() == geometry_.slots - 1,
                   "handles go before their pool");
}

uint32_t Store::pages_for(uint32_t tokens) const {
  return tokens / geometry_.page_tokens + (tokens % geometry_.page_tokens != 0);
}

// --- places -----------------------------------------------------------------------------------

PageId Store::take_page() {
  KERN_POOL_ASSERT(!free_pages_.empty(), "room was checked before a page is taken");
  const PageId page = free_pages_.back();
  free_pages_.pop_back();
  KERN_POOL_ASSERT(device_.node(page).refs == 0, "a free page has no holder");
  device_.node(page) = {PageId(), 1, HostPageId()};
  --occupancy_.pages_free;
  return page;
}

SlotId Store::take_slot() {
  KERN_POOL_ASSERT(!free_slots_.empty(), "room was checked before a slot is taken");
  const SlotId slot = free_slots_.back();
  free_slots_.pop_back();
  KERN_POOL_ASSERT(device_.line(slot).refs == 0, "a free slot has no holder");
  device_.line(slot) = {1, HostSlotId()};
  --occupancy_.slots_free;
  return slot;
}

void Store::free_page(PageId page) {
  auto& node = device_.node(page);
  KERN_POOL_ASSERT(!page.null() && node.refs == 0, "only a page without a holder is freed");
  node.parent = PageId();
  const HostPageId twin = std::exchange(node.twin, HostPageId());
  if (!twin.null()) host_.node(twin).twin = PageId();
  free_pages_.push_back(page);
  ++occupancy_.pages_free;
}

void Store::release(PageId tail) {
  device_.release(tail, [this](PageId page) {
    --occupancy_.pages_frozen;
    free_page(page);
    ++version_;
  });
}

void Store::release(SlotId slot) {
  if (!device_.release(slot)) return;
  const HostSlotId twin = std::exchange(device_.line(slot).twin, HostSlotId());
  if (!twin.null()) host_.line(twin).twin = SlotId();
  free_slots_.push_back(slot);
  ++occupancy_.slots_free;
  --occupancy_.slots_frozen;
  ++version_;
}

// --- leases -----------------------------------------------------------------------------------

Store::Record& Store::open_record(uint32_t& index) {
  if (free_records_.empty()) {
    index = static_cast<uint32_t>(records_.size());
    Record& record = records_.emplace_back();
    if (free_records_.capacity() < records_.size()) free_records_.reserve(2 * records_.size());
    return record;
  }
  index = free_records_.back();
  free_records_.pop_back();
  KERN_POOL_ASSERT(records_[index].table.empty(), "a closed lease has no pages");
  return records_[index];
}

void Store::close_record(uint32_t index) {
  records_[index].table.clear();
  records_[index].frozen = 0;
  records_[index].slot = SlotId();
  free_records_.push_back(index);
  ++version_;
}

std::optional<Denied> Store::refuse(uint32_t row_pages, Amount beside, Amount need) const {
  if (row_pages > geometry_.row_pages_max)
    return Denied{Reason::exceeds_row, {row_pages - geometry_.row_pages_max, 0}};
  const auto beyond = [](uint64_t wanted, uint64_t there) {
    return static_cast<uint32_t>(wanted > there ? wanted - there : 0);
  };
  const uint32_t slots = geometry_.recurrent ? geometry_.slots - 1 : 0;
  const Amount never{beyond(uint64_t{beside.pages} + need.pages, geometry_.pages - 1),
                     beyond(uint64_t{beside.slots} + need.slots, slots)};
  if (never != Amount{}) return Denied{Reason::exceeds_pool, never};
  const Amount now{beyond(need.pages, occupancy_.pages_free),
                   beyond(need.slots, occupancy_.slots_free)};
  if (now != Amount{}) return Denied{Reason::busy, now};
  return std::nullopt;
}

Outcome<Lease> Store::lease(uint32_t tokens) {
  KERN_POOL_ASSERT(tokens > 0, "a lease has at least one position");
  const Amount need{pages_for(tokens), geometry_.recurrent ? 1u : 0u};
  if (auto denied = refuse(need.pages, {}, need)) return *denied;
  uint32_t index = 0;
  Record& record = open_record(index);
  record.table.reserve(need.pages);
  for (uint32_t i = 0; i < need.pages; ++i) record.table.push_back(take_page());
  occupancy_.pages_leased += need.pages;
  if (geometry_.recurrent) {
    record.slot = take_slot();
    ++occupancy_.slots_leased;
  }
  ++version_;
  return Lease(this, index);
}

void Store::drop(uint32_t index) {
  Record& record = records_[index];
  KERN_POOL_ASSERT(!record.table.empty(), "a lease is given back once");
  while (record.table.size() > record.frozen) {
    const PageId page = record.table.back();
    record.table.pop_back();
    KERN_POOL_ASSERT(device_.node(page).refs == 1, "a writable page has one holder");
    device_.node(page).refs = 0;
    --occupancy_.pages_leased;
    free_page(page);
  }
  if (record.frozen > 0) release(record.table[record.frozen - 1]);
  if (!record.slot.null()) {
    KERN_POOL_ASSERT(device_.line(record.slot).refs == 1, "a lease's slot has one holder");
    --occupancy_.slots_leased;
    ++occupancy_.slots_frozen;
    release(record.slot);
  }
  close_record(index);
}

// --- prefixes ---------------------------------------------------------------------------------

// The lease's count on a page becomes that of the node behind it; the last one keeps the lease's.
void Store::freeze(Record& record, uint32_t pages) {
  KERN_POOL_ASSERT(pages <= record.table.size(), "a lease freezes pages it has");
  for (uint32_t i = record.frozen; i < pages; ++i) {
    KERN_POOL_ASSERT(device_.node(record.table[i]).refs == 1, "a writable page has one holder");
    device_.node(record.table[i]).parent = i == 0 ? PageId() : record.table[i - 1];
  }
  if (pages <= record.frozen) return;
  occupancy_.pages_leased -= pages - record.frozen;
  occupancy_.pages_frozen += pages - record.frozen;
  record.frozen = pages;
  ++version_;
}

Outcome<Frozen> Store::checkpoint(Lease& lease, uint32_t len) {
  KERN_POOL_ASSERT(lease.store_ == this, "a lease is used with its own pool");
  Record& record = records_[lease.record_];
  const uint32_t whole = len / geometry_.page_tokens;
  const uint32_t pages = pages_for(len);
  KERN_POOL_ASSERT(len > 0 && pages <= record.table.size(), "a checkpoint lies within its lease");
  // A page frozen already is never written again, so a prefix may end inside it in place.
  const bool partial = pages > whole && pages > record.frozen;
  const Amount need{partial ? 1u : 0u, geometry_.recurrent ? 1u : 0u};
  const Amount beside{static_cast<uint32_t>(record.table.size()), need.slots};
  if (auto denied = refuse(pages, beside, need)) return *denied;

  Copies copies;
  freeze(record, whole);
  PageId tail = record.table[pages - 1];
  if (partial) {
    copies.page = PageCopy{tail, take_page()};
    tail = copies.page->to;
    device_.node(tail).parent = whole == 0 ? PageId() : record.table[whole - 1];
    ++occupancy_.pages_frozen;
    device_.retain(device_.node(tail).parent);
  } else {
    device_.retain(tail);
  }
  SlotId slot;
  if (geometry_.recurrent) {
    slot = take_slot();
    ++occupancy_.slots_frozen;
    copies.slot = SlotCopy{record.slot, slot};
  }
  ++version_;
  return Frozen{Checkpoint(this, tail, slot, len), copies};
}

Checkpoint Store::retire(Lease lease, uint32_t len) {
  KERN_POOL_ASSERT(lease.store_ == this, "a lease is used with its own pool");
  Record& record = records_[lease.record_];
  const uint32_t pages = pages_for(len);
  KERN_POOL_ASSERT(len > 0 && pages <= record.table.size(), "a checkpoint lies within its lease");
  freeze(record, pages);
  const PageId tail = record.table[pages - 1];
  device_.retain(tail);
  const SlotId slot = std::exchange(record.slot, SlotId());
  if (!slot.null()) {
    --occupancy_.slots_leased;
    ++occupancy_.slots_frozen;
  }
  return Checkpoint(this, tail, slot, len);  // the lease goes, with what lies behind
}

Outcome<Restored> Store::restore(const Checkpoint& checkpoint, uint32_t len, uint32_t tokens) {
  KERN_POOL_ASSERT(checkpoint.store_ == this, "a checkpoint is used with its own pool");
  KERN_POOL_ASSERT(checkpoint.usable_at(len), "a restore begins where its checkpoint is usable");
  KERN_POOL_ASSERT(len <= tokens, "a restored lease reaches at least its prefix");
  const uint32_t held = pages_for(checkpoint.len());
  const uint32_t shared = len / geometry_.page_tokens;
  const uint32_t touched = pages_for(len);
  const uint32_t total = pages_for(tokens);
  const Amount need{total - shared, geometry_.recurrent ? 1u : 0u};
  if (auto denied = refuse(total, {held, need.slots}, need)) return *denied;

  PageId tail = device_.ancestor(checkpoint.tail_, held - touched);
  Copies copies;
  if (touched > shared) {
    copies.page = PageCopy{tail, PageId()};
    tail = device_.node(tail).parent;
  }
  if (geometry_.recurrent) copies.slot = SlotCopy{checkpoint.slot_, SlotId()};
  Lease lease = lease_behind(tail, shared, total, copies);
  return Restored{std::move(lease), copies};
}

Outcome<Restored> Store::fork(Lease& lease, uint32_t len, uint32_t tokens) {
  KERN_POOL_ASSERT(lease.store_ == this, "a lease is used with its own pool");
  KERN_POOL_ASSERT(len > 0 && len <= tokens, "a fork reaches at least its prefix");
  Record& forked = records_[lease.record_];
  const uint32_t held = static_cast<uint32_t>(forked.table.size());
  const uint32_t shared = len / geometry_.page_tokens;
  const uint32_t total = pages_for(tokens);
  KERN_POOL_ASSERT(pages_for(len) <= held, "a fork begins within its lease");
  const Amount need{total - shared, geometry_.recurrent ? 1u : 0u};
  if (auto denied = refuse(total, {held, need.slots}, need)) return *denied;

  freeze(forked, shared);
  Copies copies;
  if (pages_for(len) > shared) copies.page = PageCopy{forked.table[shared], PageId()};
  if (geometry_.recurrent) copies.slot = SlotCopy{forked.slot, SlotId()};
  const PageId tail = shared > 0 ? forked.table[shared - 1] : PageId();
  Lease made = lease_behind(tail, shared, total, copies);
  return Restored{std::move(made), copies};
}

Lease Store::lease_behind(PageId tail, uint32_t shared, uint32_t total, Copies& copies) {
  uint32_t index = 0;
  Record& record = open_record(index);
  record.table.resize(total);
  device_.retain(tail);
  for (uint32_t i = shared; i > 0; --i, tail = device_.node(tail).parent)
    record.table[i - 1] = tail;
  KERN_POOL_ASSERT(tail.null(), "a chain is as long as its pages");
  for (uint32_t i = shared; i < total; ++i) record.table[i] = take_page();
  record.frozen = shared;
  occupancy_.pages_leased += total - shared;
  if (copies.page) copies.page->to = record.table[shared];
  if (geometry_.recurrent) {
    record.slot = take_slot();
    ++occupancy_.slots_leased;
    copies.slot->to = record.slot;
  }
  ++version_;
  return Lease(this, index);
}

void Store::drop(const Checkpoint& checkpoint) {
  release(checkpoint.tail_);
  release(checkpoint.slot_);
}

}  // namespace kern::pool
