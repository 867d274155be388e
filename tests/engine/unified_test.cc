#include "kern/engine/unified.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <deque>
#include <map>

#include "../sim/fake_model.h"
#include "fixtures.h"

using namespace kern;
using namespace kern::engine;
using namespace kern::engine::fixtures;

namespace {

UnifiedHead head(ExecutorLimits of = limits(), int32_t queue_max = 100) {
  auto made = UnifiedHead::create({.limits = of, .queue_max = queue_max});
  REQUIRE(made);
  return std::move(*made);
}

/// Runs random requests on the fake model and checks every answer; see tests/sim.
struct Seen {
  uint64_t cached = 0, woken = 0;
};

/// Half of the runs have a host tier, whose moves are done some time between the items.
Seen storm(uint64_t seed) {
  Prng prng(seed);
  const sim::Model model{.stages = 2, .recurrent = prng.below(4) != 0};
  ExecutorLimits of = limits(14 + static_cast<uint32_t>(prng.below(12)), 6);
  of.recurrent = model.recurrent;
  of.feeds = prng.below(2) != 0;
  std::vector<Token> kept;  // of the last step
  if (seed % 2 == 0) of.host_bytes = 100 + prng.below(300);
  of.host_page_bytes = 5;
  of.host_slot_bytes = 8;
  auto one = head(of);
  sim::Moves moves;
  uint64_t started = 0;  // the item whose turn it is
  sim::Memories memories;
  for (int stage = 0; stage < 2; ++stage) memories.emplace_back(of.pages, of.slots, 64, prng);
  std::map<uint64_t, std::pair<Request, std::vector<Token>>> open;
  std::deque<Item> items;
  uint64_t cached = 0, next = 1;
  for (TimeNs now = 1; next <= 30 || !one.idle(); ++now) {
    REQUIRE(now < 20'000);
    if (next <= 30 && prng.below(4) == 0) {
      Request request{
          .id = RequestId{next},
          .prompt = prompt(1 + prng.below(400), static_cast<Token>(prng.below(2) * 1000)),
          .max_tokens = 1 + static_cast<int32_t>(prng.below(30))};
      request.sampling = {.temperature = 1, .seed = prng.next() & ~sim::kFragile};
      request.stop_tokens = {sim::kStop};
      open[next++] = {request, {}};
      one.submit(request, now);
    }
    if (prng.below(40) == 0 && next > 1) one.abort(RequestId{1 + prng.below(next - 1)}, now);
    for (Item& item : one.take_items()) items.push_back(std::move(item));
    REQUIRE(items.size() <= 2);
    if (!items.empty() && items.front().id > started) {  // its turn has come
      started = items.front().id;
      moves.start(items.front());
    }
    if (!moves.empty() && prng.below(3) != 0) moves.step(memories);
    if (!items.empty() && !moves.holds_up(items.front()) && prng.below(2) == 0) {
      Item item = std::move(items.front());
      items.pop_front();
      if (item.phase == Phase::decode) sim::feed(item, kept);
      REQUIRE(!sim::unsound(item, 64, 1));
      INFO("seed " << seed << ": " << moves.in_the_way(item, 64).value_or(""));
      REQUIRE(!moves.in_the_way(item, 64));
      auto hidden = sim::embed(item);
      for (int stage = 0; stage < 2; ++stage)
        hidden = sim::run_stage(model, stage, memories[static_cast<size_t>(stage)], item, hidden);
      ItemResult result = sim::emit(item, hidden);
      result.moved = moves.moved();
      if (item.phase == Phase::decode) kept = sim::tokens_of(result);
      REQUIRE(one.on_result(result, now));
    }
    for (const RequestEvent& event : one.take_events()) {
      INFO("seed " << seed << ", request " << event.id.value());
      REQUIRE(open.contains(event.id.value()));
      auto& [request, tokens] = open.at(event.id.value());
      if (const auto* token = std::get_if<TokenEvent>(&event.what)) {
        tokens.push_back(token->token);
        continue;
      }
      const auto* finished = std::get_if<FinishedEvent>(&event.what);
      REQUIRE(finished);
      cached += static_cast<uint64_t>(finished->cached_tokens);
      auto expected = sim::answer(model, request).tokens;
      if (finished->reason == FinishReason::aborted) expected.resize(tokens.size());
      REQUIRE(tokens == expected);
      open.erase(event.id.value());
    }
  }
  CHECK(open.empty());
  const Counters counters = one.counters();
  CHECK(counters.pages_used == counters.pages_frozen);
  return {cached, counters.prefixes_woken};
}

}  // namespace

TEST_CASE("decode goes on between the chunks of a long prompt", "[engine][unified]") {
  auto one = head();
  one.submit({.id = RequestId{1}, .prompt = prompt(10), .max_tokens = 100}, 0);
  std::deque<Item> items;
  std::string phases;
  const auto turn = [&] {
    for (Item& item : one.take_items()) items.push_back(std::move(item));
    REQUIRE(!items.empty());
    phases += items.front().phase == Phase::decode ? 'd' : 'p';
    REQUIRE(one.on_result(result_of(items.front()), 0));
    items.pop_front();
  };
  turn();
  one.submit({.id = RequestId{2}, .prompt = prompt(800, 3000), .max_tokens = 10}, 0);
  for (int i = 0; i < 8; ++i) turn();
  CHECK(phases == "pdpdpdpdp");
}

TEST_CASE("random requests on one process are answered by the pure function",
          "[engine][unified][prop]") {
  const char* replay = std::getenv("KERN_SEED");
  const uint64_t first = replay == nullptr ? 1 : std::stoull(replay);
  Seen all;
  for (uint64_t seed = first; seed < first + (replay == nullptr ? 60 : 1); ++seed) {
    const Seen one = storm(seed);
    all.cached += one.cached;
    all.woken += one.woken;
  }
  CHECK((all.cached > 2000 || replay != nullptr));
  CHECK((all.woken > 10 || replay != nullptr));
}

TEST_CASE("a whole answer counts its prompt, its cached tokens and its tokens",
          "[engine][unified]") {
  auto one = head();
  for (uint64_t id = 1; id <= 2; ++id) {
    one.submit({.id = RequestId{id}, .prompt = prompt(100), .max_tokens = 2}, 0);
    while (!one.idle())
      for (const Item& item : one.take_items()) REQUIRE(one.on_result(result_of(item), 10));
  }
  const auto events = one.take_events();
  REQUIRE(events.size() == 6);
  const auto& finished = std::get<FinishedEvent>(events[5].what);
  CHECK(finished.prompt_tokens == 100);
  CHECK(finished.cached_tokens == 64);
  CHECK(finished.completion_tokens == 2);
  const Counters counters = one.counters();
  CHECK(counters.finished_length == 2);
  CHECK(counters.generated_tokens == 4);
  CHECK(counters.cache_hits == 64);
  CHECK(counters.time_to_first_token.count() == 2);
  CHECK(counters.time_to_first_token.sum() == 20);
}

TEST_CASE("one process refuses what never fits and what its queue cannot hold",
          "[engine][unified]") {
  auto one = head(limits(4), 1);
  const auto why = [&](uint64_t id, size_t length) {
    one.submit({.id = RequestId{id}, .prompt = prompt(length), .max_tokens = 50}, 0);
    const auto events = one.take_events();
    return events.empty() ? std::string() : std::get<FailedEvent>(events[0].what).message;
  };
  CHECK(why(1, 150) ==
        "maximum context length is 192 tokens, the prompt has 150 and the answer may have 50");
  CHECK(why(2, 100).empty());
  CHECK(why(3, 100).empty());
  CHECK(why(4, 100) == "1 requests wait already");
}

TEST_CASE("a lost executor ends everything as unavailable", "[engine][unified]") {
  auto one = head();
  one.submit({.id = RequestId{1}, .prompt = prompt(10), .max_tokens = 5}, 0);
  one.on_executor_lost(0);
  const auto events = one.take_events();
  REQUIRE(events.size() == 1);
  CHECK(std::get<FailedEvent>(events[0].what).kind == FailureKind::unavailable);
  CHECK(one.idle());
}

TEST_CASE("a result out of turn is a peer error", "[engine][unified]") {
  auto one = head();
  one.submit({.id = RequestId{1}, .prompt = prompt(10), .max_tokens = 5}, 0);
  const auto refused = one.on_result({.id = 99}, 0);
  REQUIRE(!refused);
  CHECK(refused.error().message == "item result: expected item 1, got 99");
}

TEST_CASE("progress is counted from the request that ended a rest", "[engine][unified]") {
  auto one = head();
  const TimeNs late = 5'000 * kSecondNs;
  one.submit({.id = RequestId{1}, .prompt = prompt(10), .max_tokens = 2}, late);
  CHECK(one.counters().last_progress == late);
  one.submit({.id = RequestId{2}, .prompt = prompt(10), .max_tokens = 2}, late + kSecondNs);
  CHECK(one.counters().last_progress == late);
}
