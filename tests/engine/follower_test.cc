#include "kern/engine/follower.h"

#include <catch2/catch.hpp>

#include "fixtures.h"

using namespace kern;
using namespace kern::engine;

namespace {

Item item(uint64_t id) {
  return {.id = id};
}

SendState send(uint64_t generation, uint64_t after, Epoch epoch = 1) {
  return {.epoch = epoch,
          .request = RequestId{1},
          .generation = Generation{generation},
          .after_item = after,
          .tokens = 100};
}

/// A stage in epoch 1, at rest.
StageFollower stage() {
  StageFollower stage;
  stage.on_command(ResetEpoch{1});
  const auto actions = stage.take_actions();
  REQUIRE(actions.reports.size() == 1);
  REQUIRE(std::get<EpochReady>(actions.reports[0]).epoch == 1);
  return stage;
}

ExpectParts expectation(uint64_t generation) {
  return {.epoch = 1,
          .request = RequestId{1},
          .generation = Generation{generation},
          .tokens = 100,
          .place = {.slot = 2, .pages = {3, 4}}};
}

RankFollower rank() {
  RankFollower rank({"kv", "line"});
  rank.on_command(ResetEpoch{1});
  (void)rank.take_actions();
  return rank;
}

PartHeader part(uint64_t generation, std::string state) {
  return {.request = RequestId{1},
          .generation = Generation{generation},
          .state = std::move(state),
          .tokens = 100};
}

}  // namespace

TEST_CASE("a stage runs one item at a time in order", "[engine][follower]") {
  auto one = stage();
  one.on_command(RunItem{1, item(1)});
  one.on_command(RunItem{1, item(2)});
  auto actions = one.take_actions();
  REQUIRE(actions.run);
  CHECK(actions.run->id == 1);
  CHECK(actions.run_epoch == 1);
  CHECK(!one.take_actions().run);
  one.on_item_done({.id = 1});
  actions = one.take_actions();
  REQUIRE(actions.run);
  CHECK(actions.run->id == 2);
  REQUIRE(actions.reports.size() == 1);
  CHECK(std::get<ItemDone>(actions.reports[0]).result.id == 1);
}

TEST_CASE("parts are sent once the item that completes the prompt has run", "[engine][follower]") {
  auto one = stage();
  one.on_command(RunItem{1, item(1)});
  one.on_command(RunItem{1, item(2)});
  one.on_command(send(7, 2));
  CHECK(one.take_actions().send.empty());
  one.on_item_done({.id = 1});
  CHECK(one.take_actions().send.empty());
  one.on_item_done({.id = 2});
  CHECK(one.take_actions().send.size() == 1);
  one.on_sent(Generation{7}, true, "");
  const auto actions = one.take_actions();
  REQUIRE(actions.reports.size() == 1);
  CHECK(std::get<PartsSent>(actions.reports[0]).whole);
}

TEST_CASE("a cancelled send is reported once, started or not", "[engine][follower]") {
  auto one = stage();
  one.on_command(send(7, 5));
  one.on_command(CancelSend{Generation{7}});
  auto actions = one.take_actions();
  REQUIRE(actions.reports.size() == 1);
  CHECK(!std::get<PartsSent>(actions.reports[0]).whole);
  CHECK(actions.cancel.empty());

  one.on_command(RunItem{1, item(1)});
  one.on_item_done({.id = 1});
  one.on_command(send(8, 1));
  (void)one.take_actions();
  one.on_command(CancelSend{Generation{8}});
  actions = one.take_actions();
  CHECK(actions.cancel == std::vector<Generation>{Generation{8}});
  CHECK(actions.reports.empty());
  one.on_sent(Generation{8}, false, "cancelled");
  CHECK(one.take_actions().reports.size() == 1);
}

TEST_CASE("an epoch is ready once the device and the sends of the last one rest",
          "[engine][follower]") {
  auto one = stage();
  one.on_command(RunItem{1, item(1)});
  one.on_item_done({.id = 1});
  one.on_command(RunItem{1, item(2)});
  one.on_command(RunItem{1, item(3)});
  one.on_command(send(7, 1));
  (void)one.take_actions();
  one.on_command(ResetEpoch{2});
  auto actions = one.take_actions();
  CHECK(actions.cancel.size() == 1);
  CHECK(actions.reports.empty());
  one.on_sent(Generation{7}, false, "cancelled");
  CHECK(one.take_actions().reports.empty());
  one.on_item_done({.id = 2});
  actions = one.take_actions();
  // item 3 is gone, item 2 is nobody's, and the stage is ready
  CHECK(!actions.run);
  REQUIRE(actions.reports.size() == 1);
  CHECK(std::get<EpochReady>(actions.reports[0]).epoch == 2);
  one.on_command(RunItem{1, item(4)});
  CHECK(!one.take_actions().run);
}

