#include "replay/replay.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "kern/base/prng.h"
#include "replay/generate.h"

using namespace kern;
using namespace kern::replay;

namespace {

// Four tokens a page, 100 bytes a page, 1,000 bytes a slot; a token of a prompt takes 1 ms, and so
// does one of an answer.
Setup tiny(uint32_t pages, uint32_t slots, uint64_t host_bytes = 0) {
  Setup setup;
  setup.geometry = {.page_tokens = 4,
                    .pages = pages + 1,
                    .slots = slots + 1,
                    .recurrent = slots > 0,
                    .row_pages_max = 50,
                    .host_bytes = host_bytes,
                    .page_bytes = 100,
                    .slot_bytes = 1000};
  setup.grid = 4;
  setup.prefill_tokens_per_s = 1000;
  setup.step_us = 1000;
  return setup;
}

// Prompts of 10 and 10 + 5 + 6 tokens, a second apart.
const Session kTwoTurns{0, {}, {{0, 10, 5}, {1000, 6, 3}}};

uint64_t prompt_tokens(const Trace& trace) {
  uint64_t all = 0;
  for (const Session& session : trace) {
    uint64_t context = 0;
    for (const SharedPrefix& one : session.shared) context += one.tokens;
    for (const Turn& turn : session.turns) {
      all += context + turn.prompt;
      context += uint64_t{turn.prompt} + turn.answer;
    }
  }
  return all;
}

uint64_t sum(const ByTier& by) {
  return by.device + by.host + by.miss;
}

}  // namespace

TEST_CASE("a second turn finds its first prompt's last grid line, and computes the rest",
          "[replay]") {
  const Outcome out = play({kTwoTurns}, tiny(100, 10));
  CHECK(out.requests == ByTier{1, 0, 1});
  CHECK(out.tokens == ByTier{8, 0, 10 + 13});
  CHECK(out.kept == 2);             // at 8 of 10 and at 20 of 21
  CHECK(out.bytes_copied == 1000);  // the restored state; all pages are whole
  CHECK(out.pages_peak == 6);       // 15 + 6 + 3 tokens, the first two pages shared in place
  CHECK(out.pages_leased_peak == 4);
  CHECK(out.slots_peak == 3);  // the second lease's and two checkpoints'
  CHECK(out.slots_leased_peak == 1);
  // 10 ms for the prompt, 4 for the answer after its first token, 1,000 to think, 13 and 2.
  CHECK(out.end_us == 1'029'000);
  CHECK(out.waited + out.parked + out.dropped + out.exceeded_pool + out.exceeded_row == 0);
}

TEST_CASE("answers kept without a grid are found whole, but for the token nobody computed",
          "[replay]") {
  Setup setup = tiny(100, 10);
  setup.keep = {.shared = false, .prompt = false, .answer = true};
  setup.grid = 1;
  const Outcome out = play({kTwoTurns}, setup);
  CHECK(out.tokens == ByTier{14, 0, 10 + 7});
  CHECK(out.bytes_copied == 1100);  // the state, and the page that 14 tokens end inside
  CHECK(out.kept == 2);
}

TEST_CASE("on a grid an answer is kept at its last line", "[replay]") {
  Setup setup = tiny(100, 10);
  setup.keep = {.shared = false, .prompt = false, .answer = true};
  CHECK(play({kTwoTurns}, setup).tokens == ByTier{12, 0, 10 + 9});
}

TEST_CASE("a shared prefix is found with recurrent state only where a checkpoint was cut",
          "[replay]") {
  const Trace trace{{0, {{"system", 8}}, {{0, 5, 2}}}, {1000, {{"system", 8}}, {{0, 6, 2}}}};
  CHECK(play(trace, tiny(100, 10)).tokens == ByTier{0, 0, 13 + 14});
  CHECK(play(trace, tiny(100, 0)).tokens == ByTier{8, 0, 13 + 6});
  Setup setup = tiny(100, 10);
  setup.keep.shared = true;
  const Outcome out = play(trace, setup);
  CHECK(out.tokens == ByTier{8, 0, 13 + 6});
  CHECK(out.requests == ByTier{1, 0, 1});
  CHECK(out.kept == 3);  // at 8, at 12 of each
}

