#include "kern/engine/prefill.h"

#include <catch2/catch.hpp>
#include <map>
#include <tuple>

#include "fixtures.h"

using namespace kern;
using namespace kern::engine;
using namespace kern::engine::fixtures;

namespace {

using Part = std::tuple<uint64_t, uint32_t, size_t, bool>;  ///< request, start, rows, emits

std::vector<Part> parts(const std::optional<Item>& item) {
  std::vector<Part> all;
  if (!item) return all;
  for (const Slice& slice : item->slices)
    all.emplace_back(slice.request.value(), slice.start, slice.tokens.size(), slice.emits);
  return all;
}

PrefillScheduler scheduler(ExecutorLimits of, int32_t depth = 2) {
  auto made =
      PrefillScheduler::create({.limits = of, .pipeline_depth = depth, .items_max = 2 * depth});
  REQUIRE(made);
  return std::move(*made);
}

void submit(PrefillScheduler& prefill, uint64_t id, std::vector<Token> tokens,
            int32_t priority = 0) {
  const auto length = static_cast<uint32_t>(tokens.size());
  prefill.submit({.id = RequestId{id},
                  .prompt = std::move(tokens),
                  .lease_tokens = length,
                  .priority = priority});
}

void admit_all(PrefillScheduler& prefill) {
  while (prefill.next() != nullptr && prefill.admit_next()) {
  }
}

/// Runs a prompt alone from submission to release; returns its items.
std::vector<Item> run_alone(PrefillScheduler& prefill, uint64_t id, std::vector<Token> tokens,
                            uint64_t& next_item) {
  submit(prefill, id, std::move(tokens));
  admit_all(prefill);
  std::vector<Item> items;
  while (auto item = prefill.plan(next_item)) {
    ++next_item;
    items.push_back(*item);
    REQUIRE(prefill.on_result(result_of(*item)));
  }
  prefill.release(RequestId{id});
  return items;
}

uint32_t pages_used(const PrefillScheduler& prefill) {
  Counters counters;
  prefill.count(counters);
  return counters.pages_used;
}

}  // namespace

TEST_CASE("a long prompt is cut on the grid and emits once at its end", "[engine][prefill]") {
  auto prefill = scheduler(limits());
  submit(prefill, 1, prompt(600));
  admit_all(prefill);
  const auto first = prefill.plan(1), second = prefill.plan(2), third = prefill.plan(3);
  CHECK(parts(first) == std::vector<Part>{{1, 0, 256, false}});
  CHECK(parts(second) == std::vector<Part>{{1, 256, 256, false}});
  // two items fill the pipeline; what is left does not fill a third
  CHECK(!third);
  REQUIRE(prefill.on_result(result_of(*first)));
  const auto last = prefill.plan(3);
  CHECK(parts(last) == std::vector<Part>{{1, 512, 88, true}});
  CHECK(last->slices[0].tokens.front() == 512);
  REQUIRE(prefill.on_result(result_of(*second)));
  const auto done = prefill.on_result(result_of(*last, 42));
  REQUIRE(done);
  REQUIRE(done->size() == 1);
  CHECK(done->front().emitted.token == 42);
}

TEST_CASE("short prompts ride beside a long one", "[engine][prefill]") {
  auto prefill = scheduler(limits());
  submit(prefill, 1, prompt(1000));
  submit(prefill, 2, prompt(30));
  submit(prefill, 3, prompt(20));
  admit_all(prefill);
  CHECK(parts(prefill.plan(1)) ==
        std::vector<Part>{{1, 0, 192, false}, {2, 0, 30, true}, {3, 0, 20, true}});
}

TEST_CASE("of two long prompts the older ends first and the other still moves",
          "[engine][prefill]") {
  auto prefill = scheduler(limits(), 8);
  submit(prefill, 1, prompt(500));
  submit(prefill, 2, prompt(500));
  admit_all(prefill);
  CHECK(parts(prefill.plan(1)) == std::vector<Part>{{1, 0, 192, false}, {2, 0, 64, false}});
  CHECK(parts(prefill.plan(2)) == std::vector<Part>{{1, 192, 192, false}, {2, 64, 64, false}});
  CHECK(parts(prefill.plan(3)) == std::vector<Part>{{1, 384, 116, true}, {2, 128, 128, false}});
}

