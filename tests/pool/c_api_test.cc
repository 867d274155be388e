#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "kern/pool/pool_c.h"

namespace {

const kern_pool_geometry kSmall{4, 10, 4, 1, 8, 0, 1000, 100, 150};

struct Owned {
  Owned() { REQUIRE(kern_pool_create(&kSmall, &pool, nullptr, 0) == KERN_POOL_OK); }
  ~Owned() { CHECK(kern_pool_destroy(pool) == KERN_POOL_OK); }
  kern_pool_lease* lease(uint32_t tokens) const {
    kern_pool_lease* lease = nullptr;
    REQUIRE(kern_pool_lease_take(pool, tokens, &lease, nullptr) == KERN_POOL_OK);
    return lease;
  }
  kern_pool_checkpoint* retired(uint32_t tokens) const {
    kern_pool_checkpoint* out = nullptr;
    REQUIRE(kern_pool_retire(lease(tokens), tokens, &out) == KERN_POOL_OK);
    return out;
  }
  kern_pool* pool = nullptr;
};

}  // namespace

TEST_CASE("in C a geometry that cannot be laid out is refused with a sentence", "[pool][c]") {
  kern_pool_geometry bad = kSmall;
  bad.pages = 1;
  kern_pool* pool = nullptr;
  char why[30];
  CHECK(kern_pool_create(&bad, &pool, why, sizeof why) == KERN_POOL_INVALID);
  CHECK(std::string(why) == "geometry `pages`: expected at");
  CHECK(pool == nullptr);
}

TEST_CASE("in C what is reserved is 0, and yes is 1", "[pool][c]") {
  kern_pool* pool = nullptr;
  char why[80];
  kern_pool_geometry bad = kSmall;
  bad.recurrent = 2;
  CHECK(kern_pool_create(&bad, &pool, why, sizeof why) == KERN_POOL_INVALID);
  CHECK(std::string(why) == "geometry `recurrent`: expected 0 or 1, got 2");
  bad = kSmall;
  bad.reserved = 7;
  CHECK(kern_pool_create(&bad, &pool, why, sizeof why) == KERN_POOL_INVALID);
  CHECK(std::string(why) == "geometry `reserved`: expected 0, got 7");
  CHECK(pool == nullptr);
}

TEST_CASE("in C a refusal has a code and says what is missing", "[pool][c]") {
  const Owned owned;
  kern_pool_lease* const lease = owned.lease(28);
  kern_pool_lease* other = nullptr;
  kern_pool_amount missing{};
  CHECK(kern_pool_lease_take(owned.pool, 12, &other, &missing) == KERN_POOL_BUSY);
  CHECK((missing.pages == 1 && missing.slots == 0));
  CHECK(kern_pool_lease_take(owned.pool, 36, &other, &missing) == KERN_POOL_EXCEEDS_ROW);
  CHECK(std::string(kern_pool_status_text(KERN_POOL_BUSY)) == "the pool is busy");
  kern_pool_lease_give_back(lease);
}

TEST_CASE("in C a mistake is a code and changes nothing", "[pool][c]") {
  const Owned owned, elsewhere;
  kern_pool_lease* const lease = owned.lease(8);
  kern_pool_lease* fork = nullptr;
  kern_pool_checkpoint* checkpoint = nullptr;
  kern_pool_copies copies{};
  CHECK(kern_pool_lease_take(owned.pool, 0, &fork, nullptr) == KERN_POOL_INVALID);
  CHECK(kern_pool_fork(lease, 9, 12, &fork, &copies, nullptr) == KERN_POOL_INVALID);
  CHECK(kern_pool_fork(lease, 8, 7, &fork, &copies, nullptr) == KERN_POOL_INVALID);
  CHECK(kern_pool_checkpoint_take(lease, 0, &checkpoint, &copies, nullptr) == KERN_POOL_INVALID);
  CHECK(kern_pool_retire(lease, 9, &checkpoint) == KERN_POOL_INVALID);
  CHECK(kern_pool_destroy(owned.pool) == KERN_POOL_INVALID);  // a lease is left
  REQUIRE(kern_pool_retire(lease, 8, &checkpoint) == KERN_POOL_OK);
  CHECK(kern_pool_restore(checkpoint, 4, 12, &fork, &copies, nullptr) == KERN_POOL_INVALID);
  kern_pool_tree* tree = nullptr;
  REQUIRE(kern_pool_tree_create(elsewhere.pool, &tree) == KERN_POOL_OK);
  const std::vector<int32_t> tokens(8, 1);
  CHECK(kern_pool_tree_insert(tree, tokens.data(), 8, checkpoint, nullptr) == KERN_POOL_INVALID);
  CHECK(kern_pool_tree_evict_parked(tree, checkpoint, nullptr) == KERN_POOL_INVALID);
  kern_pool_tree_give_back(tree);
  kern_pool_checkpoint_give_back(checkpoint);
}

