#include <catch2/catch.hpp>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "kern/pool/pool.h"

using namespace kern::pool;

namespace {

// Nine pages of four tokens and three slots: room for two short sequences and little else.
const Geometry kSmall{
    .page_tokens = 4, .pages = 10, .slots = 4, .recurrent = true, .row_pages_max = 8};
const Geometry kStateless{.page_tokens = 4, .pages = 10, .recurrent = false, .row_pages_max = 8};

Lease granted(Outcome<Lease> outcome) {
  REQUIRE(outcome);
  return *std::move(outcome);
}

Frozen granted(Outcome<Frozen> outcome) {
  REQUIRE(outcome);
  return *std::move(outcome);
}

Restored granted(Outcome<Restored> outcome) {
  REQUIRE(outcome);
  return *std::move(outcome);
}

std::vector<uint32_t> numbers(std::span<const PageId> pages) {
  std::vector<uint32_t> out;
  for (const PageId page : pages) out.push_back(page.value());
  return out;
}

std::vector<uint32_t> numbers(const Checkpoint& checkpoint) {
  return numbers(checkpoint.view().pages());
}

using Pages = std::vector<uint32_t>;

}  // namespace

TEST_CASE("a place cannot be invented and a handle cannot be copied", "[pool][lease]") {
  STATIC_REQUIRE_FALSE(std::is_constructible_v<PageId, uint32_t>);
  STATIC_REQUIRE_FALSE(std::is_constructible_v<SlotId, uint32_t>);
  STATIC_REQUIRE_FALSE(std::is_constructible_v<SlotId, PageId>);
  STATIC_REQUIRE_FALSE(std::is_copy_constructible_v<Lease>);
  STATIC_REQUIRE_FALSE(std::is_copy_constructible_v<Checkpoint>);
  STATIC_REQUIRE_FALSE(std::is_default_constructible_v<Lease>);
  STATIC_REQUIRE(std::is_nothrow_move_constructible_v<Lease>);
  STATIC_REQUIRE(std::is_nothrow_move_assignable_v<Checkpoint>);
}

TEST_CASE("a lease covers its worst case and never names page 0 or slot 0", "[pool][lease]") {
  Pool pool(kSmall);
  const Lease a = granted(pool.lease(9));
  CHECK(numbers(a.view().pages()) == Pages{1, 2, 3});
  CHECK(a.view().slot().value() == 1);
  CHECK(a.capacity() == 12);
  CHECK(a.writable_from() == 0);
  const Lease b = granted(pool.lease(4));
  CHECK(numbers(b.view().pages()) == Pages{4});
  CHECK(b.view().slot().value() == 2);
  CHECK(pool.occupancy() == Occupancy{5, 4, 0, 1, 2, 0});
}

TEST_CASE("a destroyed lease gives everything back", "[pool][lease]") {
  Pool pool(kSmall);
  { const Lease a = granted(pool.lease(9)); }
  CHECK(pool.occupancy() == Occupancy{9, 0, 0, 3, 0, 0});
  CHECK(numbers(granted(pool.lease(9)).view().pages()) == Pages{1, 2, 3});
}

TEST_CASE("a lease moved into another gives back what that one held", "[pool][lease]") {
  Pool pool(kSmall);
  Lease a = granted(pool.lease(9));
  Lease b = granted(pool.lease(4));
  a = std::move(b);
  CHECK(numbers(a.view().pages()) == Pages{4});
  CHECK(pool.occupancy() == Occupancy{8, 1, 0, 2, 1, 0});
}

TEST_CASE("a lease is all or nothing and tells exactly what is missing", "[pool][denied]") {
  Pool pool(kSmall);
  const Lease a = granted(pool.lease(28));
  CHECK(pool.lease(12).denied() == Denied{Reason::busy, {1, 0}});
  const Lease b = granted(pool.lease(1));
  const Lease c = granted(pool.lease(1));
  CHECK(pool.lease(12).denied() == Denied{Reason::busy, {3, 1}});
  CHECK(pool.occupancy() == Occupancy{0, 9, 0, 0, 3, 0});
}

