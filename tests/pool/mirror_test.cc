#include "kern/pool/mirror.h"

#include <catch2/catch.hpp>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "kern/pool/pool.h"

using namespace kern::pool;

namespace {

const Geometry kSmall{4, 10, 4, true, 8};
const Geometry kStateless{4, 10, 0, false, 8};

// Handles of one pool, and a mirror that is told of each.
class Told {
 public:
  explicit Told(const Geometry& geometry) : pool(geometry), mirror(geometry) {}

  void tell(const GrantRecord& grant) {
    CHECK(mirror.granted(grant).empty());
    log_granted(log, grant);
  }
  void tell(Lease lease) {
    tell(record(++ids, lease, pool.geometry()));
    handles.emplace(ids, std::move(lease));
  }
  void tell(Checkpoint checkpoint, const Copies& copies) {
    tell(record(++ids, checkpoint, copies));
    handles.emplace(ids, std::move(checkpoint));
  }
  void drop(uint64_t id) {
    handles.erase(id);
    CHECK(mirror.returned(id).empty());
    log_returned(log, id);
  }
  // One operation out of two numbers; most are denied or have nothing to work on.
  void step(uint32_t which, uint32_t number) {
    const uint32_t len = 1 + number % 11, tokens = len + number % 7;
    if (handles.empty() || which == 0) {
      if (auto lease = pool.lease(tokens)) tell(*std::move(lease));
      return;
    }
    const auto it = std::next(handles.begin(), number % static_cast<uint32_t>(handles.size()));
    const uint64_t id = it->first;
    if (which == 1) return drop(id);
    if (auto* lease = std::get_if<Lease>(&it->second)) {
      if (len > lease->capacity()) return;
      if (which == 2) {
        if (auto fork = pool.fork(*lease, len, tokens)) tell(std::move(fork->lease));
      } else if (which == 3) {
        if (auto frozen = pool.checkpoint(*lease, len))
          tell(std::move(frozen->checkpoint), frozen->copies);
      } else {
        tell(pool.retire(std::move(*lease), len), {});  // before the lease is told to have gone
        drop(id);
      }
      return;
    }
    const Checkpoint& checkpoint = std::get<Checkpoint>(it->second);
    if (which == 2) return tell(checkpoint.share(), {});
    auto restored = pool.restore(checkpoint, checkpoint.len(), checkpoint.len() + number % 7);
    if (restored) tell(std::move(restored->lease));
  }
  void verify() const {
    for (const auto& [id, handle] : handles) {
      const auto pages = std::visit(
          [](const auto& held) {
            const auto all = held.view().pages();
            return std::vector<PageId>(all.begin(), all.end());
          },
          handle);
      REQUIRE(mirror.find(id) != nullptr);
      REQUIRE(mirror.find(id)->pages.size() == pages.size());
      for (uint32_t i = 0; i < pages.size(); ++i)
        REQUIRE(mirror.spot(id, i * 4 + 1) == Spot{pages[i].value(), 1});
    }
    const Occupancy& now = pool.occupancy();
    REQUIRE(mirror.held() ==
            Amount{now.pages_leased + now.pages_frozen, now.slots_leased + now.slots_frozen});
  }

  Pool pool;
  Mirror mirror;
  std::map<uint64_t, std::variant<Lease, Checkpoint>> handles;
  std::vector<uint8_t> log;
  uint64_t ids = 0;
};

}  // namespace

TEST_CASE("a mirror says where each position of a lease belongs", "[pool][mirror]") {
  Pool pool(kSmall);
  Mirror mirror(kSmall);
  const auto lease = pool.lease(9);
  REQUIRE(lease);
  CHECK(mirror.granted(record(7, *lease, kSmall)).empty());
  CHECK(mirror.spot(7, 6) == Spot{2, 2});
  CHECK_FALSE(mirror.spot(7, 12));
  CHECK_FALSE(mirror.spot(8, 0));
  CHECK(mirror.find(7)->slot == 1);
  CHECK(mirror.returned(7).empty());
  CHECK(mirror.held() == Amount{});
}

TEST_CASE("a mirror agrees with the pool it mirrors over random operations",
          "[pool][mirror][prop]") {
  for (const Geometry& geometry : {kSmall, kStateless}) {
    Told told(geometry);
    uint64_t state = 12345;
    for (int i = 0; i < 1000; ++i) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      told.step(static_cast<uint32_t>(state >> 33) % 5, static_cast<uint32_t>(state >> 40));
      told.verify();
    }
    CHECK(told.ids > 200);
  }
}

TEST_CASE("a mirror that replays the log of another process holds what that one holds",
          "[pool][mirror][prop]") {
  for (const Geometry& geometry : {kSmall, kStateless}) {
    Told told(geometry);
    Mirror replayed(geometry);
    uint64_t state = 999;
    size_t at = 0;
    for (int i = 0; i < 1000; ++i) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      told.step(static_cast<uint32_t>(state >> 33) % 5, static_cast<uint32_t>(state >> 40));
      // What has come so far, cut anywhere: the rest of an event is waited for.
      const size_t come = at + (told.log.size() - at) * ((state >> 20) % 5) / 4;
      const Replayed done = replayed.replay(std::span(told.log).subspan(at, come - at));
      REQUIRE(done.why.empty());
      at += done.bytes;
    }
    REQUIRE(replayed.replay(std::span(told.log).subspan(at)).bytes == told.log.size() - at);
    CHECK(replayed.held() == told.mirror.held());
    for (const auto& [id, handle] : told.handles)
      CHECK(*replayed.find(id) == *told.mirror.find(id));
  }
}

