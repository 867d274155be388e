// Counts what this binary allocates, to see that the steady state allocates nothing.
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <numeric>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "kern/pool/pool.h"
#include "kern/pool/pool_c.h"
#include "kern/pool/prefix.h"

namespace {
uint64_t allocations = 0;
}

void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(bytes);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

using namespace kern::pool;

namespace {

// Allocations in ten turns, once a few have made every table as long as it gets.
template <class Turn>
uint64_t allocations_in(Turn turn) {
  for (int i = 0; i < 8; ++i) turn();
  const uint64_t before = allocations;
  for (int i = 0; i < 10; ++i) turn();
  return allocations - before;
}

const Geometry kTiered{.page_tokens = 4,
                       .pages = 100,
                       .slots = 10,
                       .recurrent = true,
                       .row_pages_max = 50,
                       .host_bytes = 4000,
                       .page_bytes = 100,
                       .slot_bytes = 150};

std::vector<int32_t> counted(size_t count) {
  std::vector<int32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

}  // namespace

TEST_CASE("leases, forks, checkpoints, restores and hits allocate nothing in the steady state",
          "[pool][allocation]") {
  Pool pool(kTiered);
  PrefixTree tree(pool);
  const std::vector<int32_t> prompt = counted(9);
  const std::span<const int32_t> tokens(prompt);
  tree.insert(tokens.first(8), pool.retire(*pool.lease(8), 8));
  tree.insert(tokens.first(4), pool.retire(*pool.lease(4), 4));
  CHECK(allocations_in([&] {
          auto hit = tree.lookup(tokens);
          auto restored = pool.restore(hit->held, hit->len, 60);
          auto frozen = pool.checkpoint(restored->lease, 20);
          auto fork = pool.fork(restored->lease, 30, 60);
          auto other = pool.lease(30);
          const Checkpoint last = pool.retire(std::move(restored->lease), 50);
        }) == 0);
}

TEST_CASE("insertions and evictions allocate nothing in the steady state", "[pool][allocation]") {
  Pool pool(kTiered);
  PrefixTree tree(pool);
  std::vector<int32_t> prompt = counted(24), memory;
  const std::span<const int32_t> tokens(prompt);
  int32_t next = 100;
  CHECK(allocations_in([&] {
          for (const uint32_t len : {24, 16, 20, 8}) {  // a leaf, splits, an entry inside
            prompt[len - 1] = ++next;
            tree.insert(tokens.first(len), pool.retire(*pool.lease(len), len));
          }
          tree.insert(tokens.first(4), pool.retire(*pool.lease(4), 4));
          tree.evict();
          tree.evict({1, 1});
          while (auto leaving = tree.evict_to_park(std::move(memory)))
            memory = std::move(leaving->tokens);
        }) == 0);
}

TEST_CASE("parking and waking allocate nothing once their plans' memory is used again",
          "[pool][allocation]") {
  Pool pool(kTiered);
  PrefixTree tree(pool);
  const std::vector<int32_t> prompt = counted(21);
  const std::span<const int32_t> tokens(prompt);
  Transfers memory;
  CHECK(allocations_in([&] {
          auto slept = pool.park(pool.retire(*pool.lease(20), 20), std::move(memory));
          REQUIRE(slept->transfers.pages.size() == 5);
          memory = std::move(slept->transfers);
          tree.insert(tokens.first(20), std::move(slept->parked));
          auto found = tree.lookup_any(tokens);
          auto woken = pool.wake(std::get<Parked>(found->held), 20, std::move(memory));
          REQUIRE(woken->transfers.pages.size() == 5);
          memory = std::move(woken->transfers);
          found.reset();
          const Checkpoint large = pool.retire(*pool.lease(150), 150);
          REQUIRE(tree.evict_parked(large).entries == 1);
        }) == 0);
}

TEST_CASE("in C too the steady state allocates nothing", "[pool][allocation][c]") {
  const kern_pool_geometry geometry{4, 100, 10, 1, 50, 0, 4000, 100, 150};
  kern_pool* pool = nullptr;
  kern_pool_tree* tree = nullptr;
  REQUIRE(kern_pool_create(&geometry, &pool, nullptr, 0) == KERN_POOL_OK);
  REQUIRE(kern_pool_tree_create(pool, &tree) == KERN_POOL_OK);
  const std::vector<int32_t> tokens = counted(21);
  std::vector<int32_t> left(200);
  uint64_t failures = 0;
  const auto must = [&](kern_pool_status status) { failures += status != KERN_POOL_OK; };
  CHECK(allocations_in([&] {
          kern_pool_lease *lease = nullptr, *fork = nullptr;
          kern_pool_checkpoint *checkpoint = nullptr, *hit = nullptr;
          kern_pool_parked* parked = nullptr;
          kern_pool_transfers* plan = nullptr;
          kern_pool_copies copies{};
          must(kern_pool_lease_take(pool, 20, &lease, nullptr));
          must(kern_pool_fork(lease, 10, 20, &fork, &copies, nullptr));
          must(kern_pool_retire(lease, 20, &checkpoint));
          must(kern_pool_tree_insert(tree, tokens.data(), 20, checkpoint, nullptr));
          must(kern_pool_tree_lookup(tree, tokens.data(), 21, &hit));
          kern_pool_checkpoint_give_back(hit);
          must(kern_pool_tree_evict_to_park(tree, &hit, left.data(), left.size()));
          must(kern_pool_park(hit, &parked, &plan, nullptr));
          kern_pool_transfers_give_back(plan);
          kern_pool_checkpoint_give_back(hit);
          must(kern_pool_wake(parked, 20, &checkpoint, &plan, nullptr));
          kern_pool_view view{};
          uint32_t pages[5];
          must(kern_pool_view_checkpoint(checkpoint, &view));
          must(kern_pool_view_pages(&view, pages, 5));
          kern_pool_transfers_give_back(plan);
          kern_pool_parked_give_back(parked);
          kern_pool_checkpoint_give_back(checkpoint);
          kern_pool_lease_give_back(fork);
        }) == 0);
  CHECK(failures == 0);
  kern_pool_tree_give_back(tree);
  CHECK(kern_pool_destroy(pool) == KERN_POOL_OK);
}
