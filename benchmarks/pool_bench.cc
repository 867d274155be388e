// What the pool's operations cost on a pool of a million pages with 100,000 checkpoints in its
// tree. One line an entry: the median over the repetitions of nanoseconds an operation. `null` is
// an empty operation, the floor of every other line. `--once`: one short repetition, to see that it
// runs.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "kern/pool/pool.h"
#include "kern/pool/prefix.h"

namespace {

using kern::pool::Checkpoint;
using kern::pool::Geometry;
using kern::pool::Pool;
using kern::pool::PrefixTree;

constexpr uint32_t kPageTokens = 64;
constexpr uint32_t kCheckpoints = 100'000;
constexpr uint32_t kSystemTokens = 8 * kPageTokens;  // shared by every checkpoint
constexpr uint32_t kTurnTokens = 2 * kPageTokens;    // of its own

struct Timing {
  int repetitions = 11;
  int operations = 2000;
};

template <class Operation>
void measure(const Timing& timing, const char* name, int operations, Operation&& operation) {
  operations = std::min(operations, timing.operations);
  std::vector<double> ns;
  for (int r = 0; r < timing.repetitions; ++r) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < operations; ++i) operation(static_cast<uint32_t>(i));
    const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - start;
    ns.push_back(spent.count() / operations);
  }
  std::nth_element(ns.begin(), ns.begin() + static_cast<std::ptrdiff_t>(ns.size() / 2), ns.end());
  std::printf("%-44s %12.1f ns\n", name, ns[ns.size() / 2]);
}

std::vector<int32_t> prompt(uint32_t which, uint32_t extra) {
  std::vector<int32_t> tokens(kSystemTokens + kTurnTokens + extra);
  std::iota(tokens.begin(), tokens.end(), 0);
  tokens[kSystemTokens] = static_cast<int32_t>(1'000'000 + which);
  return tokens;
}

Checkpoint retired(Pool& pool, uint32_t tokens) {
  return pool.retire(std::move(*pool.lease(tokens)), tokens);
}

void fill(Pool& pool, PrefixTree& tree) {
  const Checkpoint system = retired(pool, kSystemTokens);
  const uint32_t len = kSystemTokens + kTurnTokens;
  for (uint32_t i = 0; i < kCheckpoints; ++i) {
    auto turn = pool.restore(system, kSystemTokens, len);
    tree.insert(prompt(i, 0), pool.retire(std::move(turn->lease), len));
  }
}

void measure_leases(const Timing& timing, Pool& pool) {
  const auto cycle = [&](uint32_t pages) {
    return [&pool, pages](uint32_t) { auto lease = pool.lease(pages * kPageTokens); };
  };
  measure(timing, "lease, return: 1 page", 2000, cycle(1));
  measure(timing, "lease, return: 64 pages", 2000, cycle(64));
  measure(timing, "lease, return: 4096 pages", 200, cycle(4096));
  const auto retire = [&](uint32_t pages) {
    return [&pool, pages](uint32_t) { const Checkpoint kept = retired(pool, pages * kPageTokens); };
  };
  measure(timing, "lease, retire, drop: 1 page", 2000, retire(1));
  measure(timing, "lease, retire, drop: 64 pages", 2000, retire(64));
  measure(timing, "lease, retire, drop: 4096 pages", 200, retire(4096));
  const Checkpoint kept = retired(pool, 4096 * kPageTokens);
  measure(timing, "restore 4096 pages and one more, return", 200, [&](uint32_t) {
    auto restored = pool.restore(kept, kept.len(), kept.len() + kPageTokens);
  });
}

void measure_forks(const Timing& timing, Pool& pool) {
  auto prompt = pool.lease(64 * kPageTokens);
  measure(timing, "fork 64 pages and one more, return", 2000,
          [&](uint32_t) { auto fork = pool.fork(*prompt, 64 * kPageTokens, 65 * kPageTokens); });
}

void measure_tiers(const Timing& timing) {
  Pool pool(Geometry{.page_tokens = kPageTokens,
                     .pages = 10'000,
                     .slots = 64,
                     .recurrent = true,
                     .row_pages_max = 8192,
                     .host_bytes = uint64_t{1} << 36,
                     .page_bytes = 1 << 20,
                     .slot_bytes = 1 << 24});
  const Checkpoint kept = retired(pool, 64 * kPageTokens);
  measure(timing, "park 64 pages, drop", 2000, [&](uint32_t) { auto slept = pool.park(kept); });
  const auto twin = pool.park(kept);
  measure(timing, "park 64 pages that have twins, drop", 2000,
          [&](uint32_t) { auto slept = pool.park(kept); });
  const auto alone = pool.park(retired(pool, 64 * kPageTokens));
  measure(timing, "wake 64 pages, drop", 2000,
          [&](uint32_t) { auto woken = pool.wake(alone->parked, 64 * kPageTokens); });
}

void measure_lookups(const Timing& timing, PrefixTree& tree) {
  std::vector<std::vector<int32_t>> prompts;
  for (uint32_t i = 0; i < 2000; ++i) prompts.push_back(prompt((i * 7919) % kCheckpoints, 64));
  measure(timing, "lookup: 640 tokens of 100,000 checkpoints", 2000,
          [&](uint32_t i) { auto hit = tree.lookup(prompts[i]); });
  auto unknown = prompt(0, 0);
  unknown[kSystemTokens] = -1;
  measure(timing, "lookup: 512 tokens, then unknown", 2000,
          [&](uint32_t) { auto hit = tree.lookup(unknown); });
  unknown[0] = -1;
  measure(timing, "lookup: unknown from the start", 2000,
          [&](uint32_t) { auto hit = tree.lookup(unknown); });
}

void measure_evictions(const Timing& timing, Pool& pool, PrefixTree& tree) {
  uint32_t next = kCheckpoints;
  const uint32_t len = kSystemTokens + kTurnTokens;
  measure(timing, "evict one, lease, retire, insert: 10 pages", 200, [&](uint32_t) {
    tree.evict();
    tree.insert(prompt(next++, 0), retired(pool, len));
  });
}

void measure_long(const Timing& timing, Pool& pool, PrefixTree& tree) {
  std::vector<int32_t> tokens(256 * 1024);
  std::iota(tokens.begin(), tokens.end(), -1'000'000);
  tree.insert(tokens, retired(pool, static_cast<uint32_t>(tokens.size())));
  tokens.push_back(0);
  measure(timing, "lookup: 262,144 tokens", 100, [&](uint32_t) { auto hit = tree.lookup(tokens); });
}

}  // namespace

int main(int argc, char** argv) {
  Timing timing;
  if (argc == 2 && std::strcmp(argv[1], "--once") == 0) timing = {1, 100};
  Pool pool(Geometry{.page_tokens = kPageTokens,
                     .pages = 1'000'001,
                     .slots = kCheckpoints + 64,
                     .recurrent = true,
                     .row_pages_max = 8192});
  PrefixTree tree(pool);
  fill(pool, tree);
  measure(timing, "null", 2000, [](uint32_t i) { asm volatile("" : : "r"(i)); });
  measure_leases(timing, pool);
  measure_forks(timing, pool);
  measure_tiers(timing);
  measure_lookups(timing, tree);
  measure_evictions(timing, pool, tree);
  measure_long(timing, pool, tree);
  return 0;
}
