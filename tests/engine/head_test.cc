#include "kern/engine/head.h"

#include <catch2/catch.hpp>

#include "fixtures.h"

using namespace kern;
using namespace kern::engine;
using namespace kern::engine::fixtures;

namespace {

/// A head of two stages that are at rest, and one group.
struct Fixture {
  explicit Fixture(HeadOptions options = {}, bool with_group = true) {
    options.stages = 2;
    if (options.limits.pages == 0) options.limits = limits();
    auto made = PrefillHead::create(options);
    REQUIRE(made);
    head.emplace(std::move(*made));
    form();
    if (with_group) group = join(hello());
    (void)take();
  }
  /// Brings both stages up and to rest.
  void form() {
    for (int32_t stage = 0; stage < 2; ++stage) head->on_stage_up(stage, now);
    rest();
  }
  void rest() {
    const HeadOutput output = take();
    for (const ToStage& one : output.stages)
      if (const auto* reset = std::get_if<ResetEpoch>(&one.command)) epoch = reset->epoch;
    for (int32_t stage = 0; stage < 2; ++stage)
      head->on_stage_report(stage, EpochReady{epoch}, now);
  }
  GroupId join(GroupHello said) {
    auto id = head->on_group_up(std::move(said), now);
    REQUIRE(id);
    return *id;
  }
  HeadOutput take() { return head->take_output(); }
  HeadOutput submit(uint64_t id, size_t length = 100, int32_t max_tokens = 10) {
    head->submit({.id = RequestId{id}, .prompt = prompt(length), .max_tokens = max_tokens}, now);
    return take();
  }
  void say(const GroupReport& report) { head->on_group_report(group, report, now); }
  HeadOutput ran(const Item& item, Token token = 5) {
    head->on_stage_report(0, ItemDone{epoch, {.id = item.id}}, now);
    head->on_stage_report(1, ItemDone{epoch, result_of(item, token)}, now);
    return take();
  }
  HeadOutput sent(Generation generation, bool whole = true) {
    for (int32_t stage = 0; stage < 2; ++stage)
      head->on_stage_report(stage, PartsSent{generation, whole, "why"}, now);
    return take();
  }
  /// A request whose prompt has run and whose parts are on their way.
  Generation sending(uint64_t id) {
    const HeadOutput output = submit(id);
    const auto ask = std::get<Ask>(output.groups.at(0).command);
    const Item item = std::get<RunItem>(output.stages.at(0).command).item;
    say(Granted{ask.generation, {.slot = 1, .pages = {1, 2}}});
    ran(item);
    return ask.generation;
  }
  /// A request that runs on the group.
  Generation running(uint64_t id) {
    const Generation generation = sending(id);
    say(Landed{generation});
    sent(generation);
    return generation;
  }
  std::optional<PrefillHead> head;
  GroupId group;
  Epoch epoch = 0;
  TimeNs now = 1;
};

template <class T>
const T* first(const std::vector<ToStage>& commands) {
  for (const ToStage& one : commands)
    if (const T* found = std::get_if<T>(&one.command)) return found;
  return nullptr;
}
template <class T>
const T* first(const std::vector<ToGroup>& commands) {
  for (const ToGroup& one : commands)
    if (const T* found = std::get_if<T>(&one.command)) return found;
  return nullptr;
}
const FailedEvent* failure(const HeadOutput& output) {
  for (const RequestEvent& event : output.events)
    if (const auto* failed = std::get_if<FailedEvent>(&event.what)) return failed;
  return nullptr;
}
const FinishedEvent* finish(const HeadOutput& output) {
  for (const RequestEvent& event : output.events)
    if (const auto* finished = std::get_if<FinishedEvent>(&event.what)) return finished;
  return nullptr;
}

Emitted token_of(uint64_t id, Token token) {
  return {.request = RequestId{id}, .token = token};
}

}  // namespace

TEST_CASE("an epoch is formed when every stage is up and at rest", "[engine][head]") {
  Fixture one({}, false);
  CHECK(!one.head->ready());
  one.join(hello());
  CHECK(one.head->ready());
  one.head->on_stage_lost(1, one.now);
  CHECK(!one.head->ready());
  one.head->on_stage_up(1, one.now);
  one.rest();
  CHECK(one.head->ready());
}

