#include "kern/pool/prefix.h"

#include <array>
#include <catch2/catch.hpp>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

using namespace kern::pool;

namespace {

using Tokens = std::vector<int32_t>;

// Pages of four tokens, and a slot for each of a handful of checkpoints.
const Geometry kSmall{
    .page_tokens = 4, .pages = 33, .slots = 9, .recurrent = true, .row_pages_max = 8};
const Geometry kStateless{.page_tokens = 4, .pages = 33, .recurrent = false, .row_pages_max = 8};

// `count` tokens from `first` up.
Tokens run(int32_t first, size_t count) {
  Tokens tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

Tokens operator+(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Checkpoint fresh(Pool& pool, const Tokens& tokens) {
  auto lease = pool.lease(static_cast<uint32_t>(tokens.size()));
  REQUIRE(lease);
  return pool.retire(*std::move(lease), static_cast<uint32_t>(tokens.size()));
}

// A checkpoint of `tokens` that continues `from`.
Checkpoint continued(Pool& pool, const Checkpoint& from, const Tokens& tokens) {
  const uint32_t len = static_cast<uint32_t>(tokens.size());
  auto restored = pool.restore(from, from.len(), len);
  REQUIRE(restored);
  return pool.retire(std::move(restored->lease), len);
}

uint32_t found(PrefixTree& tree, const Tokens& tokens) {
  const auto hit = tree.lookup(tokens);
  return hit ? hit->len : 0;
}

}  // namespace

TEST_CASE("a lookup finds the longest checkpoint that the prompt begins with", "[pool][prefix]") {
  Pool pool(kSmall);
  PrefixTree tree(pool);
  tree.insert(run(0, 4), fresh(pool, run(0, 4)));
  tree.insert(run(0, 12), fresh(pool, run(0, 12)));
  CHECK(found(tree, run(0, 16)) == 12);
  CHECK(found(tree, run(0, 11)) == 4);
  CHECK(found(tree, run(0, 8) + run(50, 8)) == 4);
  CHECK(found(tree, run(0, 3)) == 0);
  CHECK(found(tree, run(1, 12)) == 0);
  CHECK(found(tree, {}) == 0);
}

TEST_CASE("a lookup never returns the whole prompt", "[pool][prefix]") {
  Pool pool(kSmall);
  PrefixTree tree(pool);
  tree.insert(run(0, 8), fresh(pool, run(0, 8)));
  CHECK(found(tree, run(0, 8)) == 0);
  CHECK(found(tree, run(0, 9)) == 8);
}

TEST_CASE("without recurrent state any whole page of a checkpoint is found", "[pool][prefix]") {
  Pool pool(kStateless);
  PrefixTree tree(pool);
  tree.insert(run(0, 14), fresh(pool, run(0, 14)));
  CHECK(found(tree, run(0, 6) + run(50, 6)) == 4);
  CHECK(found(tree, run(0, 12)) == 8);
  CHECK(found(tree, run(0, 14)) == 12);
  CHECK(found(tree, run(0, 15)) == 14);
  CHECK(found(tree, run(0, 3) + run(50, 6)) == 0);
}

TEST_CASE("a hit on part of a checkpoint holds that part alone", "[pool][prefix]") {
  Pool pool(kStateless);
  PrefixTree tree(pool);
  tree.insert(run(0, 14), fresh(pool, run(0, 14)));
  const auto hit = tree.lookup(run(0, 6));
  REQUIRE(hit);
  tree.evict();
  CHECK(pool.occupancy().pages_frozen == 1);
  CHECK(hit->held.view().pages().size() == 1);
}

TEST_CASE("an eviction cannot pull away what a lookup returned", "[pool][prefix]") {
  Pool pool(kSmall);
  PrefixTree tree(pool);
  tree.insert(run(0, 8), fresh(pool, run(0, 8)));
  const auto hit = tree.lookup(run(0, 9));
  REQUIRE(hit);
  CHECK(tree.evict({1, 0}).enough == false);
  CHECK(tree.entries() == 1);
  CHECK(tree.evict()->len() == 8);
  CHECK(tree.entries() == 0);
  CHECK(pool.occupancy().pages_frozen == 2);
  CHECK(pool.restore(hit->held, 8, 12).granted());
}

TEST_CASE("a second checkpoint of the same tokens is dropped", "[pool][prefix]") {
  Pool pool(kSmall);
  PrefixTree tree(pool);
  CHECK(tree.insert(run(0, 8), fresh(pool, run(0, 8))));
  CHECK_FALSE(tree.insert(run(0, 8), fresh(pool, run(0, 8))));
  CHECK(tree.entries() == 1);
  CHECK(pool.occupancy().slots_frozen == 1);
}

TEST_CASE("the entry least recently hit goes first", "[pool][eviction]") {
  Pool pool(kSmall);
  PrefixTree tree(pool);
  for (const int32_t first : {100, 200, 300})
    tree.insert(run(first, 4), fresh(pool, run(first, 4)));
  CHECK(found(tree, run(100, 5)) == 4);
  tree.evict();
  CHECK(found(tree, run(200, 5)) == 0);
  tree.evict();
  CHECK(found(tree, run(300, 5)) == 0);
  CHECK(found(tree, run(100, 5)) == 4);
}

TEST_CASE("leaves go before their ancestors however recent", "[pool][eviction]") {
  Pool pool(kSmall);
  PrefixTree tree(pool);
  Checkpoint turn = fresh(pool, run(0, 4));
  tree.insert(run(0, 8), continued(pool, turn, run(0, 8)));
  tree.insert(run(0, 4), std::move(turn));
  tree.insert(run(100, 4), fresh(pool, run(100, 4)));
  CHECK(found(tree, run(0, 9)) == 8);
  CHECK(tree.evict()->len() == 4);  // 100..: a leaf, and hit longer ago than the other
  CHECK(tree.evict()->len() == 8);
  CHECK(tree.evict()->len() == 4);
  CHECK_FALSE(tree.evict());
}

TEST_CASE("an eviction stops as soon as what was missing is free", "[pool][eviction]") {
  Pool pool(kSmall);
  PrefixTree tree(pool);
  for (int32_t i = 0; i < 8; ++i) tree.insert(run(100 * i, 8), fresh(pool, run(100 * i, 8)));
  const auto denied = pool.lease(28).denied();
  CHECK(denied == Denied{Reason::busy, {0, 1}});
  CHECK(tree.evict(denied.missing).entries == 1);
  auto lease = pool.lease(28);
  REQUIRE(lease);
  const auto more = pool.lease(32).denied();
  CHECK(more == Denied{Reason::busy, {0, 1}});
  const Evicted done = tree.evict({14, 0});
  CHECK(done.entries == 7);
  CHECK(done.freed == Amount{14, 7});
  CHECK(done.enough);
}

TEST_CASE("an eviction spares what would free nothing that is missing", "[pool][eviction]") {
  Pool pool(kSmall);
  PrefixTree tree(pool);
  tree.insert(run(0, 8), fresh(pool, run(0, 8)));
  tree.insert(run(100, 8), fresh(pool, run(100, 8)));
  auto hit = tree.lookup(run(0, 9));
  REQUIRE(hit);
  auto lease = pool.restore(hit->held, 8, 12);
  REQUIRE(lease);
  hit.reset();
  CHECK(found(tree, run(100, 9)) == 8);  // now 0.. is the older one, but its pages are in use
  CHECK(tree.evict({1, 0}).entries == 1);
  CHECK(found(tree, run(0, 9)) == 8);
  CHECK(found(tree, run(100, 9)) == 0);
  const Evicted none = tree.evict({1, 0});
  CHECK((none.entries == 0 && !none.enough));
  CHECK(tree.evict({0, 1}).entries == 1);  // its slot is nobody else's
}

TEST_CASE("an ancestor goes when its leaf is held and cannot help", "[pool][eviction]") {
  Pool pool(kSmall);
  PrefixTree tree(pool);
  Checkpoint turn = fresh(pool, run(0, 4));
  tree.insert(run(0, 8), continued(pool, turn, run(0, 8)));
  tree.insert(run(0, 4), std::move(turn));
  const auto hit = tree.lookup(run(0, 9));
  CHECK(tree.evict({0, 1}).freed == Amount{0, 1});
  CHECK(found(tree, run(0, 8)) == 0);
  CHECK(found(tree, run(0, 9)) == 8);
}

TEST_CASE("nothing goes where letting everything go would not be enough", "[pool][eviction]") {
  Pool pool(kSmall);
  PrefixTree tree(pool);
  tree.insert(run(0, 8), fresh(pool, run(0, 8)));
  tree.insert(run(100, 4), fresh(pool, run(100, 4)));
  const Evicted none = tree.evict({4, 0});
  CHECK((none.entries == 0 && !none.enough));
  CHECK(tree.entries() == 2);
  CHECK(tree.evict({3, 0}).enough);
  CHECK(tree.entries() == 0);
}

TEST_CASE("entries that hold a page together go together when none helps alone",
          "[pool][eviction]") {
  Pool pool(kStateless);
  PrefixTree tree(pool);
  auto lease = pool.lease(32);
  REQUIRE(lease);
  auto whole = pool.checkpoint(*lease, 8);
  auto inside = pool.checkpoint(*lease, 7);  // ends inside a page frozen already
  REQUIRE(inside->copies.empty());
  tree.insert(run(0, 7), std::move(inside->checkpoint));
  tree.insert(run(0, 8), std::move(whole->checkpoint));
  tree.insert(run(100, 4), fresh(pool, run(100, 4)));
  CHECK_FALSE(tree.evict({2, 0}).enough);  // the lease holds their pages too
  CHECK(tree.entries() == 2);
  *lease = *pool.lease(4);
  CHECK(tree.evict({1, 0}).freed == Amount{2, 0});
  CHECK(tree.entries() == 0);
}

TEST_CASE("by recompute cost the prefix that took most work for its bytes stays",
          "[pool][eviction]") {
  Pool pool(kSmall);
  PrefixTree tree(pool, recompute_cost_per_byte(
                            {.per_token = 1, .page_bytes = 1, .slot_bytes = 10, .page_tokens = 4}));
  tree.insert(run(0, 24), fresh(pool, run(0, 24)));
  tree.insert(run(100, 4), fresh(pool, run(100, 4)));
  tree.insert(run(200, 8), fresh(pool, run(200, 8)));
  CHECK(tree.evict()->len() == 4);
  CHECK(tree.evict()->len() == 8);
  CHECK(tree.evict()->len() == 24);
}

TEST_CASE("an expensive prefix that nobody asks for goes in the end", "[pool][eviction]") {
  Pool pool(kSmall);
  PrefixTree tree(pool, recompute_cost_per_byte(
                            {.per_token = 1, .page_bytes = 1, .slot_bytes = 10, .page_tokens = 4}));
  tree.insert(run(0, 24), fresh(pool, run(0, 24)));
  int32_t rounds = 0;
  for (bool stays = true; stays && rounds < 100; ++rounds) {
    tree.insert(run(1000 + 100 * rounds, 4), fresh(pool, run(1000 + 100 * rounds, 4)));
    stays = tree.evict()->len() == 4;
  }
  CHECK(rounds > 2);
  CHECK(rounds < 10);
}

TEST_CASE("what follows from a shared ancestor is judged by its own part", "[pool][eviction]") {
  Pool pool(kSmall);
  PrefixTree tree(pool,
                  recompute_cost_per_byte(
                      {.per_token = 1, .page_bytes = 0.001, .slot_bytes = 10, .page_tokens = 4}));
  Checkpoint system = fresh(pool, run(0, 16));
  tree.insert(run(0, 16) + run(50, 4), continued(pool, system, run(0, 16) + run(50, 4)));
  tree.insert(run(0, 16), std::move(system));
  tree.insert(run(0, 16) + run(60, 4), fresh(pool, run(0, 16) + run(60, 4)));
  tree.insert(run(200, 8), fresh(pool, run(200, 8)));
  CHECK(tree.evict()->len() == 20);  // entered after the ancestor: 4 tokens of its own
  CHECK(tree.evict()->len() == 8);
  CHECK(tree.evict()->len() == 20);  // entered before it: worth all 20
  CHECK(tree.evict()->len() == 16);
}

TEST_CASE("a scheduler's turn reuses a prefix, evicts what is missing and keeps the longer prefix",
          "[pool][example]") {
  Geometry tight = kSmall;
  tight.slots = 4;
  Pool pool(tight);
  PrefixTree tree(pool);
  const Tokens known = run(0, 21);
  const std::span<const int32_t> prompt(known);
  const uint32_t worst_case = 32, len = 20;
  tree.insert(prompt.first(8), fresh(pool, run(0, 8)));
  tree.insert(run(100, 8), fresh(pool, run(100, 8)));
  tree.insert(run(200, 8), fresh(pool, run(200, 8)));

  std::optional<Hit> hit = tree.lookup(prompt);
  REQUIRE(hit);
  Outcome<Restored> granted = pool.restore(hit->held, hit->len, worst_case);
  if (!granted && granted.denied().reason == Reason::busy) {
    tree.evict(granted.denied().missing);
    granted = pool.restore(hit->held, hit->len, worst_case);
  }
  REQUIRE(granted);
  CHECK(granted->copies.slot == SlotCopy{hit->held.view().slot(), granted->lease.view().slot()});
  CHECK(granted->lease.writable_from() == 8);
  tree.insert(prompt.first(len), pool.retire(std::move(granted->lease), len));

  CHECK(found(tree, run(0, 21)) == 20);
  CHECK(found(tree, run(100, 9)) == 0);
  CHECK(found(tree, run(200, 9)) == 8);
}

TEST_CASE("among thousands that begin differently each is found while it is there",
          "[pool][prefix][prop]") {
  constexpr int32_t kTokens = 8000;
  Pool pool({.page_tokens = 1, .pages = kTokens, .recurrent = false, .row_pages_max = 2});
  PrefixTree tree(pool);
  std::set<int32_t> there;
  const auto is_found = [&](int32_t token) {
    const std::array<int32_t, 2> prompt{token, -1};
    return tree.lookup(prompt).has_value();
  };
  uint64_t state = 7;
  bool right = true;
  for (int i = 0; i < 12'000; ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    const auto token = static_cast<int32_t>((state >> 33) % kTokens);
    if (pool.occupancy().pages_free > 2000) {
      there.insert(token);
      tree.insert(std::array{token}, pool.retire(*pool.lease(1), 1));
    } else {  // the least recently hit goes, whichever that is
      for (int n = 0; n < 600; ++n) tree.evict();
      there.clear();
      for (int32_t each = 0; each < kTokens; ++each)
        if (is_found(each)) there.insert(each);
      right = right && there.size() == tree.entries();
    }
    right = right && is_found(token) == (there.count(token) > 0);
  }
  CHECK(right);
  CHECK(there.size() == tree.entries());
  CHECK(there.size() > 4000);
}
