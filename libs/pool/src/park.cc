// The store's two tiers: what is the same for a prefix in either, and what moves between them.

#include <algorithm>
#include <utility>

#include "store.h"

namespace kern::pool {

// --- a prefix of either tier ------------------------------------------------------------------

template <class Tier>
Prefix<Tier> Store::share(const Prefix<Tier>& from, uint32_t len) {
  KERN_POOL_ASSERT(from.store_ == this, "a prefix is used with its own pool");
  KERN_POOL_ASSERT(from.usable_at(len), "a shorter handle ends where the longer one is usable");
  auto& chains = this->chains(Tier());
  const auto tail = chains.ancestor(from.tail_, pages_for(from.len_) - pages_for(len));
  chains.retain(tail);
  chains.retain(from.slot_);
  return Prefix<Tier>(this, tail, from.slot_, len);
}

template <class Tier>
Amount Store::sole_holder(const Prefix<Tier>& prefix) const {
  const auto& chains = this->chains(Tier());
  const bool slot = !prefix.slot_.null() && chains.line(prefix.slot_).refs == 1;
  return {chains.node(prefix.tail_).refs == 1 ? 1u : 0u, slot ? 1u : 0u};
}

template <class Tier>
Amount Store::without_twin(const Chains<Tier>& chains, typename Tier::Page tail,
                           typename Tier::Slot slot, typename Tier::Page& last) const {
  Amount without{0, !slot.null() && chains.line(slot).twin.null() ? 1u : 0u};
  for (last = tail; !last.null() && chains.node(last).twin.null(); last = chains.node(last).parent)
    ++without.pages;
  return without;
}

template Checkpoint Store::share(const Checkpoint&, uint32_t);
template Parked Store::share(const Parked&, uint32_t);
template Amount Store::sole_holder(const Checkpoint&) const;
template Amount Store::sole_holder(const Parked&) const;

// --- host places ------------------------------------------------------------------------------

HostPageId Store::take_host_page(HostPageId parent, PageId twin) {
  const HostPageId page(arena_.take_page() + 1);
  host_.reach(page.value() + 1, 0);
  KERN_POOL_ASSERT(host_.node(page).refs == 0, "a free host page has no holder");
  host_.node(page) = {parent, 1, twin};
  device_.node(twin).twin = page;
  ++occupancy_.host_pages;
  return page;
}

void Store::release(HostPageId tail) {
  host_.release(tail, [this](HostPageId page) {
    const PageId twin = std::exchange(host_.node(page).twin, PageId());
    if (!twin.null()) device_.node(twin).twin = HostPageId();
    arena_.give_page(page.value() - 1);
    --occupancy_.host_pages;
    ++version_;
  });
}

void Store::release(HostSlotId slot) {
  if (!host_.release(slot)) return;
  const SlotId twin = std::exchange(host_.line(slot).twin, SlotId());
  if (!twin.null()) device_.line(twin).twin = HostSlotId();
  arena_.give_slot(slot.value() - 1);
  --occupancy_.host_slots;
  ++version_;
}

void Store::drop(const Parked& parked) {
  release(parked.tail_);
  release(parked.slot_);
}

uint64_t Store::host_offset(HostPageId page) const {
  KERN_POOL_ASSERT(!page.null(), "only a granted place lies somewhere");
  return arena_.page_offset(page.value() - 1);
}

uint64_t Store::host_offset(HostSlotId slot) const {
  KERN_POOL_ASSERT(!slot.null(), "only a granted place lies somewhere");
  return arena_.slot_offset(slot.value() - 1);
}

// --- between the tiers ------------------------------------------------------------------------

std::optional<Denied> Store::refuse_parking(uint32_t len, Amount need) const {
  const Amount all{pages_for(len), geometry_.recurrent ? 1u : 0u};
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
  PageId last;
  return refuse_parking(checkpoint.len_,
                        without_twin(device_, checkpoint.tail_, checkpoint.slot_, last));
}

Outcome<Slept> Store::park(const Checkpoint& checkpoint, Transfers&& executed) {
  KERN_POOL_ASSERT(checkpoint.store_ == this, "a checkpoint is used with its own pool");
  PageId last;
  const Amount need = without_twin(device_, checkpoint.tail_, checkpoint.slot_, last);
  if (auto denied = refuse_parking(checkpoint.len_, need)) return *denied;

  Transfers transfers{std::move(executed.pages), std::nullopt};
  transfers.pages.assign(need.pages, {});
  PageId page = checkpoint.tail_;
  for (uint32_t i = need.pages; i > 0; --i, page = device_.node(page).parent)
    transfers.pages[i - 1].device = page;
  HostPageId tail = last.null() ? HostPageId() : device_.node(last).twin;
  host_.retain(tail);
  for (PageTransfer& transfer : transfers.pages) {
    tail = take_host_page(tail, transfer.device);
    transfer.host = tail;
  }
  HostSlotId slot;
  if (need.slots > 0) {
    slot = HostSlotId(arena_.take_slot() + 1);
    host_.reach(0, slot.value() + 1);
    host_.line(slot) = {1, checkpoint.slot_};
    device_.line(checkpoint.slot_).twin = slot;
    ++occupancy_.host_slots;
    transfers.slot = SlotTransfer{checkpoint.slot_, slot};
  } else if (!checkpoint.slot_.null()) {
    slot = device_.line(checkpoint.slot_).twin;
    host_.retain(slot);
  }
  ++version_;
  return Slept{Parked(this, tail, slot, checkpoint.len_), std::move(transfers)};
}

PageId Store::take_woken_page(PageId parent, HostPageId twin) {
  const PageId page = take_page();
  device_.node(page).parent = parent;
  device_.node(page).twin = twin;
  host_.node(twin).twin = page;
  ++occupancy_.pages_frozen;
  return page;
}

Outcome<Woken> Store::wake(const Parked& parked, uint32_t len, Transfers&& executed) {
  KERN_POOL_ASSERT(parked.store_ == this, "a parked prefix is used with its own pool");
  KERN_POOL_ASSERT(parked.usable_at(len), "a parked prefix is woken where it is usable");
  const HostPageId end = host_.ancestor(parked.tail_, pages_for(parked.len_) - pages_for(len));
  HostPageId last;
  const Amount need = without_twin(host_, end, parked.slot_, last);
  if (auto denied = refuse(pages_for(len), {}, need)) return *denied;

  Transfers transfers{std::move(executed.pages), std::nullopt};
  transfers.pages.assign(need.pages, {});
  HostPageId page = end;
  for (uint32_t i = need.pages; i > 0; --i, page = host_.node(page).parent)
    transfers.pages[i - 1].host = page;
  PageId tail = last.null() ? PageId() : host_.node(last).twin;
  device_.retain(tail);
  for (PageTransfer& transfer : transfers.pages) {
    tail = take_woken_page(tail, transfer.host);
    transfer.device = tail;
  }
  SlotId slot;
  if (need.slots > 0) {
    slot = take_slot();
    ++occupancy_.slots_frozen;
    device_.line(slot).twin = parked.slot_;
    host_.line(parked.slot_).twin = slot;
    transfers.slot = SlotTransfer{slot, parked.slot_};
  } else if (!parked.slot_.null()) {
    slot = host_.line(parked.slot_).twin;
    device_.retain(slot);
  }
  ++version_;
  return Woken{Checkpoint(this, tail, slot, len), std::move(transfers)};
}

}  // namespace kern::pool
