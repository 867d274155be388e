#include "kern/pool/pool_c.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kern/pool/pool.h"
#include "kern/pool/prefix.h"

namespace pool = kern::pool;

// A handle is allocated before its operation, so that nothing granted is lost for want of memory.
struct kern_pool {
  explicit kern_pool(const pool::Geometry& geometry) : pool(geometry) {}
  pool::Pool pool;
  size_t handles = 0;
};
struct kern_pool_lease {
  kern_pool* owner;
  std::optional<pool::Lease> held;
};
struct kern_pool_checkpoint {
  kern_pool* owner;
  std::optional<pool::Checkpoint> held;
};
struct kern_pool_parked {
  kern_pool* owner;
  std::optional<pool::Parked> held;
};
struct kern_pool_transfers {
  std::vector<kern_pool_transfer> list;
};
struct kern_pool_tree {
  explicit kern_pool_tree(kern_pool* pool) : owner(pool), tree(pool->pool) {}
  kern_pool* owner;
  pool::PrefixTree tree;
};

namespace {

// The one place where an exception ends: the standard library's, for want of memory.
template <class Body>
kern_pool_status guarded(Body&& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return KERN_POOL_NO_MEMORY;
  }
}

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

template <class Handle>
std::unique_ptr<Handle> made(kern_pool* owner) {
  return std::make_unique<Handle>(Handle{owner, std::nullopt});
}

template <class Handle, class Held>
void hand_out(std::unique_ptr<Handle> handle, Held held, Handle** out) {
  handle->held.emplace(std::move(held));
  ++handle->owner->handles;
  *out = handle.release();
}

template <class Handle>
void give_back(Handle* handle) {
  if (handle == nullptr) return;
  --handle->owner->handles;
  const std::unique_ptr<Handle> gone(handle);
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

std::unique_ptr<kern_pool_transfers> plain(const pool::Pool& in, const pool::Transfers& plan) {
  auto out = std::make_unique<kern_pool_transfers>();
  for (const pool::PageTransfer& page : plan.pages)
    out->list.push_back({in.host_offset(page.host), page.device.value(), 0});
  if (plan.slot)
    out->list.push_back({in.host_offset(plan.slot->host), plan.slot->device.value(), 1});
  return out;
}

bool within(const kern_pool_lease* lease, uint32_t len) {
  return len > 0 && len <= lease->held->capacity();
}

// A text that can be a row's; the tree takes lengths of 32 bits.
bool is_text(const int32_t* tokens, size_t count) {
  return count <= UINT32_MAX && (tokens != nullptr || count == 0);
}

template <class Handle>
kern_pool_status insert(kern_pool_tree* tree, const int32_t* tokens, size_t count, Handle* handle,
                        int* fresh) {
  if (tree == nullptr || handle == nullptr || !is_text(tokens, count) ||
      handle->owner != tree->owner || count != handle->held->len())
    return KERN_POOL_INVALID;
  return guarded([&] {
    auto copy = handle->held->share();  // the caller's stays its own until the entry is in
    const bool entered = tree->tree.insert({tokens, count}, std::move(copy));
    if (fresh != nullptr) *fresh = entered ? 1 : 0;
    give_back(handle);
    return KERN_POOL_OK;
  });
}

void tell(const pool::Evicted& evicted, kern_pool_evicted* done) {
  if (done != nullptr) *done = {evicted.entries, {evicted.freed.pages, evicted.freed.slots}};
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
    const std::string refusal = pool::refusal(wanted);
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
    auto handle = made<kern_pool_lease>(pool);
    auto lease = pool->pool.lease(tokens);
    if (!lease) return refused(lease.denied(), missing);
    hand_out(std::move(handle), *std::move(lease), out);
    return KERN_POOL_OK;
  });
}

