#include "kern/pool/pool_c.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "pool_c_handles.h"

namespace pool = kern::pool;

using kern::pool::c::give_back;
using kern::pool::c::guarded;
using kern::pool::c::hand_out;
using kern::pool::c::live;
using kern::pool::c::taken;

namespace {

kern_pool_status refused(const pool::Denied& denied, kern_pool_amount* missing) {
  if (missing != nullptr) *missing = {denied.missing.pages, denied.missing.slots};
  switch (denied.reason) {
    case pool::Reason::busy:
      return KERN_POOL_BUSY;
    case pool::Reason::exceeds_pool:
      return KERN_POOL_EXCEEDS_POOL;
    case pool::Reason::exceeds_row:
      return KERN_POOL_EXCEEDS_ROW;
  }
  return KERN_POOL_INVALID;
}

kern_pool_copies plain(const pool::Copies& copies) {
  kern_pool_copies out{};
  if (copies.page) {
    out.page_from = copies.page->from.value();
    out.page_to = copies.page->to.value();
  }
  if (copies.slot) {
    out.slot_from = copies.slot->from.value();
    out.slot_to = copies.slot->to.value();
  }
  return out;
}

// Hands a plan out as a list.
void hand_out_plan(const pool::Pool& in, kern::pool::c::Taken<kern_pool_transfers> handle,
                   pool::Transfers plan, kern_pool_transfers** out) {
  handle->list.clear();
  for (const pool::PageTransfer& page : plan.pages)
    handle->list.push_back({in.host_offset(page.host), page.device.value(), 0});
  if (plan.slot)
    handle->list.push_back({in.host_offset(plan.slot->host), plan.slot->device.value(), 1});
  hand_out(std::move(handle), std::move(plan), out);
}

bool within(const kern_pool_lease* lease, uint32_t len) {
  return len > 0 && len <= lease->held->capacity();
}

}  // namespace

const char* kern_pool_status_text(kern_pool_status status) {
  switch (status) {
    case KERN_POOL_OK:
      return "granted";
    case KERN_POOL_BUSY:
      return "the pool is busy";
    case KERN_POOL_EXCEEDS_POOL:
      return "more than the whole pool has";
    case KERN_POOL_EXCEEDS_ROW:
      return "more than one page table holds";
    case KERN_POOL_NOT_FOUND:
      return "there is none";
    case KERN_POOL_INVALID:
      return "an argument makes no sense";
    case KERN_POOL_NO_MEMORY:
      return "the host is out of memory";
    case KERN_POOL_STALE:
      return "the pool has changed since the view was taken";
  }
  return "no status of the pool";
}

// --- pool -------------------------------------------------------------------------------------

kern_pool_status kern_pool_create(const kern_pool_geometry* geometry, kern_pool** out, char* why,
                                  size_t why_size) {
  if (geometry == nullptr || out == nullptr) return KERN_POOL_INVALID;
  return guarded([&] {
    const pool::Geometry wanted{geometry->page_tokens,   geometry->pages,
                                geometry->slots,         geometry->recurrent != 0,
                                geometry->row_pages_max, geometry->host_bytes,
                                geometry->page_bytes,    geometry->slot_bytes};
    std::string refusal = pool::refusal(wanted);
    if (geometry->recurrent > 1)
      refusal = "geometry `recurrent`: expected 0 or 1, got " + std::to_string(geometry->recurrent);
    if (geometry->reserved != 0)  // so that it can mean something one day
      refusal = "geometry `reserved`: expected 0, got " + std::to_string(geometry->reserved);
    if (!refusal.empty()) {
      if (why == nullptr || why_size == 0) return KERN_POOL_INVALID;
      const size_t length = std::min(refusal.size(), why_size - 1);
      std::memcpy(why, refusal.data(), length);
      why[length] = '\0';
      return KERN_POOL_INVALID;
    }
    *out = std::make_unique<kern_pool>(wanted).release();
    return KERN_POOL_OK;
  });
}

