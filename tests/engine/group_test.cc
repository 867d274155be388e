#include "kern/engine/group.h"

#include <catch2/catch.hpp>

#include "fixtures.h"

using namespace kern;
using namespace kern::engine;
using namespace kern::engine::fixtures;

namespace {

constexpr Generation kG{5};

/// A group whose ranks are at rest and which has a head.
struct Fixture {
  explicit Fixture(uint32_t ranks = 2, uint32_t pages = 33, bool feeds = false) {
    auto made = DecodeGroupHead::create({.hello = hello(ranks, pages), .feeds = feeds});
    REQUIRE(made);
    group.emplace(std::move(*made));
    for (uint32_t rank = 0; rank < ranks; ++rank) group->on_rank_up(static_cast<int32_t>(rank), 0);
    (void)group->take_output();
    CHECK(!group->joined());
    for (uint32_t rank = 0; rank < ranks; ++rank) say(rank, EpochReady{1});
    REQUIRE(group->joined());
    group->on_head_up(0);
    const auto output = group->take_output();
    REQUIRE(output.head.size() == 1);
    CHECK(std::get<GroupHello>(output.head[0]) == hello(ranks, pages));
  }
  void say(uint32_t rank, const RankReport& report) {
    group->on_rank_report(static_cast<int32_t>(rank), report, 0);
  }
  GroupOutput ask(Generation generation, uint32_t prompt = 200, int32_t max_tokens = 10) {
    group->on_head_command(Ask{.request = RequestId{generation.value()},
                               .generation = generation,
                               .prompt_tokens = prompt,
                               .max_tokens = max_tokens,
                               .fill_within = kSecondNs},
                           0);
    return group->take_output();
  }
  /// Asks and lets both ranks expect; returns the place.
  Place granted(Generation generation) {
    (void)ask(generation);
    for (uint32_t rank = 0; rank < 2; ++rank) say(rank, RankExpecting{1, generation});
    return std::get<Granted>(group->take_output().head.at(0)).place;
  }
  /// A sequence that runs; returns the first step.
  Item running(Generation generation) {
    granted(generation);
    group->on_head_command(Begin{generation, 3}, 0);
    for (uint32_t rank = 0; rank < 2; ++rank) say(rank, RankLanded{1, generation});
    return std::get<RunItem>(group->take_output().ranks.at(0).command).item;
  }
  std::optional<DecodeGroupHead> group;
};

template <class T, class V>
size_t count(const std::vector<V>& messages) {
  size_t found = 0;
  for (const V& message : messages) found += std::holds_alternative<T>(message);
  return found;
}

}  // namespace

TEST_CASE("a rank's pages follow from the rows it holds", "[engine][group]") {
  CHECK(rank_pages(1, 8, 64) == 1);
  CHECK(rank_pages(512, 8, 64) == 1);
  CHECK(rank_pages(513, 8, 64) == 2);
  CHECK(rank_pages(513, 1, 64) == 9);
}

TEST_CASE("a grant is given once every rank expects the parts", "[engine][group]") {
  Fixture one;
  const auto asked = one.ask(kG);
  CHECK(asked.head.empty());
  REQUIRE(asked.ranks.size() == 2);
  const auto& expect = std::get<ExpectParts>(asked.ranks[1].command);
  CHECK(expect.tokens == 200);
  CHECK(expect.place.pages.size() == 2);  // ceil(ceil(210 / 2) / 64)
  one.say(0, RankExpecting{1, kG});
  CHECK(one.group->take_output().head.empty());
  one.say(1, RankExpecting{1, kG});
  const auto output = one.group->take_output();
  REQUIRE(output.head.size() == 1);
  CHECK(std::get<Granted>(output.head[0]).place == expect.place);
}