kern_pool_status kern_pool_fork(kern_pool_lease* lease, uint32_t len, uint32_t tokens,
                                kern_pool_lease** out, kern_pool_copies* copies,
                                kern_pool_amount* missing) {
  if (lease == nullptr || out == nullptr || copies == nullptr || !within(lease, len) ||
      len > tokens)
    return KERN_POOL_INVALID;
  return guarded([&] {
    auto handle = made<kern_pool_lease>(lease->owner);
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
  if (lease == nullptr || out == nullptr || copies == nullptr || !within(lease, len))
    return KERN_POOL_INVALID;
  return guarded([&] {
    auto handle = made<kern_pool_checkpoint>(lease->owner);
    auto frozen = lease->owner->pool.checkpoint(*lease->held, len);
    if (!frozen) return refused(frozen.denied(), missing);
    *copies = plain(frozen->copies);
    hand_out(std::move(handle), std::move(frozen->checkpoint), out);
    return KERN_POOL_OK;
  });
}

kern_pool_status kern_pool_retire(kern_pool_lease* lease, uint32_t len,
                                  kern_pool_checkpoint** out) {
  if (lease == nullptr || out == nullptr || !within(lease, len)) return KERN_POOL_INVALID;
  return guarded([&] {
    auto handle = made<kern_pool_checkpoint>(lease->owner);
    hand_out(std::move(handle), lease->owner->pool.retire(*std::move(lease->held), len), out);
    give_back(lease);
    return KERN_POOL_OK;
  });
}

void kern_pool_lease_give_back(kern_pool_lease* lease) {
  give_back(lease);
}

size_t kern_pool_lease_pages(const kern_pool_lease* lease, uint32_t* pages, size_t capacity) {
  if (lease == nullptr) return 0;
  const auto table = lease->held->pages();
  for (size_t i = 0; pages != nullptr && i < std::min(capacity, table.size()); ++i)
    pages[i] = table[i].value();
  return table.size();
}

uint32_t kern_pool_lease_slot(const kern_pool_lease* lease) {
  return lease == nullptr ? 0 : lease->held->slot().value();
}

uint32_t kern_pool_lease_writable_from(const kern_pool_lease* lease) {
  return lease == nullptr ? 0 : lease->held->writable_from();
}

// --- checkpoints and host memory --------------------------------------------------------------

kern_pool_status kern_pool_restore(const kern_pool_checkpoint* checkpoint, uint32_t len,
                                   uint32_t tokens, kern_pool_lease** out, kern_pool_copies* copies,
                                   kern_pool_amount* missing) {
  if (checkpoint == nullptr || out == nullptr || copies == nullptr || len > tokens ||
      !checkpoint->held->usable_at(len))
    return KERN_POOL_INVALID;
  return guarded([&] {
    auto handle = made<kern_pool_lease>(checkpoint->owner);
    auto restored = checkpoint->owner->pool.restore(*checkpoint->held, len, tokens);
    if (!restored) return refused(restored.denied(), missing);
    *copies = plain(restored->copies);
    hand_out(std::move(handle), std::move(restored->lease), out);
    return KERN_POOL_OK;
  });
}

kern_pool_status kern_pool_park(const kern_pool_checkpoint* checkpoint, kern_pool_parked** out,
                                kern_pool_transfers** to_host, kern_pool_amount* missing) {
  if (checkpoint == nullptr || out == nullptr || to_host == nullptr) return KERN_POOL_INVALID;
  return guarded([&] {
    auto handle = made<kern_pool_parked>(checkpoint->owner);
    auto slept = checkpoint->owner->pool.park(*checkpoint->held);
    if (!slept) return refused(slept.denied(), missing);
    *to_host = plain(checkpoint->owner->pool, slept->transfers).release();
    hand_out(std::move(handle), std::move(slept->parked), out);
    return KERN_POOL_OK;
  });
}

kern_pool_status kern_pool_wake(const kern_pool_parked* parked, uint32_t len,
                                kern_pool_checkpoint** out, kern_pool_transfers** to_device,
                                kern_pool_amount* missing) {
  if (parked == nullptr || out == nullptr || to_device == nullptr || !parked->held->usable_at(len))
    return KERN_POOL_INVALID;
  return guarded([&] {
    auto handle = made<kern_pool_checkpoint>(parked->owner);
    auto woken = parked->owner->pool.wake(*parked->held, len);
    if (!woken) return refused(woken.denied(), missing);
    *to_device = plain(parked->owner->pool, woken->transfers).release();
    hand_out(std::move(handle), std::move(woken->checkpoint), out);
    return KERN_POOL_OK;
  });
}

kern_pool_status kern_pool_checkpoint_share(const kern_pool_checkpoint* checkpoint,
                                            kern_pool_checkpoint** out) {
  if (checkpoint == nullptr || out == nullptr) return KERN_POOL_INVALID;
  return guarded([&] {
    hand_out(made<kern_pool_checkpoint>(checkpoint->owner), checkpoint->held->share(), out);
    return KERN_POOL_OK;
  });
}

uint32_t kern_pool_checkpoint_len(const kern_pool_checkpoint* checkpoint) {
  return checkpoint == nullptr ? 0 : checkpoint->held->len();
}

uint32_t kern_pool_checkpoint_slot(const kern_pool_checkpoint* checkpoint) {
  return checkpoint == nullptr ? 0 : checkpoint->held->slot().value();
}

uint32_t kern_pool_parked_len(const kern_pool_parked* parked) {
  return parked == nullptr ? 0 : parked->held->len();
}

void kern_pool_checkpoint_give_back(kern_pool_checkpoint* checkpoint) {
  give_back(checkpoint);
}

void kern_pool_parked_give_back(kern_pool_parked* parked) {
  give_back(parked);
}

const kern_pool_transfer* kern_pool_transfers_list(const kern_pool_transfers* plan, size_t* count) {
  if (count != nullptr) *count = plan == nullptr ? 0 : plan->list.size();
  return plan == nullptr ? nullptr : plan->list.data();
}

void kern_pool_transfers_give_back(kern_pool_transfers* plan) {
  const std::unique_ptr<kern_pool_transfers> gone(plan);
}

// --- prefix tree ------------------------------------------------------------------------------

kern_pool_status kern_pool_tree_create(kern_pool* pool, kern_pool_tree** out) {
  if (pool == nullptr || out == nullptr) return KERN_POOL_INVALID;
  return guarded([&] {
    *out = std::make_unique<kern_pool_tree>(pool).release();
    ++pool->handles;
    return KERN_POOL_OK;
  });
}

void kern_pool_tree_give_back(kern_pool_tree* tree) {
  give_back(tree);
}

kern_pool_status kern_pool_tree_insert(kern_pool_tree* tree, const int32_t* tokens, size_t count,
                                       kern_pool_checkpoint* checkpoint, int* fresh) {
  return insert(tree, tokens, count, checkpoint, fresh);
}

kern_pool_status kern_pool_tree_insert_parked(kern_pool_tree* tree, const int32_t* tokens,
                                              size_t count, kern_pool_parked* parked, int* fresh) {
  return insert(tree, tokens, count, parked, fresh);
}

kern_pool_status kern_pool_tree_lookup(kern_pool_tree* tree, const int32_t* tokens, size_t count,
                                       kern_pool_checkpoint** out) {
  if (tree == nullptr || out == nullptr || !is_text(tokens, count)) return KERN_POOL_INVALID;
  return guarded([&] {
    auto handle = made<kern_pool_checkpoint>(tree->owner);
    auto hit = tree->tree.lookup({tokens, count});
    if (!hit) return KERN_POOL_NOT_FOUND;
    hand_out(std::move(handle), std::move(hit->held), out);
    return KERN_POOL_OK;
  });
}

kern_pool_status kern_pool_tree_lookup_any(kern_pool_tree* tree, const int32_t* tokens,
                                           size_t count, kern_pool_checkpoint** checkpoint,
                                           kern_pool_parked** parked) {
  if (tree == nullptr || checkpoint == nullptr || parked == nullptr || !is_text(tokens, count))
    return KERN_POOL_INVALID;
  return guarded([&] {
    auto resident = made<kern_pool_checkpoint>(tree->owner);
    auto sleeping = made<kern_pool_parked>(tree->owner);
    auto found = tree->tree.lookup_any({tokens, count});
    if (!found) return KERN_POOL_NOT_FOUND;
    *checkpoint = nullptr;
    *parked = nullptr;
    if (auto* held = std::get_if<pool::Checkpoint>(&found->held))
      hand_out(std::move(resident), std::move(*held), checkpoint);
    else
      hand_out(std::move(sleeping), std::move(std::get<pool::Parked>(found->held)), parked);
    return KERN_POOL_OK;
  });
}

kern_pool_status kern_pool_tree_evict(kern_pool_tree* tree, kern_pool_amount missing,
                                      kern_pool_evicted* done) {
  if (tree == nullptr) return KERN_POOL_INVALID;
  return guarded([&] {
    const pool::Evicted evicted = tree->tree.evict(pool::Amount{missing.pages, missing.slots});
    tell(evicted, done);
    return evicted.enough ? KERN_POOL_OK : KERN_POOL_BUSY;
  });
}

kern_pool_status kern_pool_tree_evict_parked(kern_pool_tree* tree,
                                             const kern_pool_checkpoint* room_for,
                                             kern_pool_evicted* done) {
  if (tree == nullptr || room_for == nullptr || room_for->owner != tree->owner)
    return KERN_POOL_INVALID;
  return guarded([&] {
    const pool::Evicted evicted = tree->tree.evict_parked(*room_for->held);
    tell(evicted, done);
    return evicted.enough ? KERN_POOL_OK : KERN_POOL_BUSY;
  });
}

kern_pool_status kern_pool_tree_evict_to_park(kern_pool_tree* tree, kern_pool_checkpoint** out,
                                              int32_t* tokens, size_t capacity) {
  if (tree == nullptr || out == nullptr || tokens == nullptr) return KERN_POOL_INVALID;
  const pool::Geometry& geometry = tree->owner->pool.geometry();
  if (capacity < size_t{geometry.row_pages_max} * geometry.page_tokens) return KERN_POOL_INVALID;
  return guarded([&] {
    auto handle = made<kern_pool_checkpoint>(tree->owner);
    auto leaving = tree->tree.evict_to_park();
    if (!leaving) return KERN_POOL_NOT_FOUND;
    std::copy(leaving->tokens.begin(), leaving->tokens.end(), tokens);
    hand_out(std::move(handle), std::move(leaving->held), out);
    return KERN_POOL_OK;
  });
}