TEST_CASE("a lower priority number goes first, then the earlier", "[engine][prefill]") {
  auto prefill = scheduler(limits());
  submit(prefill, 1, prompt(10), 1);
  submit(prefill, 2, prompt(10), 0);
  submit(prefill, 3, prompt(10), 0);
  std::vector<uint64_t> order;
  while (const PrefillJob* job = prefill.next()) {
    order.push_back(job->id.value());
    REQUIRE(prefill.admit_next());
  }
  CHECK(order == std::vector<uint64_t>{2, 3, 1});
}

TEST_CASE("a partial item waits for a free place in the pipeline and a full one does not",
          "[engine][prefill]") {
  auto prefill = scheduler(limits(), 1);
  submit(prefill, 1, prompt(10));
  admit_all(prefill);
  CHECK(prefill.plan(1));
  submit(prefill, 2, prompt(10));
  admit_all(prefill);
  CHECK(!prefill.plan(2));
  for (uint64_t id = 3; id <= 5; ++id) submit(prefill, id, prompt(10));
  admit_all(prefill);
  CHECK(parts(prefill.plan(2)).size() == 4);
}

TEST_CASE("a new lease's slot is zeroed in its first item only", "[engine][prefill]") {
  auto prefill = scheduler(limits());
  uint64_t next = 1;
  const auto items = run_alone(prefill, 1, prompt(400), next);
  REQUIRE(items.size() == 2);
  CHECK(items[0].zero_slots == std::vector<uint32_t>{items[0].slices[0].slot});
  CHECK(items[1].zero_slots.empty());
}

TEST_CASE("the state is kept where the prompt's last grid line is passed", "[engine][prefill]") {
  auto prefill = scheduler(limits());
  uint64_t next = 1;
  const auto items = run_alone(prefill, 1, prompt(330), next);
  REQUIRE(items.size() == 2);
  CHECK(items[0].slices[0].snapshot_slot == 0);
  CHECK(items[1].slices[0].start == 256);
  CHECK(items[1].slices[0].snapshot_slot != 0);
  CHECK(items[1].slices[0].snapshot_slot != items[1].slices[0].slot);
}

TEST_CASE("a prompt that begins as an earlier one starts at its checkpoint",
          "[engine][prefill][checkpoint]") {
  auto prefill = scheduler(limits());
  uint64_t next = 1;
  const auto cold = run_alone(prefill, 1, prompt(200), next);
  const auto warm = run_alone(prefill, 2, prompt(230), next);
  REQUIRE(warm.size() == 1);
  const Slice& slice = warm[0].slices[0];
  CHECK(slice.start == 192);
  CHECK(slice.tokens.size() == 38);
  CHECK(warm[0].zero_slots.empty());
  CHECK(warm[0].slot_copies == std::vector<Copy>{{cold[0].slices[0].snapshot_slot, slice.slot}});
  CHECK(
      std::vector<uint32_t>(slice.pages.begin(), slice.pages.begin() + 3) ==
      std::vector<uint32_t>(cold[0].slices[0].pages.begin(), cold[0].slices[0].pages.begin() + 3));
  Counters counters;
  prefill.count(counters);
  CHECK(counters.cache_hits == 192);
  CHECK(counters.cache_queries == 430);
}

TEST_CASE("a prompt that ends on a grid line is found when it is asked again",
          "[engine][prefill][checkpoint]") {
  for (const bool recurrent : {true, false}) {
    CAPTURE(recurrent);
    ExecutorLimits of = limits();
    of.recurrent = recurrent;
    auto prefill = scheduler(of);
    uint64_t next = 1;
    const auto cold = run_alone(prefill, 1, prompt(192), next);
    CHECK(parts(cold.back()) == (recurrent ? std::vector<Part>{{1, 128, 64, true}}
                                           : std::vector<Part>{{1, 0, 192, true}}));
    const auto warm = run_alone(prefill, 2, prompt(192), next);
    REQUIRE(warm.size() == 1);
    CHECK(parts(warm[0]) == std::vector<Part>{{2, 128, 64, true}});
    const auto longer = run_alone(prefill, 3, prompt(230), next);
    CHECK(longer[0].slices[0].start == (recurrent ? 128 : 192));
  }
}

TEST_CASE("a prompt of one grid step leaves no recurrent state to begin at",
          "[engine][prefill][checkpoint]") {
  auto prefill = scheduler(limits());
  uint64_t next = 1;
  const auto items = run_alone(prefill, 1, prompt(64), next);
  REQUIRE(items.size() == 1);
  CHECK(items[0].slices[0].snapshot_slot == 0);
  CHECK(pages_used(prefill) == 0);
}