TEST_CASE("a request goes from asked to released", "[engine][head][handoff]") {
  Fixture one;
  HeadOutput output = one.submit(1, 100, 3);
  const auto* ask = first<Ask>(output.groups);
  REQUIRE(ask);
  CHECK(ask->prompt_tokens == 100);
  CHECK(ask->max_tokens == 3);
  REQUIRE(output.stages.size() == 2);
  const Item item = std::get<RunItem>(output.stages[1].command).item;
  const Generation generation = ask->generation;

  one.say(Granted{generation, {.slot = 1, .pages = {1, 2}}});
  output = one.take();
  REQUIRE(output.stages.size() == 2);
  const auto* send = first<SendState>(output.stages);
  REQUIRE(send);
  CHECK(send->after_item == item.id);
  CHECK(send->tokens == 100);
  CHECK(send->from.pages == item.slices[0].pages);
  CHECK(send->to == Place{1, {1, 2}});

  output = one.ran(item, 42);
  REQUIRE(output.events.size() == 1);
  CHECK(std::get<TokenEvent>(output.events[0].what).token == 42);
  REQUIRE(first<Begin>(output.groups));
  CHECK(first<Begin>(output.groups)->first_token == 42);

  one.say(Landed{generation});
  const auto used = [&] { return one.head->counters().pages_used; };
  CHECK(used() == 2);
  one.sent(generation);
  CHECK(used() == 1);  // the checkpoint of its first 64 tokens
  CHECK(one.head->counters().requests[static_cast<size_t>(RequestState::running)] == 1);

  one.say(StepTokens{{{generation, 1, token_of(1, 43)}}});
  one.say(StepTokens{{{generation, 2, token_of(1, 44)}}});
  one.say(Ended{generation, EndReason::length, ""});
  output = one.take();
  REQUIRE(output.events.size() == 3);
  REQUIRE(finish(output));
  CHECK(finish(output)->reason == FinishReason::length);
  CHECK(finish(output)->completion_tokens == 3);
  CHECK(!one.head->idle());
  one.say(Released{generation});
  CHECK(one.head->idle());
  CHECK(one.head->groups()[0].pages_free == 32);
}

TEST_CASE("the stop token ends an answer unseen and counts", "[engine][head]") {
  Fixture one;
  one.head->submit({.id = RequestId{1}, .prompt = prompt(10), .max_tokens = 5, .stop_tokens = {7}},
                   one.now);
  const Item item = std::get<RunItem>(one.take().stages.at(0).command).item;
  const HeadOutput output = one.ran(item, 7);
  REQUIRE(output.events.size() == 1);
  CHECK(finish(output)->reason == FinishReason::stop);
  CHECK(finish(output)->completion_tokens == 1);
  CHECK(first<Abort>(output.groups));
}

TEST_CASE("an answer of one token asks no group", "[engine][head]") {
  Fixture one;
  HeadOutput output = one.submit(1, 10, 1);
  CHECK(output.groups.empty());
  output = one.ran(std::get<RunItem>(output.stages.at(0).command).item, 9);
  CHECK(finish(output)->reason == FinishReason::length);
  CHECK(one.head->idle());
}

TEST_CASE("an abort ends a request in every state and frees what it held",
          "[engine][head][handoff]") {
  const auto ends_clean = [](Fixture& one, Generation generation, bool sends) {
    one.head->abort(RequestId{1}, one.now);
    const HeadOutput output = one.take();
    REQUIRE(finish(output));
    CHECK(finish(output)->reason == FinishReason::aborted);
    CHECK(first<Abort>(output.groups));
    CHECK((first<CancelSend>(output.stages) != nullptr) == sends);
    if (sends) one.sent(generation, false);
    one.say(Ended{generation, EndReason::aborted, ""});
    CHECK(!one.head->idle());
    one.say(Released{generation});
    const Counters counters = one.head->counters();
    CHECK(counters.pages_used == counters.pages_frozen);
    CHECK(one.head->groups()[0].pages_free == 32);
    one.head->abort(RequestId{1}, one.now);
    CHECK(one.take().events.empty());
  };
  SECTION("asked") {
    Fixture one;
    ends_clean(one, first<Ask>(one.submit(1).groups)->generation, false);
  }
  SECTION("sending") {
    Fixture one;
    ends_clean(one, one.sending(1), true);
  }
  SECTION("running") {
    Fixture one;
    ends_clean(one, one.running(1), false);
  }
}

TEST_CASE("the stages' memory stays while a stage reads it", "[engine][head][handoff]") {
  Fixture one;
  const Generation generation = one.sending(1);
  one.head->abort(RequestId{1}, one.now);
  one.head->on_stage_report(0, PartsSent{generation, false, "cancelled"}, one.now);
  CHECK(one.head->counters().pages_used == 2);
  one.head->on_stage_report(1, PartsSent{generation, false, "cancelled"}, one.now);
  CHECK(one.head->counters().pages_used == 1);
}