TEST_CASE("the three refusals are distinct", "[pool][denied]") {
  Geometry tight = kSmall;
  tight.pages = 6;
  Pool pool(tight);
  CHECK(pool.lease(33).denied() == Denied{Reason::exceeds_row, {1, 0}});
  CHECK(pool.lease(32).denied() == Denied{Reason::exceeds_pool, {3, 0}});
  CHECK(pool.lease(UINT32_MAX).denied().reason == Reason::exceeds_row);
  const Lease a = granted(pool.lease(20));
  CHECK(pool.lease(1).denied() == Denied{Reason::busy, {1, 0}});
}

TEST_CASE("a refusal reads as a sentence", "[pool][denied]") {
  CHECK(sentence({Reason::busy, {3, 1}}) ==
        "the pool is busy: 3 pages and 1 slot must become free first");
  CHECK(sentence({Reason::busy, {0, 2}}) == "the pool is busy: 2 slots must become free first");
  CHECK(sentence({Reason::exceeds_pool, {1, 0}}) == "needs 1 page more than the whole pool has");
  CHECK(sentence({Reason::exceeds_row, {7, 0}}) == "needs 7 pages more than one page table holds");
}

TEST_CASE("a geometry that cannot be laid out is refused by name", "[pool][geometry]") {
  CHECK(refusal(kSmall).empty());
  CHECK(refusal(kStateless).empty());
  const auto with = [](auto change) {
    Geometry geometry = kSmall;
    change(geometry);
    return refusal(geometry);
  };
  CHECK(with([](Geometry& g) { g.page_tokens = 0; }) ==
        "geometry `page_tokens`: expected at least 1, got 0");
  CHECK(with([](Geometry& g) { g.pages = 1; }) ==
        "geometry `pages`: expected at least 2, page 0 included, got 1");
  CHECK(with([](Geometry& g) { g.slots = 1; }) ==
        "geometry `slots`: expected at least 2, slot 0 included, got 1");
  CHECK(with([](Geometry& g) { g.row_pages_max = 0; }) ==
        "geometry `row_pages_max`: expected at least 1, got 0");
  CHECK(with([](Geometry& g) { g.row_pages_max = 1u << 30; }) ==
        "geometry `row_pages_max`: expected fewer than 2^32 positions in a row, got 1073741824");
}

TEST_CASE("a retired lease hands its slot to the checkpoint without a copy", "[pool][checkpoint]") {
  Pool pool(kSmall);
  Lease lease = granted(pool.lease(20));
  const Checkpoint checkpoint = pool.retire(std::move(lease), 9);
  CHECK(numbers(checkpoint) == Pages{1, 2, 3});
  CHECK(checkpoint.view().slot().value() == 1);
  CHECK(checkpoint.len() == 9);
  CHECK(pool.occupancy() == Occupancy{6, 0, 3, 2, 0, 1});
}

TEST_CASE("a checkpoint on a page boundary shares its pages in place", "[pool][checkpoint]") {
  Pool pool(kSmall);
  Lease lease = granted(pool.lease(20));
  const Frozen frozen = granted(pool.checkpoint(lease, 8));
  CHECK(numbers(frozen.checkpoint) == Pages{1, 2});
  CHECK_FALSE(frozen.copies.page);
  CHECK(frozen.copies.slot == SlotCopy{lease.view().slot(), frozen.checkpoint.view().slot()});
  CHECK(frozen.checkpoint.view().slot().value() == 2);
  CHECK(lease.writable_from() == 8);
  CHECK(pool.occupancy() == Occupancy{4, 3, 2, 1, 1, 1});
}

TEST_CASE("a page that the prefix ends inside is copied to the checkpoint", "[pool][checkpoint]") {
  Pool pool(kStateless);
  Lease lease = granted(pool.lease(12));
  const Frozen frozen = granted(pool.checkpoint(lease, 6));
  CHECK(numbers(frozen.checkpoint) == Pages{1, 4});
  CHECK(frozen.copies.page ==
        PageCopy{lease.view().pages()[1], frozen.checkpoint.view().pages()[1]});
  CHECK_FALSE(frozen.copies.slot);
  CHECK(numbers(lease.view().pages()) == Pages{1, 2, 3});
  CHECK(lease.writable_from() == 4);
}

