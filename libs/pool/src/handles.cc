// The handles and their views: both only name what the store keeps.

#include <utility>

#include "store.h"

namespace kern::pool {

// --- leases -----------------------------------------------------------------------------------

Lease::Lease(Lease&& other) noexcept
    : store_(std::exchange(other.store_, nullptr)), record_(other.record_) {}

Lease& Lease::operator=(Lease&& other) noexcept {
  if (this == &other) return *this;
  if (store_ != nullptr) store_->drop(record_);
  store_ = std::exchange(other.store_, nullptr);
  record_ = other.record_;
  return *this;
}

Lease::~Lease() {
  if (store_ != nullptr) store_->drop(record_);
}

LeaseView Lease::view() const {
  KERN_POOL_ASSERT(store_ != nullptr, "a moved-from lease names nothing");
  return LeaseView(*store_, record_);
}

uint32_t Lease::capacity() const {
  return view().capacity();
}

uint32_t Lease::writable_from() const {
  return view().writable_from();
}

LeaseView::LeaseView(const Store& store, uint32_t record)
    : store_(&store), version_(store.version()), record_(record) {}

bool LeaseView::current() const {
  return store_->version() == version_;
}

std::span<const PageId> LeaseView::pages() const {
  KERN_POOL_ASSERT(current(), "a view is read before its pool changes");
  return store_->table(record_);
}

SlotId LeaseView::slot() const {
  KERN_POOL_ASSERT(current(), "a view is read before its pool changes");
  return store_->slot(record_);
}

uint32_t LeaseView::capacity() const {
  return static_cast<uint32_t>(pages().size()) * store_->geometry().page_tokens;
}

uint32_t LeaseView::writable_from() const {
  KERN_POOL_ASSERT(current(), "a view is read before its pool changes");
  return store_->frozen(record_) * store_->geometry().page_tokens;
}

// --- prefixes ---------------------------------------------------------------------------------

template <class Tier>
Prefix<Tier>::Prefix(Prefix&& other) noexcept
    : store_(std::exchange(other.store_, nullptr)),
      tail_(other.tail_),
      slot_(other.slot_),
      len_(other.len_) {}

template <class Tier>
Prefix<Tier>& Prefix<Tier>::operator=(Prefix&& other) noexcept {
  if (this == &other) return *this;
  if (store_ != nullptr) store_->drop(*this);
  store_ = std::exchange(other.store_, nullptr);
  tail_ = other.tail_;
  slot_ = other.slot_;
  len_ = other.len_;
  return *this;
}

template <class Tier>
Prefix<Tier>::~Prefix() {
  if (store_ != nullptr) store_->drop(*this);
}

template <class Tier>
PrefixView<Tier> Prefix<Tier>::view() const {
  KERN_POOL_ASSERT(store_ != nullptr, "a moved-from prefix names nothing");
  return PrefixView<Tier>(*store_, tail_, slot_, len_);
}

template <class Tier>
Prefix<Tier> Prefix<Tier>::share() const {
  KERN_POOL_ASSERT(store_ != nullptr, "a moved-from prefix is not shared");
  return store_->share(*this, len_);
}

template <class Tier>
bool Prefix<Tier>::usable_at(uint32_t len) const {
  KERN_POOL_ASSERT(store_ != nullptr, "a moved-from prefix is not usable");
  if (len == len_) return true;
  return slot_.null() && len > 0 && len < len_ && len % store_->geometry().page_tokens == 0;
}

template <class Tier>
Amount Prefix<Tier>::sole_holder() const {
  KERN_POOL_ASSERT(store_ != nullptr, "a moved-from prefix holds nothing");
  return store_->sole_holder(*this);
}

template <class Tier>
PrefixView<Tier>::PrefixView(const Store& store, Page tail, Slot slot, uint32_t len)
    : store_(&store), version_(store.version()), tail_(tail), slot_(slot), len_(len) {}

template <class Tier>
bool PrefixView<Tier>::current() const {
  return store_->version() == version_;
}

template <class Tier>
uint32_t PrefixView<Tier>::len() const {
  KERN_POOL_ASSERT(current(), "a view is read before its pool changes");
  return len_;
}

template <class Tier>
typename Tier::Slot PrefixView<Tier>::slot() const {
  KERN_POOL_ASSERT(current(), "a view is read before its pool changes");
  return slot_;
}

template <class Tier>
uint32_t PrefixView<Tier>::page_count() const {
  return store_->pages_for(len());
}

template <class Tier>
void PrefixView<Tier>::pages_into(std::span<Page> out) const {
  KERN_POOL_ASSERT(out.size() == page_count(), "a view's pages are read as many as there are");
  store_->list(tail_, out);
}

template <class Tier>
std::vector<typename Tier::Page> PrefixView<Tier>::pages() const {
  std::vector<Page> pages(page_count());
  pages_into(pages);
  return pages;
}

template class Prefix<DeviceTier>;
template class Prefix<HostTier>;
template class PrefixView<DeviceTier>;
template class PrefixView<HostTier>;

}  // namespace kern::pool