TEST_CASE("a lost group's prompt goes to another while the stages still hold it",
          "[engine][head][handoff]") {
  Fixture one;
  const Generation generation = one.sending(1);
  const GroupId other = one.join(hello());
  one.take();
  one.head->on_group_lost(one.group, one.now);
  HeadOutput output = one.take();
  CHECK(!failure(output));
  REQUIRE(first<Ask>(output.groups));
  CHECK(output.groups[0].group == other);
  const Generation again = first<Ask>(output.groups)->generation;
  CHECK(again > generation);
  REQUIRE(first<Begin>(output.groups));
  CHECK(first<CancelSend>(output.stages));
  one.group = other;
  one.say(Granted{again, {.slot = 1, .pages = {1, 2}}});
  REQUIRE(first<SendState>(one.take().stages));
  one.sent(generation, false);
  one.say(Landed{again});
  one.sent(again);
  one.say(StepTokens{{{again, 1, token_of(1, 6)}}});
  output = one.take();
  REQUIRE(output.events.size() == 1);
  CHECK(one.head->counters().handoffs_again == 1);
}

TEST_CASE("a lost group's running answers fail as unavailable and others go on",
          "[engine][head][handoff]") {
  Fixture one;
  one.running(1);
  one.head->on_group_lost(one.group, one.now);
  const HeadOutput output = one.take();
  REQUIRE(failure(output));
  CHECK(failure(output)->kind == FailureKind::unavailable);
  CHECK(failure(output)->message == "the decode group was lost");
  one.group = one.join(hello());
  one.take();
  const Generation next = one.running(2);
  one.say(StepTokens{{{next, 1, token_of(2, 6)}}});
  CHECK(one.take().events.size() == 1);
}

TEST_CASE("a lost stage fails prompts in flight and landed answers go on",
          "[engine][head][handoff]") {
  Fixture one;
  const Generation landed = one.running(1);
  const Generation sending = one.sending(2);
  one.head->on_stage_lost(1, one.now);
  HeadOutput output = one.take();
  REQUIRE(output.events.size() == 1);
  CHECK(output.events[0].id == RequestId{2});
  CHECK(failure(output)->kind == FailureKind::unavailable);
  CHECK(failure(output)->message == "stage 1 was lost");
  CHECK(first<Abort>(output.groups)->generation == sending);
  CHECK(one.head->counters().pages_used == 0);  // caches are forgotten too
  one.say(StepTokens{{{landed, 1, token_of(1, 6)}}});
  CHECK(one.take().events.size() == 1);
  // a result of the lost life changes nothing
  one.head->on_stage_report(0, ItemDone{one.epoch, {.id = 1}}, one.now);
  CHECK(one.head->counters().late_messages >= 1);
}

TEST_CASE("queued requests wait for the pipeline only so long", "[engine][head]") {
  Fixture one;
  one.head->on_stage_lost(1, one.now);
  CHECK(one.submit(1).events.empty());
  one.now += 29 * kSecondNs;
  one.head->tick(one.now);
  CHECK(one.take().events.empty());
  CHECK(one.head->wake_at() == 1 + 30 * kSecondNs);
  one.now = one.head->wake_at();
  one.head->tick(one.now);
  CHECK(failure(one.take())->message == "a stage is missing");
  CHECK(failure(one.submit(2))->kind == FailureKind::unavailable);
}

TEST_CASE("an expired grant is asked for again", "[engine][head][handoff]") {
  Fixture one;
  const HeadOutput output = one.submit(1);
  const Generation generation = first<Ask>(output.groups)->generation;
  one.say(Granted{generation, {.slot = 1, .pages = {1, 2}}});
  one.say(Ended{generation, EndReason::expired, ""});
  one.say(Released{generation});
  const HeadOutput again = one.take();
  REQUIRE(first<Ask>(again.groups));
  CHECK(first<Ask>(again.groups)->generation > generation);
  CHECK(one.head->counters().handoffs_expired == 1);
}

TEST_CASE("a request is handed off only so many times", "[engine][head][handoff]") {
  HeadOptions options;
  options.attempts_max = 2;
  Fixture one(options);
  const Generation generation = one.sending(1);
  HeadOutput output = one.sent(generation, false);
  const auto* again = first<Ask>(output.groups);
  REQUIRE(again);
  const Generation second = again->generation;
  one.say(Granted{second, {.slot = 2, .pages = {3, 4}}});
  one.take();
  output = one.sent(second, false);
  REQUIRE(failure(output));
  CHECK(failure(output)->kind == FailureKind::unavailable);
  CHECK(failure(output)->message == "why");
}