TEST_CASE("a prefix ending inside a page that is frozen already needs no copy",
          "[pool][checkpoint]") {
  Pool pool(kStateless);
  Lease lease = granted(pool.lease(12));
  const Frozen longer = granted(pool.checkpoint(lease, 8));
  const Frozen shorter = granted(pool.checkpoint(lease, 6));
  CHECK(shorter.copies.empty());
  CHECK(numbers(shorter.checkpoint) == Pages{1, 2});
}

TEST_CASE("a checkpoint denied leaves the lease as writable as before", "[pool][checkpoint]") {
  Pool pool(kSmall);
  Lease lease = granted(pool.lease(12));
  const Lease b = granted(pool.lease(1));
  std::optional<Lease> c = granted(pool.lease(1));
  CHECK(pool.checkpoint(lease, 8).denied() == Denied{Reason::busy, {0, 1}});
  CHECK(lease.writable_from() == 0);
  c.reset();
  CHECK(pool.checkpoint(lease, 8).granted());
}

TEST_CASE("a checkpoint beside its lease can exceed a pool that fits either", "[pool][denied]") {
  Geometry one = kSmall;
  one.slots = 2;
  Pool pool(one);
  Lease lease = granted(pool.lease(8));
  CHECK(pool.checkpoint(lease, 8).denied() == Denied{Reason::exceeds_pool, {0, 1}});
  const Checkpoint checkpoint = pool.retire(std::move(lease), 8);
  CHECK(pool.restore(checkpoint, 8, 12).denied() == Denied{Reason::exceeds_pool, {0, 1}});
}

TEST_CASE("a restored lease shares whole pages and copies the slot", "[pool][restore]") {
  Pool pool(kSmall);
  const Checkpoint checkpoint = pool.retire(granted(pool.lease(8)), 8);
  const Restored restored = granted(pool.restore(checkpoint, 8, 13));
  CHECK(numbers(restored.lease.view().pages()) == Pages{1, 2, 3, 4});
  CHECK(restored.lease.writable_from() == 8);
  CHECK(restored.copies ==
        Copies{std::nullopt, SlotCopy{checkpoint.view().slot(), restored.lease.view().slot()}});
  CHECK(pool.occupancy() == Occupancy{5, 2, 2, 1, 1, 1});
}

TEST_CASE("a restored lease gets its own copy of the page its prefix ends inside",
          "[pool][restore]") {
  Pool pool(kSmall);
  const Checkpoint checkpoint = pool.retire(granted(pool.lease(8)), 7);
  const Restored restored = granted(pool.restore(checkpoint, 7, 8));
  CHECK(numbers(restored.lease.view().pages()) == Pages{1, 3});
  CHECK(restored.copies.page ==
        PageCopy{checkpoint.view().pages()[1], restored.lease.view().pages()[1]});
  CHECK(restored.lease.writable_from() == 4);
}

TEST_CASE("without recurrent state a checkpoint is usable at any whole page of it",
          "[pool][restore]") {
  Pool pool(kStateless);
  const Checkpoint checkpoint = pool.retire(granted(pool.lease(11)), 11);
  CHECK(checkpoint.usable_at(4));
  CHECK(checkpoint.usable_at(8));
  CHECK(checkpoint.usable_at(11));
  CHECK_FALSE(checkpoint.usable_at(0));
  CHECK_FALSE(checkpoint.usable_at(6));
  CHECK_FALSE(checkpoint.usable_at(12));
  const Restored restored = granted(pool.restore(checkpoint, 4, 8));
  CHECK(numbers(restored.lease.view().pages()) == Pages{1, 4});
  CHECK(restored.copies.empty());
}

TEST_CASE("with recurrent state a checkpoint is usable at its own length only", "[pool][restore]") {
  Pool pool(kSmall);
  const Checkpoint checkpoint = pool.retire(granted(pool.lease(8)), 8);
  CHECK(checkpoint.usable_at(8));
  CHECK_FALSE(checkpoint.usable_at(4));
}