TEST_CASE("a sequence runs once it has landed on all ranks and its first token is known",
          "[engine][group]") {
  Fixture one;
  const Place place = one.granted(kG);
  one.say(0, RankLanded{1, kG});
  CHECK(one.group->take_output().head.empty());
  one.say(1, RankLanded{1, kG});
  auto output = one.group->take_output();
  CHECK(count<Landed>(output.head) == 1);
  CHECK(output.ranks.empty());
  one.group->on_head_command(Begin{kG, 3}, 0);
  output = one.group->take_output();
  REQUIRE(output.ranks.size() == 2);
  const Item item = std::get<RunItem>(output.ranks[1].command).item;
  CHECK(item.slices[0].start == 200);
  CHECK(item.slices[0].tokens == std::vector<Token>{3});
  CHECK(item.slices[0].draw == 1);
  CHECK(place.pages.size() == 2);
  CHECK(item.slices[0].pages == place.pages);
}

TEST_CASE("rank 0's tokens go up and the next step starts at once", "[engine][group]") {
  Fixture one;
  const Item item = one.running(kG);
  one.say(0, ItemDone{1, result_of(item, 9)});
  const auto output = one.group->take_output();
  REQUIRE(output.head.size() == 1);
  const auto& tokens = std::get<StepTokens>(output.head[0]).tokens;
  CHECK(tokens[0].generation == kG);
  CHECK(tokens[0].index == 1);
  CHECK(tokens[0].emitted.token == 9);
  REQUIRE(output.ranks.size() == 2);
  CHECK(std::get<RunItem>(output.ranks[0].command).item.slices[0].start == 201);
}

TEST_CASE("memory comes back once every rank has run the last step that names it",
          "[engine][group]") {
  Fixture one;
  const Item item = one.running(kG);
  one.group->on_head_command(Abort{kG}, 0);
  auto output = one.group->take_output();
  REQUIRE(output.head.size() == 1);
  CHECK(std::get<Ended>(output.head[0]).reason == EndReason::aborted);
  one.say(0, ItemDone{1, result_of(item)});
  CHECK(one.group->take_output().head.empty());
  CHECK(!one.group->idle());
  one.say(1, ItemDone{1, result_of(item)});
  CHECK(count<Released>(one.group->take_output().head) == 1);
  CHECK(one.group->idle());
  CHECK(one.group->counters().pages_used == 0);
}

TEST_CASE("a grant that is not filled in time is reclaimed and its parts are refused",
          "[engine][group]") {
  Fixture one;
  one.granted(kG);
  CHECK(one.group->wake_at() == kSecondNs);
  one.group->tick(kSecondNs - 1);
  CHECK(one.group->take_output().head.empty());
  one.group->tick(kSecondNs);
  const auto output = one.group->take_output();
  REQUIRE(output.head.size() == 2);
  CHECK(std::get<Ended>(output.head[0]).reason == EndReason::expired);
  CHECK(std::get<Released>(output.head[1]).generation == kG);
  REQUIRE(output.ranks.size() == 2);
  CHECK(std::get<StopExpecting>(output.ranks[0].command).generation == kG);
  one.group->on_head_command(Begin{kG, 3}, kSecondNs);
  CHECK(one.group->counters().late_messages == 1);
}

TEST_CASE("room that is not there now is told from room that never is", "[engine][group]") {
  Fixture one(2, 4);
  one.granted(kG);
  const auto reason = [](const GroupOutput& output) {
    return std::get<Refused>(output.head.at(0)).reason;
  };
  CHECK(reason(one.ask(Generation{6})) == RefusalReason::busy);
  CHECK(reason(one.ask(Generation{7}, 500, 100)) == RefusalReason::exceeds_pool);
  CHECK(reason(one.ask(Generation{8}, 1020, 100)) == RefusalReason::exceeds_row);
}

TEST_CASE("a damaged part ends its generation alone", "[engine][group]") {
  Fixture one;
  one.granted(kG);
  one.granted(Generation{6});
  one.say(1, RankLanded{1, kG, false, "part `kv` does not match its digest"});
  const auto output = one.group->take_output();
  REQUIRE(output.head.size() == 2);
  CHECK(std::get<Ended>(output.head[0]).reason == EndReason::landing_failed);
  CHECK(std::get<Released>(output.head[1]).generation == kG);
  CHECK(one.group->counters().granted == 1);
}