kern_pool_status kern_pool_destroy(kern_pool* pool) {
  if (pool == nullptr) return KERN_POOL_OK;
  if (pool->handles > 0) return KERN_POOL_INVALID;
  const std::unique_ptr<kern_pool> gone(pool);
  return KERN_POOL_OK;
}

kern_pool_status kern_pool_occupancy_now(const kern_pool* pool, kern_pool_occupancy* out) {
  if (pool == nullptr || out == nullptr) return KERN_POOL_INVALID;
  const pool::Occupancy& now = pool->pool.occupancy();
  *out = {now.pages_free,   now.pages_leased, now.pages_frozen, now.slots_free,
          now.slots_leased, now.slots_frozen, now.host_pages,   now.host_slots};
  return KERN_POOL_OK;
}

// --- leases -----------------------------------------------------------------------------------

kern_pool_status kern_pool_lease_take(kern_pool* pool, uint32_t tokens, kern_pool_lease** out,
                                      kern_pool_amount* missing) {
  if (pool == nullptr || out == nullptr || tokens == 0) return KERN_POOL_INVALID;
  return guarded([&] {
    auto handle = taken<kern_pool_lease>(pool);
    auto lease = pool->pool.lease(tokens);
    if (!lease) return refused(lease.denied(), missing);
    hand_out(std::move(handle), *std::move(lease), out);
    return KERN_POOL_OK;
  });
}

kern_pool_status kern_pool_fork(kern_pool_lease* lease, uint32_t len, uint32_t tokens,
                                kern_pool_lease** out, kern_pool_copies* copies,
                                kern_pool_amount* missing) {
  if (!live(lease) || out == nullptr || copies == nullptr || !within(lease, len) || len > tokens)
    return KERN_POOL_INVALID;
  return guarded([&] {
    auto handle = taken<kern_pool_lease>(lease->owner);
    auto forked = lease->owner->pool.fork(*lease->held, len, tokens);
    if (!forked) return refused(forked.denied(), missing);
    *copies = plain(forked->copies);
    hand_out(std::move(handle), std::move(forked->lease), out);
    return KERN_POOL_OK;
  });
}

kern_pool_status kern_pool_checkpoint_take(kern_pool_lease* lease, uint32_t len,
                                           kern_pool_checkpoint** out, kern_pool_copies* copies,
                                           kern_pool_amount* missing) {
  if (!live(lease) || out == nullptr || copies == nullptr || !within(lease, len))
    return KERN_POOL_INVALID;
  return guarded([&] {
    auto handle = taken<kern_pool_checkpoint>(lease->owner);
    auto frozen = lease->owner->pool.checkpoint(*lease->held, len);
    if (!frozen) return refused(frozen.denied(), missing);
    *copies = plain(frozen->copies);
    hand_out(std::move(handle), std::move(frozen->checkpoint), out);
    return KERN_POOL_OK;
  });
}

kern_pool_status kern_pool_retire(kern_pool_lease* lease, uint32_t len,
                                  kern_pool_checkpoint** out) {
  if (!live(lease) || out == nullptr || !within(lease, len)) return KERN_POOL_INVALID;
  return guarded([&] {
    auto handle = taken<kern_pool_checkpoint>(lease->owner);
    hand_out(std::move(handle), lease->owner->pool.retire(*std::move(lease->held), len), out);
    give_back(lease);
    return KERN_POOL_OK;
  });
}

void kern_pool_lease_give_back(kern_pool_lease* lease) {
  give_back(lease);
}

size_t kern_pool_lease_pages(const kern_pool_lease* lease, uint32_t* pages, size_t capacity) {
  if (!live(lease)) return 0;
  const auto table = lease->held->view().pages();
  for (size_t i = 0; pages != nullptr && i < std::min(capacity, table.size()); ++i)
    pages[i] = table[i].value();
  return table.size();
}

uint32_t kern_pool_lease_slot(const kern_pool_lease* lease) {
  return live(lease) ? lease->held->view().slot().value() : 0;
}