TEST_CASE("a checkpoint is found only once its prompt has come out whole",
          "[engine][prefill][checkpoint]") {
  auto prefill = scheduler(limits());
  submit(prefill, 1, prompt(200));
  admit_all(prefill);
  const auto first = prefill.plan(1);
  submit(prefill, 2, prompt(230));
  admit_all(prefill);
  CHECK(prefill.cached_tokens(RequestId{2}) == 0);
  REQUIRE(prefill.on_result(result_of(*first)));
  submit(prefill, 3, prompt(230));
  admit_all(prefill);
  CHECK(prefill.cached_tokens(RequestId{3}) == 192);
}

TEST_CASE("a prompt that came out as not a number leaves no checkpoint",
          "[engine][prefill][checkpoint]") {
  auto prefill = scheduler(limits());
  submit(prefill, 1, prompt(200));
  admit_all(prefill);
  const auto item = prefill.plan(1);
  const auto done = prefill.on_result(result_of(*item, -1));
  REQUIRE(done);
  CHECK(done->front().emitted.failed);
  prefill.release(RequestId{1});
  CHECK(pages_used(prefill) == 0);
}

TEST_CASE("pages larger than the grid get a cut of their own", "[engine][prefill][checkpoint]") {
  ExecutorLimits large = limits();
  large.page_tokens = 128;
  auto prefill = scheduler(large);
  uint64_t next = 1;
  const auto items = run_alone(prefill, 1, prompt(200), next);
  REQUIRE(items.size() == 2);
  CHECK(parts(items[0]) == std::vector<Part>{{1, 0, 128, false}});
  CHECK(items[0].slices[0].snapshot_slot != 0);
  CHECK(parts(items[1]) == std::vector<Part>{{1, 128, 72, true}});
}

TEST_CASE("a full pool makes a prompt wait until memory comes back", "[engine][prefill]") {
  auto prefill = scheduler(limits(9));
  submit(prefill, 1, prompt(400));
  submit(prefill, 2, prompt(400));
  admit_all(prefill);
  CHECK(prefill.admitted(RequestId{1}));
  CHECK(!prefill.admitted(RequestId{2}));
  prefill.release(RequestId{1});
  admit_all(prefill);
  CHECK(prefill.admitted(RequestId{2}));
}

TEST_CASE("cached prefixes give way to prompts that need their memory",
          "[engine][prefill][checkpoint]") {
  auto prefill = scheduler(limits(9));
  uint64_t next = 1;
  run_alone(prefill, 1, prompt(400), next);
  CHECK(pages_used(prefill) == 6);
  submit(prefill, 2, prompt(400, 5000));
  admit_all(prefill);
  CHECK(prefill.admitted(RequestId{2}));
}

TEST_CASE("what can never fit is told from what does not fit now", "[engine][prefill]") {
  const auto prefill = scheduler(limits(9));
  CHECK(prefill.fit(512) == Fit::fits);
  CHECK(prefill.fit(513) == Fit::exceeds_pool);
  CHECK(prefill.fit(1025) == Fit::exceeds_context);
}

TEST_CASE("a released prompt's tokens are dropped when its item comes back", "[engine][prefill]") {
  auto prefill = scheduler(limits());
  submit(prefill, 1, prompt(100));
  admit_all(prefill);
  const auto item = prefill.plan(1);
  prefill.release(RequestId{1});
  CHECK(pages_used(prefill) == 0);
  const auto done = prefill.on_result(result_of(*item));
  REQUIRE(done);
  CHECK(done->empty());
  CHECK(prefill.items_in_flight() == 0);
}

TEST_CASE("a reset forgets leases and cache and keeps the queue", "[engine][prefill]") {
  auto prefill = scheduler(limits(9));
  uint64_t next = 1;
  run_alone(prefill, 1, prompt(130), next);
  submit(prefill, 2, prompt(300));
  submit(prefill, 3, prompt(500, 700));
  admit_all(prefill);
  CHECK(prefill.reset() == std::vector<RequestId>{RequestId{2}});
  CHECK(pages_used(prefill) == 0);
  CHECK(prefill.queued() == 1);
  admit_all(prefill);
  CHECK(prefill.admitted(RequestId{3}));
}