TEST_CASE("a lost rank ends everything, drops the head and starts an epoch", "[engine][group]") {
  Fixture one;
  one.running(kG);
  one.group->on_rank_lost(1, 0);
  auto output = one.group->take_output();
  CHECK(output.drop_head);
  CHECK(output.head.empty());
  CHECK(one.group->idle());
  CHECK(!one.group->joined());
  one.group->on_rank_up(1, 0);
  output = one.group->take_output();
  REQUIRE(output.ranks.size() == 2);
  const Epoch epoch = std::get<ResetEpoch>(output.ranks[1].command).epoch;
  one.say(0, EpochReady{epoch});
  CHECK(!one.group->joined());
  one.say(1, EpochReady{epoch});
  CHECK(one.group->joined());
}

TEST_CASE("a lost head frees everything and late commands are refused", "[engine][group]") {
  Fixture one;
  one.running(kG);
  one.group->on_head_lost(0);
  const auto output = one.group->take_output();
  CHECK(!output.drop_head);
  REQUIRE(output.ranks.size() == 2);
  CHECK(std::holds_alternative<ResetEpoch>(output.ranks[0].command));
  CHECK(one.group->counters().pages_used == 0);
  CHECK(one.ask(Generation{9}).head.empty());
  CHECK(one.group->counters().late_messages == 1);
}

TEST_CASE("a rank that answers another step than it was given is dropped", "[engine][group]") {
  Fixture one;
  const Item item = one.running(kG);
  ItemResult wrong = result_of(item);
  wrong.id = item.id + 1;
  one.say(1, ItemDone{1, wrong});
  const auto output = one.group->take_output();
  CHECK(output.dropped_ranks == std::vector<int32_t>{1});
  CHECK(output.drop_head);
}

TEST_CASE("ranks that choose different tokens end the epoch", "[engine][group]") {
  for (const uint32_t first : {0U, 1U}) {
    Fixture one;
    const Item step = one.running(kG);
    const auto result = [&](Token token) {
      return ItemDone{1, {step.id, {{.request = RequestId{kG.value()}, .token = token}}}};
    };
    one.say(first, result(7));
    CHECK(one.group->counters().disagreements == 0);
    (void)one.group->take_output();
    one.say(1 - first, result(8));
    CHECK(one.group->counters().disagreements == 1);
    const auto output = one.group->take_output();
    CHECK(output.dropped_ranks == std::vector<int32_t>{static_cast<int32_t>(1 - first)});
    CHECK(output.drop_head);
  }
}

TEST_CASE("what agreed is forgotten once every rank has run it", "[engine][group]") {
  Fixture one;
  Item step = one.running(kG);
  for (Token token = 10; token < 15; ++token) {
    for (uint32_t rank = 0; rank < 2; ++rank)
      one.say(rank, ItemDone{1, {step.id, {{.request = RequestId{kG.value()}, .token = token}}}});
    const auto output = one.group->take_output();
    CHECK(output.dropped_ranks.empty());
    step = std::get<RunItem>(output.ranks.at(0).command).item;
  }
}

TEST_CASE(
    "a group that feeds tokens plans a step behind the one in flight, and memory waits for it",
    "[engine][group]") {
  Fixture one(2, 33, true);
  one.granted(kG);
  one.group->on_head_command(Begin{kG, 3}, 0);
  for (uint32_t rank = 0; rank < 2; ++rank) one.say(rank, RankLanded{1, kG});
  auto output = one.group->take_output();
  std::vector<Item> steps;  // as rank 0 gets them
  for (const ToRank& to : output.ranks)
    if (to.rank == 0) steps.push_back(std::get<RunItem>(to.command).item);
  REQUIRE(steps.size() == 2);
  CHECK(steps[1].slices[0].fed_from == 0);
  CHECK(steps[1].slices[0].start == steps[0].slices[0].start + 1);

  one.group->on_head_command(Abort{kG}, 0);
  output = one.group->take_output();
  CHECK(count<Ended>(output.head) == 1);
  const auto released = [&](const Item& step) {
    for (uint32_t rank = 0; rank < 2; ++rank)
      one.say(rank, ItemDone{1, {step.id, {{.request = RequestId{kG.value()}, .token = 5}}}});
    return count<Released>(one.group->take_output().head);
  };
  CHECK(released(steps[0]) == 0);  // the second still writes there
  CHECK(released(steps[1]) == 1);
}
