#include <catch2/catch.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "kern/pool/pool.h"
#include "kern/pool/prefix.h"

using namespace kern::pool;

namespace {

// 1,000 bytes of host memory: pages of 100 from the low end, slots of 150 from the high end.
const Geometry kTiered{4, 20, 6, true, 8, 1000, 100, 150};

Checkpoint retired(Pool& pool, uint32_t tokens) {
  return pool.retire(std::move(*pool.lease(tokens)), tokens);
}

}  // namespace

TEST_CASE("a parked checkpoint lies in host memory, pages from one end and slots from the other",
          "[pool][host]") {
  Pool pool(kTiered);
  const Checkpoint checkpoint = retired(pool, 8);
  auto slept = pool.park(checkpoint);
  REQUIRE(slept);
  REQUIRE(slept->transfers.pages.size() == 2);
  CHECK(slept->transfers.pages[0].device == checkpoint.view().pages()[0]);
  CHECK(pool.host_offset(slept->transfers.pages[0].host) == 0);
  CHECK(pool.host_offset(slept->transfers.pages[1].host) == 100);
  CHECK(slept->transfers.slot->device == checkpoint.view().slot());
  CHECK(pool.host_offset(slept->transfers.slot->host) == 850);
  CHECK(pool.occupancy() == Occupancy{17, 0, 2, 4, 0, 1, 2, 1});
}

TEST_CASE("what woke sleeps again without a copy, and wakes without one while it is awake",
          "[pool][host]") {
  Pool pool(kTiered);
  std::optional<Checkpoint> checkpoint = retired(pool, 8);
  auto slept = pool.park(*checkpoint);
  checkpoint.reset();
  CHECK(pool.occupancy() == Occupancy{19, 0, 0, 5, 0, 0, 2, 1});
  auto woken = pool.wake(slept->parked, 8);
  REQUIRE(woken);
  CHECK(woken->transfers.pages.size() == 2);
  CHECK(pool.wake(slept->parked, 8)->transfers.empty());
  CHECK(pool.park(woken->checkpoint)->transfers.empty());
  CHECK(pool.occupancy() == Occupancy{17, 0, 2, 4, 0, 1, 2, 1});
}

TEST_CASE("two prefixes that share pages share them in host memory too", "[pool][host]") {
  Pool pool(kTiered);
  const Checkpoint first = retired(pool, 8);
  auto turn = pool.restore(first, 8, 12);
  const Checkpoint second = pool.retire(std::move(turn->lease), 12);
  auto one = pool.park(first);
  auto two = pool.park(second);
  REQUIRE(two);
  CHECK(two->transfers.pages.size() == 1);
  CHECK(pool.occupancy().host_pages == 3);
  CHECK(pool.occupancy().host_slots == 2);
}

TEST_CASE("one budget of bytes serves pages and slots, and a refusal says what must go",
          "[pool][host]") {
  Pool pool(kTiered);
  const Checkpoint a = retired(pool, 12);
  const Checkpoint b = retired(pool, 8);
  const Checkpoint c = retired(pool, 16);
  std::optional<Outcome<Slept>> first = pool.park(a);  // 3 * 100 + 150
  const auto second = pool.park(b);                    // 2 * 100 + 150 more: 200 left
  REQUIRE(second);
  CHECK(pool.park(c).denied() == Denied{Reason::busy, {2, 1}});
  first.reset();  // three holes below b's pages, one slot: exactly what was missing, and a page
  const auto third = pool.park(c);
  REQUIRE(third);
  CHECK(pool.host_offset(third->parked.view().pages()[0]) == 0);
  CHECK(pool.host_offset(third->parked.view().pages()[3]) == 500);
}

TEST_CASE("what is larger than host memory is never parked", "[pool][host]") {
  Geometry small = kTiered;
  small.host_bytes = 400;
  Pool tight(small);
  CHECK(tight.park(retired(tight, 12)).denied() == Denied{Reason::exceeds_pool, {1, 0}});
  small.host_bytes = 0;
  Pool none(small);
  CHECK(none.park(retired(none, 12)).denied() == Denied{Reason::exceeds_pool, {3, 1}});
}

TEST_CASE("a host tier without sizes is refused by name", "[pool][host]") {
  Geometry geometry = kTiered;
  geometry.slot_bytes = 0;
  CHECK(refusal(geometry) ==
        "geometry `slot_bytes`: expected at least 1, and fewer than 2^32 of them in `host_bytes`, "
        "got 0");
  geometry.page_bytes = 0;
  CHECK(refusal(geometry).find("geometry `page_bytes`") == 0);
}

TEST_CASE("a prefix goes from the tree to host memory and is found there", "[pool][host]") {
  Pool pool(kTiered);
  PrefixTree tree(pool);
  const std::vector<int32_t> prompt{1, 2, 3, 4, 5, 6, 7, 8, 9};
  const std::span<const int32_t> tokens(prompt);
  tree.insert(tokens.first(8), retired(pool, 8));
  auto leaving = tree.evict_to_park();
  REQUIRE(leaving);
  auto slept = pool.park(leaving->held);
  REQUIRE(slept);
  CHECK(tree.insert(leaving->tokens, std::move(slept->parked)));
  leaving.reset();  // its transfers are executed: the device memory is free
  CHECK(pool.occupancy() == Occupancy{19, 0, 0, 5, 0, 0, 2, 1});
  CHECK_FALSE(tree.lookup(tokens));
  auto found = tree.lookup_any(tokens);
  REQUIRE(found);
  auto woken = pool.wake(std::get<Parked>(found->held), found->len);
  REQUIRE(woken);
  CHECK(tree.insert(tokens.first(found->len), woken->checkpoint.share()));
  CHECK(std::holds_alternative<Checkpoint>(tree.lookup_any(tokens)->held));
  CHECK(pool.restore(woken->checkpoint, found->len, 12).granted());
}

TEST_CASE("parked entries make room for a checkpoint, the coldest first", "[pool][host]") {
  Pool pool(kTiered);
  PrefixTree tree(pool);
  for (const int32_t first : {1, 2, 3}) {
    const std::vector<int32_t> tokens(8, first);
    const Checkpoint checkpoint = retired(pool, 8);
    const Evicted evicted = tree.evict_parked(checkpoint);  // each takes 350 bytes of 1,000
    CHECK(evicted.enough);
    CHECK(evicted.entries == (first == 3 ? 1 : 0));
    tree.insert(tokens, std::move(pool.park(checkpoint)->parked));
  }
  CHECK(tree.parked_entries() == 2);
  CHECK_FALSE(tree.lookup_any(std::vector<int32_t>(9, 1)));
  CHECK(tree.lookup_any(std::vector<int32_t>(9, 2)));
}

TEST_CASE("only what frees something missing leaves to be parked", "[pool][host]") {
  Pool pool(kTiered);
  PrefixTree tree(pool);
  const std::vector<int32_t> cold = {1, 2, 3, 4, 5, 6, 7, 8}, warm = {9, 2, 3, 4};
  auto held = retired(pool, 8);
  tree.insert(cold, held.share());  // held by a lease in hand too: its going frees nothing
  tree.insert(warm, retired(pool, 4));
  CHECK(!tree.evict_to_park(Amount{4, 0}));  // more than is frozen
  auto leaving = tree.evict_to_park(Amount{1, 0});
  REQUIRE(leaving);
  CHECK(leaving->tokens == warm);
  CHECK(leaving->held.len() == 4);
  leaving.reset();
  CHECK(!tree.evict_to_park(Amount{1, 0}));
  CHECK(tree.entries() == 1);
}
