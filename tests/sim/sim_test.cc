#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>

#include "world.h"

using namespace kern;

namespace {

void add(sim::Tally& all, const sim::Tally& one) {
  all.finished += one.finished;
  all.failed += one.failed;
  all.aborted += one.aborted;
  all.tokens += one.tokens;
  all.cached_tokens += one.cached_tokens;
  all.parked += one.parked;
  all.woken += one.woken;
  all.faults += one.faults;
  all.handoffs_again += one.handoffs_again;
  all.late_messages += one.late_messages;
  all.damaged += one.damaged;
  all.events += one.events;
}

sim::Tally run(uint64_t seed) {
  try {
    return sim::World(seed, sim::options_of(seed)).run();
  } catch (const std::exception& broken) {
    FAIL("seed " << seed << ": " << broken.what() << " (KERN_SEED=" << seed << " replays)");
  }
  return {};
}

uint64_t number_of(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::stoull(text);
}

}  // namespace

TEST_CASE("a cluster under faults ends every request once and answers the pure function",
          "[sim][engine]") {
  const bool replay = std::getenv("KERN_SEED") != nullptr;
  const uint64_t first = number_of("KERN_SEED", 1);
  const uint64_t count = replay ? 1 : number_of("KERN_SEEDS", 200);
  sim::Tally all;
  for (uint64_t seed = first; seed < first + count; ++seed) add(all, run(seed));
  WARN("finished " << all.finished << ", failed " << all.failed << ", aborted " << all.aborted
                   << ", tokens " << all.tokens << ", cached " << all.cached_tokens << ", parked "
                   << all.parked << ", woken " << all.woken << ", faults " << all.faults
                   << ", again " << all.handoffs_again << ", late " << all.late_messages
                   << ", damaged " << all.damaged << ", events " << all.events);
  if (replay || count < 200) return;
  // the storm was one: each of these would be zero if the simulation had been idle
  CHECK(all.finished > 1000);
  CHECK(all.aborted > 50);
  CHECK(all.cached_tokens > 1000);
  CHECK(all.parked > 100);
  CHECK(all.woken > 20);
  CHECK(all.faults > 200);
  CHECK(all.handoffs_again > 10);
  CHECK(all.late_messages > 10);
  CHECK(all.damaged > 5);
}

TEST_CASE("one seed is one run", "[sim][engine]") {
  const sim::Tally first = run(7), second = run(7);
  CHECK(first.events == second.events);
  CHECK(first.tokens == second.tokens);
  CHECK(first.late_messages == second.late_messages);
}