TEST_CASE("a result that answers another item is a peer error and changes nothing",
          "[engine][prefill]") {
  auto prefill = scheduler(limits());
  submit(prefill, 1, prompt(10));
  admit_all(prefill);
  const auto item = prefill.plan(7);
  auto wrong = result_of(*item);
  wrong.id = 8;
  const auto refused = prefill.on_result(wrong);
  REQUIRE(!refused);
  CHECK(refused.error().kind == Kind::peer);
  CHECK(refused.error().message == "item result: expected item 7, got 8");
  auto others = result_of(*item);
  others.emitted[0].request = RequestId{9};
  CHECK(!prefill.on_result(others));
  CHECK(prefill.on_result(result_of(*item)));
}

TEST_CASE("limits that cannot be planned within are refused by name", "[engine][prefill]") {
  ExecutorLimits bad = limits();
  bad.prefill_rows_max = 63;
  auto refused = PrefillScheduler::create({.limits = bad});
  REQUIRE(!refused);
  CHECK(refused.error().message == "`prefill_rows_max`: expected at least 64, got 63");
  bad = limits();
  bad.page_tokens = 48;
  refused = PrefillScheduler::create({.limits = bad});
  REQUIRE(!refused);
  CHECK(refused.error().message == "`page_tokens`: expected a divisor or a multiple of 64, got 48");
}

namespace {

/// A host tier where a page takes 10 bytes and a slot 100.
ExecutorLimits tiered(uint32_t pages, uint64_t host_bytes, uint32_t slots = 9) {
  ExecutorLimits of = limits(pages, slots);
  of.host_bytes = host_bytes;
  of.host_page_bytes = 10;
  of.host_slot_bytes = 100;
  return of;
}

std::map<Move::What, size_t> kinds(const std::vector<Move>& moves) {
  std::map<Move::What, size_t> count;
  for (const Move& move : moves) ++count[move.what];
  return count;
}

Counters counted(const PrefillScheduler& prefill) {
  Counters counters;
  prefill.count(counters);
  return counters;
}

}  // namespace

TEST_CASE("what gives way is parked, and a prompt that begins as it did wakes it",
          "[engine][prefill][park]") {
  auto prefill = scheduler(tiered(9, 1000));
  uint64_t next = 1;
  const auto cold = run_alone(prefill, 1, prompt(400), next);
  const auto other = run_alone(prefill, 2, prompt(400, 5000), next);
  // six pages and the slot leave with the item that writes their successors
  CHECK(kinds(other[0].moves) ==
        std::map<Move::What, size_t>{{Move::What::park_page, 6}, {Move::What::park_slot, 1}});
  CHECK(other[0].after_moves == other[0].id);
  CHECK(other[0].moves[0].device == cold[0].slices[0].pages[0]);
  CHECK(other[1].moves.empty());
  const Counters parked = counted(prefill);
  CHECK(parked.prefixes_parked == 1);
  CHECK(parked.bytes_parked == 160);
  CHECK(parked.host_bytes_used == 160);
  CHECK(parked.host_prefixes == 1);

  const auto warm = run_alone(prefill, 3, prompt(420), next);
  REQUIRE(warm.size() == 1);
  CHECK(warm[0].slices[0].start == 384);
  CHECK(kinds(warm[0].moves) == std::map<Move::What, size_t>{{Move::What::park_page, 6},
                                                             {Move::What::park_slot, 1},
                                                             {Move::What::wake_page, 6},
                                                             {Move::What::wake_slot, 1}});
  CHECK(warm[0].after_moves == warm[0].id);
  // back from where it was parked to, into the pages that the prompt reads
  const Move& first = warm[0].moves[7];
  CHECK(first == Move{Move::What::wake_page, warm[0].slices[0].pages[0], other[0].moves[0].host});
  CHECK(warm[0].slot_copies ==
        std::vector<Copy>{{warm[0].moves.back().device, warm[0].slices[0].slot}});
  const Counters counters = counted(prefill);
  CHECK(counters.prefixes_woken == 1);
  CHECK(counters.bytes_woken == 160);
  CHECK(counters.cache_hits == 384);
  CHECK(counters.cache_hits_woken == 384);
}

TEST_CASE("what woke leaves again without a copy", "[engine][prefill][park]") {
  auto prefill = scheduler(tiered(9, 1000));
  uint64_t next = 1;
  run_alone(prefill, 1, prompt(400), next);
  run_alone(prefill, 2, prompt(400, 5000), next);
  run_alone(prefill, 3, prompt(385), next);
  const auto again = run_alone(prefill, 4, prompt(385, 5000), next);
  REQUIRE(again.size() == 1);
  CHECK(again[0].slices[0].start == 384);
  CHECK(kinds(again[0].moves) ==
        std::map<Move::What, size_t>{{Move::What::wake_page, 6}, {Move::What::wake_slot, 1}});
}