TEST_CASE("in C a prefix sleeps, is found and wakes", "[pool][c]") {
  const Owned owned;
  kern_pool_tree* tree = nullptr;
  REQUIRE(kern_pool_tree_create(owned.pool, &tree) == KERN_POOL_OK);
  std::vector<int32_t> tokens{1, 2, 3, 4, 5, 6, 7, 8, 9}, left(32);
  int fresh = 0;
  REQUIRE(kern_pool_tree_insert(tree, tokens.data(), 8, owned.retired(8), &fresh) == KERN_POOL_OK);
  CHECK(fresh == 1);
  kern_pool_checkpoint* checkpoint = nullptr;
  CHECK(kern_pool_tree_evict_to_park(tree, &checkpoint, left.data(), 31) == KERN_POOL_INVALID);
  REQUIRE(kern_pool_tree_evict_to_park(tree, &checkpoint, left.data(), 32) == KERN_POOL_OK);
  CHECK(left[7] == 8);
  kern_pool_parked* parked = nullptr;
  kern_pool_transfers* plan = nullptr;
  REQUIRE(kern_pool_park(checkpoint, &parked, &plan, nullptr) == KERN_POOL_OK);
  size_t count = 0;
  const kern_pool_transfer* const list = kern_pool_transfers_list(plan, &count);
  REQUIRE(count == 3);
  CHECK((list[1].host_offset == 100 && list[1].device == 2 && list[1].is_slot == 0));
  CHECK((list[2].host_offset == 850 && list[2].device == 1 && list[2].is_slot == 1));
  kern_pool_transfers_give_back(plan);
  kern_pool_checkpoint_give_back(checkpoint);
  REQUIRE(kern_pool_tree_insert_parked(tree, left.data(), 8, parked, nullptr) == KERN_POOL_OK);
  CHECK(kern_pool_tree_lookup(tree, tokens.data(), 9, &checkpoint) == KERN_POOL_NOT_FOUND);
  REQUIRE(kern_pool_tree_lookup_any(tree, tokens.data(), 9, &checkpoint, &parked) == KERN_POOL_OK);
  CHECK(checkpoint == nullptr);
  REQUIRE(kern_pool_parked_len(parked) == 8);
  REQUIRE(kern_pool_wake(parked, 8, &checkpoint, &plan, nullptr) == KERN_POOL_OK);
  kern_pool_transfers_give_back(plan);
  kern_pool_parked_give_back(parked);
  kern_pool_occupancy now{};
  REQUIRE(kern_pool_occupancy_now(owned.pool, &now) == KERN_POOL_OK);
  CHECK((now.pages_frozen == 2 && now.host_pages == 2 && now.host_slots == 1));
  kern_pool_checkpoint_give_back(checkpoint);
  kern_pool_tree_give_back(tree);
}

TEST_CASE("in C a view shows a handle's places until the pool changes", "[pool][c][view]") {
  const Owned owned;
  kern_pool_lease* const lease = owned.lease(10);
  kern_pool_view view{};
  uint32_t pages[3] = {};
  REQUIRE(kern_pool_view_lease(lease, &view) == KERN_POOL_OK);
  CHECK((view.positions == 12 && view.writable_from == 0 && view.page_count == 3));
  CHECK(view.slot == 1);
  CHECK(kern_pool_view_pages(&view, pages, 2) == KERN_POOL_INVALID);
  REQUIRE(kern_pool_view_pages(&view, pages, 3) == KERN_POOL_OK);
  CHECK((pages[0] == 1 && pages[2] == 3));
  kern_pool_checkpoint* checkpoint = nullptr;
  REQUIRE(kern_pool_retire(lease, 7, &checkpoint) == KERN_POOL_OK);
  CHECK(kern_pool_view_pages(&view, pages, 3) == KERN_POOL_STALE);
  REQUIRE(kern_pool_view_checkpoint(checkpoint, &view) == KERN_POOL_OK);
  CHECK((view.positions == 7 && view.writable_from == 7 && view.page_count == 2));
  REQUIRE(kern_pool_view_pages(&view, pages, 2) == KERN_POOL_OK);
  CHECK((pages[0] == 1 && pages[1] == 2));
  kern_pool_parked* parked = nullptr;
  kern_pool_transfers* plan = nullptr;
  REQUIRE(kern_pool_park(checkpoint, &parked, &plan, nullptr) == KERN_POOL_OK);
  kern_pool_parked_view host{};
  uint64_t offsets[2] = {};
  REQUIRE(kern_pool_view_parked(parked, &host) == KERN_POOL_OK);
  CHECK((host.positions == 7 && host.page_count == 2 && host.slot_offset == 850));
  REQUIRE(kern_pool_view_offsets(&host, offsets, 2) == KERN_POOL_OK);
  CHECK((offsets[0] == 0 && offsets[1] == 100));
  kern_pool_transfers_give_back(plan);
  kern_pool_parked_give_back(parked);
  CHECK(kern_pool_view_offsets(&host, offsets, 2) == KERN_POOL_STALE);
  CHECK(kern_pool_view_lease(lease, &view) == KERN_POOL_INVALID);  // taken over by `retire`
  kern_pool_checkpoint_give_back(checkpoint);
}