TEST_CASE("a rank lands once every state has come, each once", "[engine][follower]") {
  auto one = rank();
  one.on_command(expectation(7));
  auto actions = one.take_actions();
  REQUIRE(actions.reports.size() == 1);
  CHECK(std::get<RankExpecting>(actions.reports[0]).generation == Generation{7});
  const auto place = one.accept(part(7, "kv"));
  REQUIRE(place);
  CHECK(place->place == Place{2, {3, 4}});
  one.on_part(part(7, "kv"), true);
  CHECK(one.take_actions().reports.empty());
  CHECK(one.accept(part(7, "kv")).error().message ==
        "part `kv` of generation 7: it is here already");
  one.on_part(part(7, "line"), true);
  actions = one.take_actions();
  REQUIRE(actions.reports.size() == 1);
  CHECK(std::get<RankLanded>(actions.reports[0]).whole);
  CHECK(one.expected() == 0);
}

TEST_CASE("a part that nobody expects is refused with its reason", "[engine][follower]") {
  auto one = rank();
  one.on_command(expectation(7));
  CHECK(one.accept(part(6, "kv")).error().message == "part `kv`: generation 6 is not expected");
  CHECK(one.accept(part(7, "other")).error().message ==
        "part `other`: no state of this rank has that name");
  PartHeader shorter = part(7, "kv");
  shorter.tokens = 99;
  CHECK(one.accept(shorter).error().message ==
        "part `kv` of generation 7: expected 100 tokens of request 1, got 99 of 1");
  one.on_command(StopExpecting{Generation{7}});
  CHECK(!one.accept(part(7, "kv")));
}

TEST_CASE("a hand-off that ends before it has landed is revoked, once", "[engine][follower]") {
  using Revoked = std::vector<std::pair<RequestId, Generation>>;
  auto one = rank();
  for (const uint64_t generation : {7, 8, 9}) one.on_command(expectation(generation));
  CHECK(one.take_actions().revoked.empty());
  CHECK(one.tokens_expected(Generation{7}) == 100);

  one.on_command(StopExpecting{Generation{7}});
  CHECK(one.take_actions().revoked == Revoked{{RequestId{1}, Generation{7}}});
  CHECK(!one.tokens_expected(Generation{7}));
  one.on_command(StopExpecting{Generation{7}});
  CHECK(one.take_actions().revoked.empty());

  one.on_part(part(8, "kv"), false);  // the line may still be on its way
  CHECK(one.take_actions().revoked == Revoked{{RequestId{1}, Generation{8}}});

  one.on_command(ResetEpoch{2});
  CHECK(one.take_actions().revoked == Revoked{{RequestId{1}, Generation{9}}});
}

TEST_CASE("a hand-off that has landed is not revoked and leaves nothing", "[engine][follower]") {
  auto one = rank();
  one.on_command(expectation(7));
  one.on_part(part(7, "kv"), true);
  one.on_part(part(7, "line"), true);
  CHECK(one.take_actions().revoked.empty());
  CHECK(one.expected() == 0);
  one.on_head_lost();
  CHECK(one.take_actions().revoked.empty());
}

TEST_CASE("a part that does not match its digest fails its generation alone",
          "[engine][follower]") {
  auto one = rank();
  one.on_command(expectation(7));
  one.on_command(expectation(8));
  (void)one.take_actions();
  one.on_part(part(7, "kv"), false);
  const auto actions = one.take_actions();
  REQUIRE(actions.reports.size() == 1);
  const auto& landed = std::get<RankLanded>(actions.reports[0]);
  CHECK(!landed.whole);
  CHECK(landed.why == "part `kv` does not match its digest");
  CHECK(!one.accept(part(7, "line")));
  CHECK(one.accept(part(8, "kv")));
}

TEST_CASE("a rank's new epoch waits for the running item and forgets what was expected",
          "[engine][follower]") {
  auto one = rank();
  one.on_command(expectation(7));
  one.on_command(RunItem{1, item(1)});
  (void)one.take_actions();
  one.on_command(ResetEpoch{2});
  CHECK(one.take_actions().reports.empty());
  CHECK(!one.accept(part(7, "kv")));
  one.on_item_done({.id = 1});
  const auto actions = one.take_actions();
  REQUIRE(actions.reports.size() == 1);
  CHECK(std::get<EpochReady>(actions.reports[0]).epoch == 2);
}

TEST_CASE("a rank starts a second item before the first has ended, and no third",
          "[engine][follower]") {
  auto one = rank();
  const auto started = [](const RankFollower::Actions& actions) {
    std::vector<uint64_t> ids;
    for (const Item& run : actions.runs) ids.push_back(run.id);
    return ids;
  };
  using Ids = std::vector<uint64_t>;
  for (const uint64_t id : {1, 2, 3, 4}) one.on_command(RunItem{1, item(id)});
  CHECK(started(one.take_actions()) == Ids{1, 2});
  one.on_item_done({.id = 1});
  auto actions = one.take_actions();
  CHECK(started(actions) == Ids{3});
  CHECK(std::get<ItemDone>(actions.reports.at(0)).result.id == 1);
  one.on_command(ResetEpoch{2});
  one.on_command(RunItem{2, item(5)});
  CHECK(started(one.take_actions()).empty());
  one.on_item_done({.id = 2});
  actions = one.take_actions();
  CHECK(actions.reports.empty());  // one still runs
  CHECK(started(actions).empty());
  one.on_item_done({.id = 3});
  actions = one.take_actions();
  CHECK(std::get<EpochReady>(actions.reports.at(0)).epoch == 2);
  CHECK(started(actions) == Ids{5});
}
