// The store's other tier. A host page is a node like a device page: `parent` is the page before it,
// refs counts the nodes whose parent it is and the parked prefixes whose tail it is. If a page has
// a twin, so have all before it: both chains hold theirs.

#include <algorithm>
#include <utility>

#include "store.h"

namespace kern::pool {

HostPageId Store::take_host_page(HostPageId parent, PageId twin) {
  const HostPageId page(arena_.take_page() + 1);
  if (host_nodes_.size() <= page.value()) host_nodes_.resize(page.value() + 1);
  KERN_POOL_ASSERT(host_node(page).refs == 0, "a free host page has no holder");
  host_node(page) = HostNode{parent, twin, 1};
  node(twin).twin = page;
  ++occupancy_.host_pages;
  return page;
}

void Store::retain(HostPageId tail) {
  if (tail.null()) return;
  KERN_POOL_ASSERT(host_node(tail).refs > 0, "only a live node is shared");
  ++host_node(tail).refs;
}

void Store::release(HostPageId tail) {
  while (!tail.null()) {
    HostNode& last = host_node(tail);
    KERN_POOL_ASSERT(last.refs > 0, "a node is released by a holder");
    if (--last.refs > 0) return;
    if (!last.twin.null()) node(last.twin).twin = HostPageId();
    last.twin = PageId();
    arena_.give_page(tail.value() - 1);
    --occupancy_.host_pages;
    tail = std::exchange(last.parent, HostPageId());
  }
}

void Store::release(HostSlotId slot) {
  if (slot.null()) return;
  HostSlot& held = host_slots_[slot.value()];
  KERN_POOL_ASSERT(held.refs > 0, "a slot is released by a holder");
  if (--held.refs > 0) return;
  if (!held.twin.null()) slot_twins_[held.twin.value()] = HostSlotId();
  held.twin = SlotId();
  arena_.give_slot(slot.value() - 1);
  --occupancy_.host_slots;
}

HostPageId Store::host_ancestor(HostPageId tail, uint32_t steps) const {
  for (; steps > 0; --steps) tail = host_node(tail).parent;
  return tail;
}

// --- between the tiers ------------------------------------------------------------------------

std::optional<Denied> Store::refuse_parking(const Checkpoint& checkpoint, Amount need) const {
  const Amount all{pages_for(checkpoint.len_), geometry_.recurrent ? 1u : 0u};
  if (geometry_.host_bytes == 0) return Denied{Reason::exceeds_pool, all};
  if (const uint64_t excess = arena_.excess(all); excess > 0) {
    const uint64_t pages = (excess - 1) / geometry_.page_bytes + 1;
    return Denied{Reason::exceeds_pool, {static_cast<uint32_t>(pages), 0}};
  }
  if (const Amount missing = arena_.missing(need); missing != Amount{})
    return Denied{Reason::busy, missing};
  return std::nullopt;
}

std::optional<Denied> Store::parking_denied(const Checkpoint& checkpoint) const {
  KERN_POOL_ASSERT(checkpoint.store_ == this, "a checkpoint is used with its own pool");
  const SlotId slot = checkpoint.slot_;
  Amount need{0, !slot.null() && slot_twins_[slot.value()].null() ? 1u : 0u};
  for (PageId page = checkpoint.tail_; !page.null() && node(page).twin.null();
       page = node(page).parent)
    ++need.pages;
  return refuse_parking(checkpoint, need);
}

Outcome<Slept> Store::park(const Checkpoint& checkpoint) {
  KERN_POOL_ASSERT(checkpoint.store_ == this, "a checkpoint is used with its own pool");
  Transfers transfers;
  PageId page = checkpoint.tail_;
  for (; !page.null() && node(page).twin.null(); page = node(page).parent)
    transfers.pages.push_back({page, HostPageId()});
  HostSlotId slot;
  if (!checkpoint.slot_.null()) slot = slot_twins_[checkpoint.slot_.value()];
  const Amount need{static_cast<uint32_t>(transfers.pages.size()),
                    geometry_.recurrent && slot.null() ? 1u : 0u};
  if (auto denied = refuse_parking(checkpoint, need)) return *denied;

  std::reverse(transfers.pages.begin(), transfers.pages.end());
  HostPageId tail = page.null() ? HostPageId() : node(page).twin;
  retain(tail);
  for (PageTransfer& transfer : transfers.pages) {
    tail = take_host_page(tail, transfer.device);
    transfer.host = tail;
  }
  if (need.slots > 0) {
    slot = HostSlotId(arena_.take_slot() + 1);
    if (host_slots_.size() <= slot.value()) host_slots_.resize(slot.value() + 1);
    host_slots_[slot.value()] = HostSlot{checkpoint.slot_, 1};
    slot_twins_[checkpoint.slot_.value()] = slot;
    ++occupancy_.host_slots;
    transfers.slot = SlotTransfer{checkpoint.slot_, slot};
  } else if (!slot.null()) {
    ++host_slots_[slot.value()].refs;
  }
  return Slept{Parked(this, tail, slot, checkpoint.len_), std::move(transfers)};
}

Outcome<Woken> Store::wake(const Parked& parked, uint32_t len) {
  KERN_POOL_ASSERT(parked.store_ == this, "a parked prefix is used with its own pool");
  KERN_POOL_ASSERT(parked.usable_at(len), "a parked prefix is woken where it is usable");
  Transfers transfers;
  HostPageId page = host_ancestor(parked.tail_, pages_for(parked.len_) - pages_for(len));
  for (; !page.null() && host_node(page).twin.null(); page = host_node(page).parent)
    transfers.pages.push_back({PageId(), page});
  SlotId slot;
  if (!parked.slot_.null()) slot = host_slots_[parked.slot_.value()].twin;
  const Amount need{static_cast<uint32_t>(transfers.pages.size()),
                    geometry_.recurrent && slot.null() ? 1u : 0u};
  if (auto denied = refuse(pages_for(len), {}, need)) return *denied;

  std::reverse(transfers.pages.begin(), transfers.pages.end());
  PageId tail = page.null() ? PageId() : host_node(page).twin;
  retain(tail);
  for (PageTransfer& transfer : transfers.pages) {
    transfer.device = take_page();
    node(transfer.device).parent = tail;
    node(transfer.device).twin = transfer.host;
    host_node(transfer.host).twin = transfer.device;
    tail = transfer.device;
  }
  occupancy_.pages_frozen += need.pages;
  if (need.slots > 0) {
    slot = take_slot();
    ++occupancy_.slots_frozen;
    slot_twins_[slot.value()] = parked.slot_;
    host_slots_[parked.slot_.value()].twin = slot;
    transfers.slot = SlotTransfer{slot, parked.slot_};
  } else if (!slot.null()) {
    ++slot_refs_[slot.value()];
  }
  return Woken{Checkpoint(this, tail, slot, len), std::move(transfers)};
}

Parked Store::share(const Parked& from, uint32_t len) {
  KERN_POOL_ASSERT(from.store_ == this, "a parked prefix is used with its own pool");
  KERN_POOL_ASSERT(from.usable_at(len), "a shorter handle ends where the longer one is usable");
  const HostPageId tail = host_ancestor(from.tail_, pages_for(from.len_) - pages_for(len));
  retain(tail);
  if (!from.slot_.null()) ++host_slots_[from.slot_.value()].refs;
  return Parked(this, tail, from.slot_, len);
}

void Store::drop(const Parked& parked) {
  release(parked.tail_);
  release(parked.slot_);
}

std::vector<HostPageId> Store::pages(const Parked& parked) const {
  std::vector<HostPageId> pages(pages_for(parked.len_));
  HostPageId page = parked.tail_;
  for (size_t i = pages.size(); i > 0; --i, page = host_node(page).parent) pages[i - 1] = page;
  KERN_POOL_ASSERT(page.null(), "a parked chain is as long as its pages");
  return pages;
}

Amount Store::sole_holder(const Parked& parked) const {
  const HostSlotId slot = parked.slot_;
  return {host_node(parked.tail_).refs == 1 ? 1u : 0u,
          !slot.null() && host_slots_[slot.value()].refs == 1 ? 1u : 0u};
}

uint64_t Store::host_offset(HostPageId page) const {
  KERN_POOL_ASSERT(!page.null(), "only a granted place lies somewhere");
  return arena_.page_offset(page.value() - 1);
}

uint64_t Store::host_offset(HostSlotId slot) const {
  KERN_POOL_ASSERT(!slot.null(), "only a granted place lies somewhere");
  return arena_.slot_offset(slot.value() - 1);
}

// --- the handle -------------------------------------------------------------------------------

Parked::Parked(Parked&& other) noexcept
    : store_(std::exchange(other.store_, nullptr)),
      tail_(other.tail_),
      slot_(other.slot_),
      len_(other.len_) {}

Parked& Parked::operator=(Parked&& other) noexcept {
  if (this == &other) return *this;
  if (store_ != nullptr) store_->drop(*this);
  store_ = std::exchange(other.store_, nullptr);
  tail_ = other.tail_;
  slot_ = other.slot_;
  len_ = other.len_;
  return *this;
}

Parked::~Parked() {
  if (store_ != nullptr) store_->drop(*this);
}

std::vector<HostPageId> Parked::pages() const {
  KERN_POOL_ASSERT(store_ != nullptr, "a moved-from parked prefix has no pages");
  return store_->pages(*this);
}

Parked Parked::share() const {
  KERN_POOL_ASSERT(store_ != nullptr, "a moved-from parked prefix is not shared");
  return store_->share(*this, len_);
}

bool Parked::usable_at(uint32_t len) const {
  KERN_POOL_ASSERT(store_ != nullptr, "a moved-from parked prefix is not usable");
  if (len == len_) return true;
  return slot_.null() && len > 0 && len < len_ && len % store_->geometry().page_tokens == 0;
}

Amount Parked::sole_holder() const {
  KERN_POOL_ASSERT(store_ != nullptr, "a moved-from parked prefix holds nothing");
  return store_->sole_holder(*this);
}

}  // namespace kern::pool
