// The prefix tree in C, and its orders of eviction.

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "pool_c_handles.h"

namespace pool = kern::pool;

using kern::pool::c::give_back;
using kern::pool::c::guarded;
using kern::pool::c::hand_out;
using kern::pool::c::live;
using kern::pool::c::taken;

struct kern_pool_tree {
  kern_pool_tree(kern_pool* pool, std::unique_ptr<pool::EvictionPolicy> resident,
                 std::unique_ptr<pool::EvictionPolicy> parked)
      : owner(pool), tree(pool->pool, std::move(resident), std::move(parked)) {}
  kern_pool* owner;
  pool::PrefixTree tree;
  std::vector<int32_t> tokens;  // scratch
};

namespace {

// A policy of the caller's.
class Called final : public pool::EvictionPolicy {
 public:
  explicit Called(const kern_pool_policy& policy) : policy_(policy) {}
  double worth(const pool::EntryView& entry) override {
    const kern_pool_entry plain{entry.len, entry.ancestor_len, entry.hits,
                                entry.recurrent ? 1u : 0u, 0};
    const double worth = policy_.worth(policy_.context, &plain);
    return std::isnan(worth) ? -std::numeric_limits<double>::infinity() : worth;
  }
  void evicted(double worth) override {
    if (policy_.evicted != nullptr) policy_.evicted(policy_.context, worth);
  }

 private:
  const kern_pool_policy policy_;
};

std::unique_ptr<pool::EvictionPolicy> called(const kern_pool_policy* policy) {
  return policy == nullptr ? nullptr : std::make_unique<Called>(*policy);
}

bool sound(const kern_pool_entry_cost* cost) {
  if (cost == nullptr) return true;
  const auto amount = [](double value) { return std::isfinite(value) && value >= 0; };
  return amount(cost->per_token) && amount(cost->per_token_pair) && amount(cost->page_bytes) &&
         cost->page_bytes > 0 && amount(cost->slot_bytes);
}

std::unique_ptr<pool::EvictionPolicy> by_cost(const kern_pool_entry_cost* cost,
                                              uint32_t page_tokens) {
  if (cost == nullptr) return nullptr;
  return pool::recompute_cost_per_byte(
      {cost->per_token, cost->per_token_pair, cost->page_bytes, cost->slot_bytes, page_tokens});
}

kern_pool_status create(kern_pool* pool, std::unique_ptr<pool::EvictionPolicy> resident,
                        std::unique_ptr<pool::EvictionPolicy> parked, kern_pool_tree** out) {
  *out = std::make_unique<kern_pool_tree>(pool, std::move(resident), std::move(parked)).release();
  ++pool->handles;
  return KERN_POOL_OK;
}

// A text that can be a row's; the tree takes lengths of 32 bits.
bool is_text(const int32_t* tokens, size_t count) {
  return count <= UINT32_MAX && (tokens != nullptr || count == 0);
}

template <class Handle>
kern_pool_status insert(kern_pool_tree* tree, const int32_t* tokens, size_t count, Handle* handle,
                        int* fresh) {
  if (tree == nullptr || !live(handle) || !is_text(tokens, count) || handle->owner != tree->owner ||
      count != handle->held->len())
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

kern_pool_status kern_pool_tree_create(kern_pool* pool, kern_pool_tree** out) {
  return kern_pool_tree_create_with(pool, nullptr, nullptr, out);
}

kern_pool_status kern_pool_tree_create_with(kern_pool* pool, const kern_pool_policy* resident,
                                            const kern_pool_policy* parked, kern_pool_tree** out) {
  const auto sound = [](const kern_pool_policy* policy) {
    return policy == nullptr || policy->worth != nullptr;
  };
  if (pool == nullptr || out == nullptr || !sound(resident) || !sound(parked))
    return KERN_POOL_INVALID;
  return guarded([&] { return create(pool, called(resident), called(parked), out); });
}

kern_pool_status kern_pool_tree_create_by_cost(kern_pool* pool,
                                               const kern_pool_entry_cost* resident,
                                               const kern_pool_entry_cost* parked,
                                               kern_pool_tree** out) {
  if (pool == nullptr || out == nullptr || !sound(resident) || !sound(parked))
    return KERN_POOL_INVALID;
  const uint32_t page_tokens = pool->pool.geometry().page_tokens;
  return guarded([&] {
    return create(pool, by_cost(resident, page_tokens), by_cost(parked, page_tokens), out);
  });
}

void kern_pool_tree_give_back(kern_pool_tree* tree) {
  if (tree == nullptr) return;
  --tree->owner->handles;
  const std::unique_ptr<kern_pool_tree> gone(tree);
}

kern_pool_status kern_pool_tree_entries(const kern_pool_tree* tree, uint32_t* resident,
                                        uint32_t* parked) {
  if (tree == nullptr) return KERN_POOL_INVALID;
  if (resident != nullptr) *resident = tree->tree.entries();
  if (parked != nullptr) *parked = tree->tree.parked_entries();
  return KERN_POOL_OK;
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
    auto handle = taken<kern_pool_checkpoint>(tree->owner);
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
    auto resident = taken<kern_pool_checkpoint>(tree->owner);
    auto sleeping = taken<kern_pool_parked>(tree->owner);
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
  if (tree == nullptr || !live(room_for) || room_for->owner != tree->owner)
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
    auto handle = taken<kern_pool_checkpoint>(tree->owner);
    auto leaving = tree->tree.evict_to_park(std::move(tree->tokens));
    if (!leaving) return KERN_POOL_NOT_FOUND;
    std::copy(leaving->tokens.begin(), leaving->tokens.end(), tokens);
    tree->tokens = std::move(leaving->tokens);
    hand_out(std::move(handle), std::move(leaving->held), out);
    return KERN_POOL_OK;
  });
}