TEST_CASE("what has to make room is parked, and woken for its next turn", "[replay]") {
  // Two slots: a running lease and one checkpoint. Another session comes between the two turns.
  const Trace trace{kTwoTurns, {500, {}, {{0, 11, 2}}}};
  CHECK(play(trace, tiny(100, 2)).tokens == ByTier{0, 0, 10 + 11 + 21});
  const Outcome out = play(trace, tiny(100, 2, 10'000));
  CHECK(out.requests == ByTier{0, 1, 2});
  CHECK(out.tokens == ByTier{0, 8, 10 + 11 + 13});
  // The first turn's checkpoint leaves for the other session's, that one for the second turn's
  // lease, and the first, woken, for the second turn's own: its bytes are in host memory already.
  CHECK(out.parked == 3);
  CHECK(out.bytes_parked == 2 * 1200);
  CHECK(out.bytes_woken == 1200);
  CHECK(out.bytes_copied == 1000);
  CHECK(out.host_bytes_peak == 2 * 1200);
  CHECK(out.dropped + out.host_dropped == 0);

  Setup choosy = tiny(100, 2, 10'000);
  choosy.park_tokens_min = 9;
  const Outcome dropped = play(trace, choosy);
  CHECK(dropped.tokens.host == 0);
  CHECK(dropped.parked == 0);
  CHECK(dropped.dropped == 2);
}

TEST_CASE("in host memory, too, what is worth least makes room", "[replay]") {
  const Trace trace{kTwoTurns, {500, {}, {{0, 11, 2}}}};
  const Outcome out = play(trace, tiny(100, 2, 1'200));  // one checkpoint's
  CHECK(out.tokens == ByTier{0, 8, 10 + 11 + 13});
  CHECK(out.host_bytes_peak == 1200);
  const Outcome none = play(trace, tiny(100, 2, 1'199));
  CHECK(none.tokens.host == 0);
  CHECK(none.parked == 0);
  CHECK(none.dropped == 2);
}

TEST_CASE("a request that finds no room waits its turn; one that never fits ends its session",
          "[replay]") {
  // Four pages. Two requests of three pages at once: the second waits until the first's answer is
  // out, and the first's checkpoint goes for it.
  const Trace trace{{0, {}, {{0, 10, 2}}},
                    {0, {}, {{0, 9, 3}}},
                    {100, {}, {{0, 17, 1}, {0, 1, 1}}},
                    {200, {}, {{0, 200, 1}, {0, 1, 1}, {0, 1, 1}}}};
  const Outcome out = play(trace, tiny(4, 0));
  CHECK(out.requests == ByTier{0, 0, 2});
  CHECK(out.waited == 1);
  CHECK(out.wait_us == 11'000);
  CHECK(out.wait_us_max == 11'000);
  CHECK(out.dropped == 1);
  CHECK(out.exceeded_pool == 1);
  CHECK(out.exceeded_row == 1);
  CHECK(out.abandoned == 1 + 2);
  CHECK(out.pages_peak == 3);
}

TEST_CASE("what is found but leaves no room beside it is computed again", "[replay]") {
  // One slot: a lease fits, but not beside a checkpoint's state.
  Setup setup = tiny(100, 1);
  setup.keep = {.shared = false, .prompt = false, .answer = true};
  setup.grid = 1;
  const Outcome out = play({kTwoTurns}, setup);
  CHECK(out.kept == 2);
  CHECK(out.tokens == ByTier{0, 0, 10 + 21});
  CHECK(out.dropped == 1);
}

TEST_CASE("a tier that only prefills holds prompts, until they are out", "[replay]") {
  Setup setup = tiny(4, 0);
  setup.answers_elsewhere = true;
  // 10 tokens take three of the four pages; the answer of 40 would not fit.
  const Outcome out = play({{0, {}, {{0, 10, 40}, {0, 1, 1}}}}, setup);
  CHECK(out.requests == ByTier{0, 0, 1});
  CHECK(out.exceeded_pool == 1);  // the second turn: 51 tokens
  CHECK(out.pages_leased_peak == 3);
  CHECK(out.end_us == 49'000);
}

TEST_CASE("the same trace twice gives the same outcome, and every prompt's tokens are counted once",
          "[replay][prop]") {
  for (const LoadKind kind : {LoadKind::system, LoadKind::chat, LoadKind::agent, LoadKind::mixed})
    for (const Policy policy : {Policy::lru, Policy::hits, Policy::cost})
      for (const uint64_t host_bytes : {uint64_t{0}, uint64_t{20'000'000}})
        for (const uint32_t slots : {0u, 24u}) {
          const Trace trace = generate({kind, 7, 40, 2000});
          Setup setup = tiny(4000, slots, host_bytes);
          setup.geometry.page_tokens = setup.cost.page_tokens = setup.grid = 64;
          setup.geometry.page_bytes = 6400;
          setup.geometry.row_pages_max = 8000;
          setup.prefill_tokens_per_s = 20'000;
          setup.policy = policy;
          setup.keep.shared = true;
          const Outcome out = play(trace, setup);
          CHECK(out == play(trace, setup));
          REQUIRE(out.exceeded_pool + out.exceeded_row == 0);
          CHECK(sum(out.tokens) == prompt_tokens(trace));
          CHECK(out.host_bytes_peak <= host_bytes);
        }
}

TEST_CASE("in pools of every smallness each request is served or refused, and nothing is left over",
          "[replay][prop]") {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    Prng prng(seed);
    const auto below = [&](uint32_t bound) { return static_cast<uint32_t>(prng.below(bound)); };
    Trace trace;
    uint64_t turns = 0;
    for (uint32_t left = 1 + below(12); left > 0; --left) {
      Session session{below(100), {}, {}};
      for (uint32_t i = below(3); i > 0; --i) {
        const uint32_t which = below(4);
        session.shared.push_back({std::to_string(which), 3 + 2 * which});
      }
      for (uint32_t i = 1 + below(5); i > 0; --i)
        session.turns.push_back({below(50), 1 + below(9), 1 + below(9)});
      turns += session.turns.size();
      trace.push_back(std::move(session));
    }
    Setup setup = tiny(2 + below(30), below(6), below(2) * below(10'000));
    setup.policy = static_cast<Policy>(below(3));
    setup.cost.page_tokens = 4;
    setup.grid = 1 + below(5);
    setup.answers_elsewhere = below(2) == 0;
    setup.keep = {below(2) == 0, below(2) == 0, !setup.answers_elsewhere && below(2) == 0};
    setup.park_tokens_min = below(2) * below(12);
    const Outcome out = play(trace, setup);
    INFO("seed " << seed);
    CHECK(sum(out.requests) + out.exceeded_pool + out.exceeded_row + out.abandoned == turns);
    CHECK(out.pages_peak <= setup.geometry.pages - 1);
    CHECK(out.host_bytes_peak <= setup.geometry.host_bytes);
    CHECK(out == play(trace, setup));
  }
}

TEST_CASE("where prefixes differ in what they cost, the cost-aware order computes less than lru",
          "[replay][policy]") {
  const Trace trace = generate({LoadKind::system, 1, 2000, 2000});
  Setup setup = tiny(100'000, 32);
  setup.geometry.page_tokens = setup.cost.page_tokens = setup.grid = 64;
  setup.geometry.row_pages_max = 8000;
  setup.cost.page_bytes = 100;
  setup.cost.slot_bytes = 30'000;
  setup.prefill_tokens_per_s = 20'000;
  setup.keep.shared = true;
  const Outcome lru = play(trace, setup);
  setup.policy = Policy::cost;
  const Outcome cost = play(trace, setup);
  INFO("lru computes " << lru.tokens.miss << ", cost " << cost.tokens.miss);
  CHECK(lru.dropped > 100);
  CHECK(static_cast<double>(cost.tokens.miss) < 0.8 * static_cast<double>(lru.tokens.miss));
}

TEST_CASE("where all prefixes cost the same, the cost-aware order is lru", "[replay][policy]") {
  Prng prng(3);
  Trace trace;
  for (uint64_t i = 0; i < 1000; ++i)
    trace.push_back({i * 100, {{"s" + std::to_string(prng.below(30)), 8}}, {{0, 2, 2}}});
  Setup setup = tiny(100, 12);
  setup.keep = {.shared = true, .prompt = false, .answer = false};
  setup.cost.page_tokens = 4;
  const Outcome lru = play(trace, setup);
  setup.policy = Policy::cost;
  CHECK(play(trace, setup) == lru);
  CHECK(lru.dropped > 100);
  CHECK(lru.requests.device > 100);
}