uint32_t kern_pool_lease_writable_from(const kern_pool_lease* lease) {
  return live(lease) ? lease->held->writable_from() : 0;
}

// --- checkpoints and host memory --------------------------------------------------------------

kern_pool_status kern_pool_restore(const kern_pool_checkpoint* checkpoint, uint32_t len,
                                   uint32_t tokens, kern_pool_lease** out, kern_pool_copies* copies,
                                   kern_pool_amount* missing) {
  if (!live(checkpoint) || out == nullptr || copies == nullptr || len > tokens ||
      !checkpoint->held->usable_at(len))
    return KERN_POOL_INVALID;
  return guarded([&] {
    auto handle = taken<kern_pool_lease>(checkpoint->owner);
    auto restored = checkpoint->owner->pool.restore(*checkpoint->held, len, tokens);
    if (!restored) return refused(restored.denied(), missing);
    *copies = plain(restored->copies);
    hand_out(std::move(handle), std::move(restored->lease), out);
    return KERN_POOL_OK;
  });
}

kern_pool_status kern_pool_park(const kern_pool_checkpoint* checkpoint, kern_pool_parked** out,
                                kern_pool_transfers** to_host, kern_pool_amount* missing) {
  if (!live(checkpoint) || out == nullptr || to_host == nullptr) return KERN_POOL_INVALID;
  return guarded([&] {
    auto handle = taken<kern_pool_parked>(checkpoint->owner);
    auto plan = taken<kern_pool_transfers>(checkpoint->owner);
    auto slept = checkpoint->owner->pool.park(*checkpoint->held, std::move(plan->memory));
    if (!slept) return refused(slept.denied(), missing);
    hand_out_plan(checkpoint->owner->pool, std::move(plan), std::move(slept->transfers), to_host);
    hand_out(std::move(handle), std::move(slept->parked), out);
    return KERN_POOL_OK;
  });
}

kern_pool_status kern_pool_wake(const kern_pool_parked* parked, uint32_t len,
                                kern_pool_checkpoint** out, kern_pool_transfers** to_device,
                                kern_pool_amount* missing) {
  if (!live(parked) || out == nullptr || to_device == nullptr || !parked->held->usable_at(len))
    return KERN_POOL_INVALID;
  return guarded([&] {
    auto handle = taken<kern_pool_checkpoint>(parked->owner);
    auto plan = taken<kern_pool_transfers>(parked->owner);
    auto woken = parked->owner->pool.wake(*parked->held, len, std::move(plan->memory));
    if (!woken) return refused(woken.denied(), missing);
    hand_out_plan(parked->owner->pool, std::move(plan), std::move(woken->transfers), to_device);
    hand_out(std::move(handle), std::move(woken->checkpoint), out);
    return KERN_POOL_OK;
  });
}

kern_pool_status kern_pool_checkpoint_share(const kern_pool_checkpoint* checkpoint,
                                            kern_pool_checkpoint** out) {
  if (!live(checkpoint) || out == nullptr) return KERN_POOL_INVALID;
  return guarded([&] {
    hand_out(taken<kern_pool_checkpoint>(checkpoint->owner), checkpoint->held->share(), out);
    return KERN_POOL_OK;
  });
}

kern_pool_status kern_pool_parked_share(const kern_pool_parked* parked, kern_pool_parked** out) {
  if (!live(parked) || out == nullptr) return KERN_POOL_INVALID;
  return guarded([&] {
    hand_out(taken<kern_pool_parked>(parked->owner), parked->held->share(), out);
    return KERN_POOL_OK;
  });
}

uint32_t kern_pool_checkpoint_len(const kern_pool_checkpoint* checkpoint) {
  return live(checkpoint) ? checkpoint->held->len() : 0;
}

uint32_t kern_pool_checkpoint_slot(const kern_pool_checkpoint* checkpoint) {
  return live(checkpoint) ? checkpoint->held->view().slot().value() : 0;
}

uint32_t kern_pool_parked_len(const kern_pool_parked* parked) {
  return live(parked) ? parked->held->len() : 0;
}