TEST_CASE("late and foreign generations are refused", "[engine][head][handoff]") {
  Fixture one;
  one.say(StepTokens{{{Generation{99}, 1, token_of(1, 6)}}});
  one.say(Landed{Generation{99}});
  CHECK(one.head->counters().late_messages == 2);
  CHECK(one.take().dropped_groups.empty());
}

TEST_CASE("a group that breaks the protocol is dropped", "[engine][head][handoff]") {
  Fixture one;
  const Generation generation = first<Ask>(one.submit(1).groups)->generation;
  SECTION("a place outside its memory") {
    one.say(Granted{generation, {.slot = 1, .pages = {1, 33}}});
  }
  SECTION("fewer pages than asked") {
    one.say(Granted{generation, {.slot = 1, .pages = {1}}});
  }
  SECTION("tokens before the first") {
    one.say(StepTokens{{{generation, 1, token_of(1, 6)}}});
  }
  SECTION("an end before the beginning") {
    one.say(Ended{generation, EndReason::stop, ""});
  }
  SECTION("memory back that is in use") {
    one.say(Released{generation});
  }
  SECTION("a second hello") {
    one.say(hello());
  }
  CHECK(one.take().dropped_groups == std::vector<GroupId>{one.group});
  CHECK(one.head->groups().empty());
}

TEST_CASE("a group that does not answer is dropped", "[engine][head][handoff]") {
  Fixture one;
  one.submit(1);
  one.now = one.head->wake_at();
  CHECK(one.now == 1 + 10 * kSecondNs);
  one.head->tick(one.now);
  CHECK(one.take().dropped_groups.size() == 1);
}

TEST_CASE("the group with most room is asked", "[engine][head]") {
  Fixture one;
  const GroupId large = one.join(hello(2, 65));
  const HeadOutput output = one.submit(1);
  CHECK(output.groups.at(0).group == large);
}

TEST_CASE("a prompt starts when a group has room for its whole answer", "[engine][head]") {
  Fixture one({}, false);
  one.group = one.join(hello(1, 4));
  one.take();
  const HeadOutput first_output = one.submit(1, 100, 60);
  const Generation generation = first<Ask>(first_output.groups)->generation;
  HeadOutput output = one.submit(2, 100, 60);
  CHECK(output.groups.empty());
  CHECK(output.stages.empty());
  one.head->abort(RequestId{1}, one.now);
  one.take();
  one.say(Released{generation});
  output = one.take();
  CHECK(first<Ask>(output.groups)->request == RequestId{2});
  CHECK(first<RunItem>(output.stages));
}

TEST_CASE("what never fits, a full queue and a missing pipeline are three answers",
          "[engine][head]") {
  HeadOptions options;
  options.queue_max = 1;
  Fixture one(options, false);
  CHECK(failure(one.submit(1))->message == "no decode group is here");
  one.group = one.join(hello(1, 4));
  const HeadOutput too_long = one.submit(2, 190, 3);
  CHECK(failure(too_long)->kind == FailureKind::too_long);
  CHECK(failure(too_long)->message ==
        "maximum context length is 192 tokens, the prompt has 190 and the answer may have 3");
  one.submit(3, 100, 60);
  one.submit(4, 100, 60);
  CHECK(failure(one.submit(5, 100, 60))->kind == FailureKind::queue_full);
}

TEST_CASE("a deadline drops a request wherever it is", "[engine][head]") {
  Fixture one;
  one.head->submit({.id = RequestId{1}, .prompt = prompt(10), .max_tokens = 5, .deadline = 50},
                   one.now);
  one.take();
  CHECK(one.head->wake_at() == 50);
  one.now = 50;
  one.head->tick(one.now);
  const HeadOutput output = one.take();
  CHECK(failure(output)->kind == FailureKind::deadline);
  CHECK(first<Abort>(output.groups));
}

TEST_CASE("a prompt that is not a number fails alone", "[engine][head]") {
  Fixture one;
  const HeadOutput output = one.submit(1);
  const HeadOutput after = one.ran(std::get<RunItem>(output.stages.at(0).command).item, -1);
  CHECK(failure(after)->kind == FailureKind::internal);
  CHECK(first<Abort>(after.groups));
}

TEST_CASE("a group that cannot hold anything is refused", "[engine][head]") {
  Fixture one;
  GroupHello bad = hello();
  bad.addresses.clear();
  const auto refused = one.head->on_group_up(bad, one.now);
  REQUIRE(!refused);
  CHECK(refused.error().kind == Kind::peer);
  CHECK(refused.error().message == "decode group: expected one address for each of 1 ranks, got 0");
  bad = hello(1, 1);
  CHECK(!one.head->on_group_up(bad, one.now));
}