TEST_CASE("a log that says what cannot be is refused with the byte where it does",
          "[pool][mirror]") {
  std::vector<uint8_t> log;
  log_granted(log, {1, {1, 2}, 0, 1, false});
  const size_t first = log.size();
  log_granted(log, {2, {2}, 0, 2, false});
  Mirror mirror(kSmall);
  const Replayed done = mirror.replay(log);
  CHECK(done.bytes == first);
  CHECK(done.why == "log at byte 30: grant 2, page 0: expected a free one, got 2");
  CHECK(mirror.held() == Amount{2, 1});
  const auto refused = [](std::vector<uint8_t> bytes) { return Mirror(kSmall).replay(bytes).why; };
  CHECK(refused({7}) == "log at byte 0: event: expected 1 or 2, got 7");
  log.resize(first);
  log[9] = 9;
  CHECK(refused(log) == "log at byte 0: pages: expected at most 8, got 9");
  log[9] = 2;
  log[21] = 2;
  CHECK(refused(log) == "log at byte 0: slot shared: expected 0 or 1, got 2");
  log.clear();
  log_returned(log, 5);
  CHECK(refused(log) == "log at byte 0: return 5: expected a handle that was granted, got none");
}

TEST_CASE("any change to a log's bytes is refused or tells of another grant, and nothing worse",
          "[pool][mirror][prop]") {
  std::vector<uint8_t> log;
  for (uint32_t i = 1; i <= 3; ++i) log_granted(log, {i, {2 * i, 2 * i + 1}, 0, i, false});
  log_returned(log, 2);
  for (size_t at = 0; at < log.size(); ++at)
    for (int bit = 0; bit < 8; ++bit) {
      std::vector<uint8_t> changed = log;
      changed[at] ^= static_cast<uint8_t>(1 << bit);
      Mirror mirror(kSmall);
      const Replayed done = mirror.replay(changed);
      CHECK(done.bytes <= log.size());
      CHECK(mirror.held().pages <= 9);
    }
}

TEST_CASE("a record that contradicts those before is refused and changes nothing",
          "[pool][mirror]") {
  Mirror mirror(kSmall);
  REQUIRE(mirror.granted({1, {1, 2}, 0, 1, false}).empty());
  const auto says = [&](const GrantRecord& record) { return mirror.granted(record); };
  CHECK(says({1, {3}, 0, 2, false}) ==
        "grant 1, id: expected one not in use, got it a second time");
  CHECK(says({2, {}, 0, 2, false}) == "grant 2, pages: expected 1 to 8, got 0");
  CHECK(says({2, {3}, 2, 2, false}) == "grant 2, pages shared: expected at most 1, got 2");
  CHECK(says({2, {10}, 0, 2, false}) == "grant 2, page 0: expected 1 to 9, got 10");
  CHECK(says({2, {1, 2}, 1, 2, false}) == "grant 2, page 1: expected a free one, got 2");
  CHECK(says({2, {3}, 1, 2, false}) == "grant 2, page 0: expected one that is held, got 3");
  CHECK(says({2, {3, 3}, 0, 2, false}) == "grant 2, pages: expected each once");
  CHECK(says({2, {3}, 0, 1, false}) == "grant 2, slot: expected a free one, got 1");
  CHECK(says({2, {3}, 0, 0, false}) == "grant 2, slot: expected 1 to 3, got 0");
  CHECK(mirror.returned(2) == "return 2: expected a handle that was granted, got none");
  CHECK(mirror.held() == Amount{2, 1});
  CHECK(Mirror(kStateless).granted({1, {1}, 0, 1, false}) ==
        "grant 1, slot: expected none without recurrent state, got 1");
}

TEST_CASE("a mirror tells what a woken prefix brought back from what was awake",
          "[pool][mirror][host]") {
  const Geometry tiered{4, 20, 6, true, 8, 1000, 100, 150};
  Pool pool(tiered);
  Mirror mirror(tiered);
  auto first = pool.retire(*pool.lease(8), 8);
  auto turn = pool.restore(first, 8, 12);
  std::optional<Checkpoint> second = pool.retire(std::move(turn->lease), 12);
  const auto slept = pool.park(*second);
  REQUIRE(slept);
  REQUIRE(mirror.granted(record(1, first, Copies{})) ==
          "grant 1, page 0: expected one that is held, got 1");  // told as shared: it is not
  REQUIRE(mirror.granted({1, {1, 2}, 0, 1, false}).empty());
  second.reset();
  const auto woken = pool.wake(slept->parked, 12);
  REQUIRE(woken);
  const GrantRecord told = record(2, *woken);
  CHECK(told.pages_shared == 2);
  CHECK_FALSE(told.slot_shared);
  CHECK(mirror.granted(told).empty());
  const auto again = pool.wake(slept->parked, 12);
  CHECK(record(3, *again).pages_shared == 3);
  CHECK(record(3, *again).slot_shared);
  CHECK(mirror.granted(record(3, *again)).empty());
  CHECK(mirror.held() == Amount{3, 2});
}