namespace {

// Keeps what is short, and counts what it was asked and told.
struct Short {
  uint32_t asked = 0, gone = 0;
  double last = 0;
  static double worth(void* context, const kern_pool_entry* entry) {
    ++static_cast<Short*>(context)->asked;
    return -static_cast<double>(entry->len);
  }
  static void evicted(void* context, double worth) {
    ++static_cast<Short*>(context)->gone;
    static_cast<Short*>(context)->last = worth;
  }
};

// Which length goes first of three entries of 4, 12 and 8 tokens, entered in that order.
uint32_t first_to_go(const Owned& owned, kern_pool_tree* tree) {
  std::vector<int32_t> left(32);
  for (const uint32_t len : {4, 12, 8}) {
    const std::vector<int32_t> tokens(len, static_cast<int32_t>(len));
    REQUIRE(kern_pool_tree_insert(tree, tokens.data(), len, owned.retired(len), nullptr) ==
            KERN_POOL_OK);
  }
  uint32_t resident = 0, parked = 0;
  CHECK(kern_pool_tree_entries(tree, &resident, &parked) == KERN_POOL_OK);
  CHECK((resident == 3 && parked == 0));
  kern_pool_checkpoint* gone = nullptr;
  REQUIRE(kern_pool_tree_evict_to_park(tree, &gone, left.data(), 32) == KERN_POOL_OK);
  const uint32_t len = kern_pool_checkpoint_len(gone);
  kern_pool_checkpoint_give_back(gone);
  kern_pool_tree_give_back(tree);
  return len;
}

}  // namespace

TEST_CASE("in C a tree evicts by recency, by cost, or as the caller's policy says",
          "[pool][c][eviction]") {
  const Owned owned;
  kern_pool_tree* tree = nullptr;
  REQUIRE(kern_pool_tree_create(owned.pool, &tree) == KERN_POOL_OK);
  CHECK(first_to_go(owned, tree) == 4);
  // The slot weighs most: the more tokens beside it, the more work a byte.
  const kern_pool_entry_cost slot_weighs{1, 0, 1, 1000}, nonsense{1, 0, 0, 0};
  REQUIRE(kern_pool_tree_create_by_cost(owned.pool, &slot_weighs, nullptr, &tree) == KERN_POOL_OK);
  CHECK(first_to_go(owned, tree) == 4);
  CHECK(kern_pool_tree_create_by_cost(owned.pool, &nonsense, nullptr, &tree) == KERN_POOL_INVALID);
  Short state;
  const kern_pool_policy keeps_short{Short::worth, Short::evicted, &state};
  REQUIRE(kern_pool_tree_create_with(owned.pool, &keeps_short, nullptr, &tree) == KERN_POOL_OK);
  CHECK(first_to_go(owned, tree) == 12);
  CHECK((state.asked == 3 && state.gone == 1 && state.last == -12));
  const kern_pool_policy none{nullptr, nullptr, nullptr};
  CHECK(kern_pool_tree_create_with(owned.pool, &none, nullptr, &tree) == KERN_POOL_INVALID);
}

TEST_CASE("in C what a policy calls not a number goes first", "[pool][c][eviction]") {
  const Owned owned;
  kern_pool_tree* tree = nullptr;
  const kern_pool_policy odd{
      [](void*, const kern_pool_entry* entry) { return entry->len == 12 ? 0.0 / 0.0 : 1.0; },
      nullptr, nullptr};
  REQUIRE(kern_pool_tree_create_with(owned.pool, &odd, nullptr, &tree) == KERN_POOL_OK);
  CHECK(first_to_go(owned, tree) == 12);
}