TEST_CASE("a prefix outlives the checkpoint it came from while a lease shares it",
          "[pool][restore]") {
  Pool pool(kSmall);
  std::optional<Checkpoint> checkpoint = pool.retire(granted(pool.lease(8)), 8);
  std::optional<Restored> restored = granted(pool.restore(*checkpoint, 8, 12));
  checkpoint.reset();
  CHECK(pool.occupancy() == Occupancy{6, 1, 2, 2, 1, 0});
  CHECK(numbers(restored->lease.view().pages()) == Pages{1, 2, 3});
  restored.reset();
  CHECK(pool.occupancy() == Occupancy{9, 0, 0, 3, 0, 0});
}

TEST_CASE("turns of one conversation share what they have in common", "[pool][restore]") {
  Pool pool(kSmall);
  const Checkpoint first = pool.retire(granted(pool.lease(8)), 8);
  Restored turn = granted(pool.restore(first, 8, 16));
  const Checkpoint second = pool.retire(std::move(turn.lease), 16);
  CHECK(numbers(first) == Pages{1, 2});
  CHECK(numbers(second) == Pages{1, 2, 3, 4});
  CHECK(pool.occupancy() == Occupancy{5, 0, 4, 1, 0, 2});
}

TEST_CASE("the last handle to go frees a shared checkpoint", "[pool][checkpoint]") {
  Pool pool(kSmall);
  std::optional<Checkpoint> one = pool.retire(granted(pool.lease(8)), 8);
  CHECK(one->sole_holder() == Amount{1, 1});
  std::optional<Checkpoint> two = one->share();
  CHECK(one->sole_holder() == Amount{0, 0});
  one.reset();
  CHECK(pool.occupancy() == Occupancy{7, 0, 2, 2, 0, 1});
  CHECK(two->sole_holder() == Amount{1, 1});
  two.reset();
  CHECK(pool.occupancy() == Occupancy{9, 0, 0, 3, 0, 0});
}

TEST_CASE("a fork shares whole pages and copies the one its prefix ends inside, and the slot",
          "[pool][fork]") {
  Pool pool(kSmall);
  Lease lease = granted(pool.lease(12));
  const Restored fork = granted(pool.fork(lease, 6, 12));
  CHECK(numbers(lease.view().pages()) == Pages{1, 2, 3});
  CHECK(numbers(fork.lease.view().pages()) == Pages{1, 4, 5});
  CHECK(fork.copies == Copies{PageCopy{lease.view().pages()[1], fork.lease.view().pages()[1]},
                              SlotCopy{lease.view().slot(), fork.lease.view().slot()}});
  CHECK(lease.writable_from() == 4);
  CHECK(fork.lease.writable_from() == 4);
  CHECK(pool.occupancy() == Occupancy{4, 4, 1, 1, 2, 0});
}

TEST_CASE("forks of one prompt outlive the lease they came from", "[pool][fork]") {
  Pool pool(kSmall);
  std::optional<Lease> lease = granted(pool.lease(8));
  std::optional<Restored> one = granted(pool.fork(*lease, 8, 12));
  std::optional<Restored> two = granted(pool.fork(*lease, 8, 12));
  CHECK_FALSE(one->copies.page);
  lease.reset();
  CHECK(numbers(one->lease.view().pages()) == Pages{1, 2, 3});
  CHECK(numbers(two->lease.view().pages()) == Pages{1, 2, 4});
  one.reset();
  two.reset();
  CHECK(pool.occupancy() == Occupancy{9, 0, 0, 3, 0, 0});
}

TEST_CASE("a fork denied leaves the lease as writable as before", "[pool][fork]") {
  Pool pool(kSmall);
  Lease lease = granted(pool.lease(20));
  CHECK(pool.fork(lease, 8, 28).denied() == Denied{Reason::exceeds_pool, {1, 0}});
  const Lease other = granted(pool.lease(8));
  CHECK(pool.fork(lease, 8, 24).denied() == Denied{Reason::busy, {2, 0}});
  CHECK(pool.fork(lease, 8, 36).denied() == Denied{Reason::exceeds_row, {1, 0}});
  CHECK(lease.writable_from() == 0);
}