TEST_CASE("a prefix too short to park and one without room in host memory are dropped",
          "[engine][prefill][park]") {
  uint64_t next = 1;
  auto made = PrefillScheduler::create({.limits = tiered(9, 1000), .park_tokens_min = 385});
  REQUIRE(made);
  run_alone(*made, 1, prompt(400), next);
  CHECK(run_alone(*made, 2, prompt(400, 5000), next)[0].moves.empty());
  CHECK(counted(*made).prefixes_dropped == 1);
  auto small = scheduler(tiered(9, 159));
  run_alone(small, 1, prompt(400), next);
  CHECK(run_alone(small, 2, prompt(400, 5000), next)[0].moves.empty());
  CHECK(counted(small).prefixes_dropped == 1);
  // one that holds one makes room for the next
  auto one = scheduler(tiered(9, 160));
  run_alone(one, 1, prompt(400), next);
  run_alone(one, 2, prompt(400, 5000), next);
  run_alone(one, 3, prompt(400, 7000), next);
  const Counters counters = counted(one);
  CHECK(counters.prefixes_parked == 2);
  CHECK(counters.prefixes_dropped == 1);
  CHECK(counters.host_bytes_used == 160);
}

TEST_CASE("prompts whose memory is on the move are left out while others are ready",
          "[engine][prefill][park]") {
  auto prefill = scheduler(tiered(17, 1000), 8);
  uint64_t next = 1;
  run_alone(prefill, 1, prompt(400), next);
  submit(prefill, 2, prompt(639, 5000));
  admit_all(prefill);
  CHECK(parts(prefill.plan(next)) == std::vector<Part>{{2, 0, 256, false}});
  // its room is the parked prefix's, so the moves begin with the item beside it
  submit(prefill, 3, prompt(300, 9000));
  admit_all(prefill);
  REQUIRE(prefill.admitted(RequestId{3}));
  const auto beside = prefill.plan(next + 1);
  CHECK(parts(beside) == std::vector<Part>{{2, 256, 256, false}});
  CHECK(kinds(beside->moves).contains(Move::What::park_page));
  CHECK(beside->after_moves == 0);
  const auto last = prefill.plan(next + 2);
  CHECK(parts(last) == std::vector<Part>{{2, 512, 127, true}});
  SECTION("until the moves are told to be done") {
    prefill.moved(next + 1);
    const auto item = prefill.plan(next + 3);
    CHECK(parts(item) == std::vector<Part>{{3, 0, 256, false}});
  }
  SECTION("or nobody else is there, and it may wait on the device") {
    CHECK(!prefill.plan(next + 3, false));
    const auto item = prefill.plan(next + 3);
    CHECK(parts(item) == std::vector<Part>{{3, 0, 256, false}});
    CHECK(item->after_moves == next + 1);
  }
}

TEST_CASE("moves ride with an item that was planned elsewhere", "[engine][prefill][park]") {
  auto prefill = scheduler(tiered(9, 1000));
  uint64_t next = 1;
  run_alone(prefill, 1, prompt(400), next);
  submit(prefill, 2, prompt(400, 5000));
  admit_all(prefill);
  CHECK(!prefill.plan(next, false));
  Item step{.id = next};
  prefill.carry_moves(step);
  CHECK(step.moves.size() == 7);
  CHECK(step.after_moves == 0);
  const auto item = prefill.plan(next + 1);
  REQUIRE(item);
  CHECK(item->moves.empty());
  CHECK(item->after_moves == next);
}

TEST_CASE("a reset forgets what is parked and every move", "[engine][prefill][park]") {
  auto prefill = scheduler(tiered(9, 1000));
  uint64_t next = 1;
  run_alone(prefill, 1, prompt(400), next);
  submit(prefill, 2, prompt(400, 5000));
  admit_all(prefill);
  prefill.reset();
  CHECK(counted(prefill).host_bytes_used == 0);
  const auto items = run_alone(prefill, 3, prompt(400), next);
  CHECK(items[0].slices[0].start == 0);
  CHECK(items[0].moves.empty());
  CHECK(items[0].after_moves == 0);
}
