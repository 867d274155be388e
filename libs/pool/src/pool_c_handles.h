#pragma once
// What the C handles are. A handle is taken before its operation, so that nothing granted is lost
// for want of memory, and those given back are handed out again.

#include <cstddef>
#include <memory>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "kern/pool/pool.h"
#include "kern/pool/pool_c.h"
#include "kern/pool/prefix.h"

namespace kern::pool::c {

// A handle holds something exactly while it is out.
template <class Held>
struct Handle {
  kern_pool* owner = nullptr;
  std::optional<Held> held;
  void clear() { held.reset(); }
};

template <class Kind>
class Spares {
 public:
  std::unique_ptr<Kind> take() {
    if (kept_.empty()) {
      if (kept_.capacity() <= made_) kept_.reserve(2 * made_ + 1);  // `keep` allocates nothing
      auto fresh = std::make_unique<Kind>();
      ++made_;
      return fresh;
    }
    auto again = std::move(kept_.back());
    kept_.pop_back();
    return again;
  }
  void keep(std::unique_ptr<Kind> handle) noexcept { kept_.push_back(std::move(handle)); }

 private:
  std::vector<std::unique_ptr<Kind>> kept_;
  size_t made_ = 0;
};

}  // namespace kern::pool::c

struct kern_pool_lease : kern::pool::c::Handle<kern::pool::Lease> {};
struct kern_pool_checkpoint : kern::pool::c::Handle<kern::pool::Checkpoint> {};
struct kern_pool_parked : kern::pool::c::Handle<kern::pool::Parked> {};
struct kern_pool_transfers {
  kern_pool* owner = nullptr;
  std::optional<kern::pool::Transfers> held;
  kern::pool::Transfers memory;  // for the next plan
  std::vector<kern_pool_transfer> list;
  void clear() {
    if (held) memory = *std::move(held);
    held.reset();
  }
};

struct kern_pool {
  explicit kern_pool(const kern::pool::Geometry& geometry) : pool(geometry) {}
  kern::pool::c::Spares<kern_pool_lease>& spares(const kern_pool_lease&) { return leases; }
  kern::pool::c::Spares<kern_pool_checkpoint>& spares(const kern_pool_checkpoint&) {
    return checkpoints;
  }
  kern::pool::c::Spares<kern_pool_parked>& spares(const kern_pool_parked&) { return parked; }
  kern::pool::c::Spares<kern_pool_transfers>& spares(const kern_pool_transfers&) { return plans; }

  kern::pool::Pool pool;
  size_t handles = 0;  // and plans and trees that are out
  kern::pool::c::Spares<kern_pool_lease> leases;
  kern::pool::c::Spares<kern_pool_checkpoint> checkpoints;
  kern::pool::c::Spares<kern_pool_parked> parked;
  kern::pool::c::Spares<kern_pool_transfers> plans;
  mutable std::vector<kern::pool::PageId> pages;           // scratch
  mutable std::vector<kern::pool::HostPageId> host_pages;  // scratch
};

namespace kern::pool::c {

// The one place where an exception ends: the standard library's, for want of memory.
template <class Body>
kern_pool_status guarded(Body&& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return KERN_POOL_NO_MEMORY;
  }
}

template <class Kind>
bool live(const Kind* handle) {
  return handle != nullptr && handle->held.has_value();
}

// What is not handed out goes back among the spares.
struct Keep {
  template <class Kind>
  void operator()(Kind* handle) const noexcept {
    handle->clear();
    handle->owner->spares(*handle).keep(std::unique_ptr<Kind>(handle));
  }
};
template <class Kind>
using Taken = std::unique_ptr<Kind, Keep>;

template <class Kind>
Taken<Kind> taken(kern_pool* owner) {
  auto handle = owner->spares(Kind()).take();
  handle->owner = owner;
  return Taken<Kind>(handle.release());
}

template <class Kind, class Held>
void hand_out(Taken<Kind> handle, Held held, Kind** out) {
  handle->held.emplace(std::move(held));
  ++handle->owner->handles;
  *out = handle.release();
}

template <class Kind>
void give_back(Kind* handle) {
  if (!live(handle)) return;
  --handle->owner->handles;
  const Taken<Kind> gone(handle);
}

}  // namespace kern::pool::c