void kern_pool_checkpoint_give_back(kern_pool_checkpoint* checkpoint) {
  give_back(checkpoint);
}

void kern_pool_parked_give_back(kern_pool_parked* parked) {
  give_back(parked);
}

const kern_pool_transfer* kern_pool_transfers_list(const kern_pool_transfers* plan, size_t* count) {
  if (count != nullptr) *count = live(plan) ? plan->list.size() : 0;
  return live(plan) ? plan->list.data() : nullptr;
}

void kern_pool_transfers_give_back(kern_pool_transfers* plan) {
  give_back(plan);
}

// --- views ------------------------------------------------------------------------------------

kern_pool_status kern_pool_view_lease(const kern_pool_lease* lease, kern_pool_view* out) {
  if (!live(lease) || out == nullptr) return KERN_POOL_INVALID;
  const pool::LeaseView view = lease->held->view();
  *out = {view.capacity(),
          view.writable_from(),
          static_cast<uint32_t>(view.pages().size()),
          view.slot().value(),
          lease->owner->pool.version(),
          lease->owner,
          lease,
          nullptr};
  return KERN_POOL_OK;
}

kern_pool_status kern_pool_view_checkpoint(const kern_pool_checkpoint* checkpoint,
                                           kern_pool_view* out) {
  if (!live(checkpoint) || out == nullptr) return KERN_POOL_INVALID;
  const pool::CheckpointView view = checkpoint->held->view();
  *out = {view.len(),
          view.len(),
          view.page_count(),
          view.slot().value(),
          checkpoint->owner->pool.version(),
          checkpoint->owner,
          nullptr,
          checkpoint};
  return KERN_POOL_OK;
}

kern_pool_status kern_pool_view_parked(const kern_pool_parked* parked, kern_pool_parked_view* out) {
  if (!live(parked) || out == nullptr) return KERN_POOL_INVALID;
  const pool::ParkedView view = parked->held->view();
  const pool::Pool& pool = parked->owner->pool;
  const uint64_t slot = view.slot().null() ? UINT64_MAX : pool.host_offset(view.slot());
  *out = {view.len(), view.page_count(), slot, pool.version(), parked->owner, parked};
  return KERN_POOL_OK;
}

kern_pool_status kern_pool_view_pages(const kern_pool_view* view, uint32_t* pages,
                                      size_t capacity) {
  if (view == nullptr || view->pool == nullptr) return KERN_POOL_INVALID;
  if (view->pool->pool.version() != view->version) return KERN_POOL_STALE;
  if (pages == nullptr || capacity < view->page_count) return KERN_POOL_INVALID;
  const auto number = [](pool::PageId page) { return page.value(); };
  if (live(view->lease)) {
    const auto table = view->lease->held->view().pages();
    std::transform(table.begin(), table.end(), pages, number);
    return KERN_POOL_OK;
  }
  if (!live(view->checkpoint)) return KERN_POOL_STALE;
  return guarded([&] {
    auto& list = view->pool->pages;
    list.resize(view->page_count);
    view->checkpoint->held->view().pages_into(list);
    std::transform(list.begin(), list.end(), pages, number);
    return KERN_POOL_OK;
  });
}

kern_pool_status kern_pool_view_offsets(const kern_pool_parked_view* view, uint64_t* offsets,
                                        size_t capacity) {
  if (view == nullptr || view->pool == nullptr) return KERN_POOL_INVALID;
  const pool::Pool& pool = view->pool->pool;
  if (pool.version() != view->version || !live(view->parked)) return KERN_POOL_STALE;
  if (offsets == nullptr || capacity < view->page_count) return KERN_POOL_INVALID;
  return guarded([&] {
    auto& list = view->pool->host_pages;
    list.resize(view->page_count);
    view->parked->held->view().pages_into(list);
    std::transform(list.begin(), list.end(), offsets,
                   [&](pool::HostPageId page) { return pool.host_offset(page); });
    return KERN_POOL_OK;
  });
}
