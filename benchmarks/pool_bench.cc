// What the pool's operations cost on a pool of a million pages with 100,000 checkpoints in its
// tree. One line an entry: the median and the least over the repetitions of the thread's
// nanoseconds an operation, allocations an operation, and the goal where there is one, judged by
// the least, for caches and memory may be shared with others. `null` is an empty operation, the
// floor of every other line; `memcmp` of a lookup's bytes is the floor of that lookup. `--once`:
// one short repetition on 1,000 checkpoints, to see that it runs.

#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kern/pool/pool.h"
#include "kern/pool/prefix.h"

namespace {

uint64_t allocations = 0;

}  // namespace

void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace {

using kern::pool::Checkpoint;
using kern::pool::Geometry;
using kern::pool::Pool;
using kern::pool::PrefixTree;

constexpr uint32_t kPageTokens = 64;
constexpr uint32_t kTurnTokens = 2 * kPageTokens;  // of a checkpoint's own, in every shape
constexpr uint32_t kMillion = 1 << 20;
constexpr double kNoGoal = 0;
constexpr double kLookupGoalNs = 300'000;  // of a million tokens

// The thread's own time: on a machine shared with others, waiting for a core is no cost of the
// pool's.
double cpu_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

double lease_goal_ns(uint32_t pages) {
  return 200 + 5.0 * pages;
}

struct Bench {
  int repetitions = 11;
  int operations_max = 2000;
  uint32_t checkpoints = 100'000;
  int goals = 0, missed = 0;

  // Least nanoseconds of one operation; `steady` says that it must not allocate.
  template <class Operation>
  double measure(const std::string& name, int operations, double goal_ns, bool steady,
                 Operation&& operation) {
    operations = std::min(operations, operations_max);
    for (int i = 0; i < operations; ++i) operation(static_cast<uint32_t>(i));  // what grows grows
    const uint64_t allocated_before = allocations;
    double ns[64];
    for (int r = 0; r < repetitions; ++r) {
      const double start = cpu_ns();
      for (int i = 0; i < operations; ++i) operation(static_cast<uint32_t>(i));
      ns[r] = (cpu_ns() - start) / operations;
    }
    const double allocated = static_cast<double>(allocations - allocated_before) /
                             (static_cast<double>(operations) * repetitions);
    std::sort(ns, ns + repetitions);
    report(name, ns[repetitions / 2], ns[0], allocated, goal_ns, steady);
    return ns[0];
  }

 private:
  void report(const std::string& name, double median, double least, double allocated,
              double goal_ns, bool steady) {
    std::printf("%-52s %12.1f %12.1f %8.2f", name.c_str(), median, least, allocated);
    const bool fast = goal_ns == kNoGoal || least <= goal_ns;
    const bool still = !steady || allocated == 0;
    if (goal_ns != kNoGoal) std::printf("  <= %.0f ns: %s", goal_ns, fast ? "pass" : "FAIL");
    if (steady) std::printf("  0 allocations: %s", still ? "pass" : "FAIL");
    std::printf("\n");
    goals += (goal_ns != kNoGoal) + steady;
    missed += !fast + !still;
  }
};

Geometry million_pages(const Bench& bench) {
  return {.page_tokens = kPageTokens,
          .pages = 1'000'001,
          .slots = bench.checkpoints + 4096,
          .recurrent = true,
          .row_pages_max = 2 * kMillion / kPageTokens};
}

// Some tokens, the same for one `family`; families differ from their first token on.
std::vector<int32_t> text(int32_t family, uint32_t tokens) {
  std::vector<int32_t> out(tokens);
  std::iota(out.begin(), out.end(), 0);
  if (tokens > 0) out[0] = -1 - family;
  return out;
}

Checkpoint retired(Pool& pool, uint32_t tokens) {
  return pool.retire(std::move(*pool.lease(tokens)), tokens);
}

// A checkpoint of `len` positions of which the first are `base`'s, shared in place.
Checkpoint grown(Pool& pool, const Checkpoint& base, uint32_t len) {
  return pool.retire(std::move(pool.restore(base, base.len(), len)->lease), len);
}

// A pool and a tree whose every checkpoint begins with the same tokens and has a turn of its own.
struct Shared {
  Shared(const Bench& bench, uint32_t shared_tokens)
      : pool(million_pages(bench)), tree(pool), prompt(text(0, shared_tokens + kTurnTokens + 1)) {
    const Checkpoint system = retired(pool, shared_tokens);
    for (uint32_t i = 0; i < bench.checkpoints; ++i)
      tree.insert(of(i, 0), grown(pool, system, shared_tokens + kTurnTokens));
  }
  // Checkpoint `which`, and `more` tokens behind it (0 or 1).
  std::span<const int32_t> of(uint32_t which, uint32_t more) {
    prompt[prompt.size() - 1 - kTurnTokens] = static_cast<int32_t>(kMillion * 2 + which);
    return std::span(prompt).first(prompt.size() - 1 + more);
  }
  Pool pool;
  PrefixTree tree;
  std::vector<int32_t> prompt;
};

// --- leases -----------------------------------------------------------------------------------

void measure_leases(Bench& bench, Pool& pool) {
  for (const uint32_t pages : {1u, 64u, 4096u}) {
    const int operations = pages > 64 ? 200 : 2000;
    const std::string size = std::to_string(pages) + (pages == 1 ? " page" : " pages");
    const uint32_t tokens = pages * kPageTokens;
    bench.measure("lease, return: " + size, operations, kNoGoal, true,
                  [&](uint32_t) { auto lease = pool.lease(tokens); });
    bench.measure("lease, retire, drop: " + size, operations, lease_goal_ns(pages), true,
                  [&](uint32_t) { const Checkpoint kept = retired(pool, tokens); });
    const Checkpoint kept = retired(pool, tokens);
    bench.measure("restore and one page more, return: " + size, operations, kNoGoal, true,
                  [&](uint32_t) { auto lease = pool.restore(kept, tokens, tokens + kPageTokens); });
    auto running = pool.lease(tokens);
    bench.measure("fork and one page more, return: " + size, operations, kNoGoal, true,
                  [&](uint32_t) { auto fork = pool.fork(*running, tokens, tokens + kPageTokens); });
    bench.measure("checkpoint of what is frozen, drop: " + size, operations, kNoGoal, true,
                  [&](uint32_t) { auto frozen = pool.checkpoint(*running, tokens); });
    bench.measure("lease, checkpoint, drop both: " + size, operations, kNoGoal, true,
                  [&](uint32_t) {
                    auto lease = pool.lease(tokens);
                    auto frozen = pool.checkpoint(*lease, tokens);
                  });
  }
}

void measure_tiers(Bench& bench) {
  Pool pool({.page_tokens = kPageTokens,
             .pages = 10'000,
             .slots = 64,
             .recurrent = true,
             .row_pages_max = 8192,
             .host_bytes = uint64_t{1} << 36,
             .page_bytes = 1 << 20,
             .slot_bytes = 1 << 24});
  for (const uint32_t pages : {1u, 64u, 4096u}) {
    const int operations = pages > 64 ? 200 : 2000;
    const std::string size = std::to_string(pages) + (pages == 1 ? " page" : " pages");
    const Checkpoint kept = retired(pool, pages * kPageTokens);
    kern::pool::Transfers plan;  // its memory goes round
    const auto park = [&](uint32_t) {
      auto slept = pool.park(kept, std::move(plan));
      plan = std::move(slept->transfers);
    };
    bench.measure("park, drop: " + size, operations, kNoGoal, true, park);
    const auto twin = pool.park(kept);
    bench.measure("park what has twins, drop: " + size, operations, kNoGoal, true, park);
    const auto alone = pool.park(retired(pool, pages * kPageTokens));
    bench.measure("wake, drop: " + size, operations, kNoGoal, true, [&](uint32_t) {
      auto woken = pool.wake(alone->parked, pages * kPageTokens, std::move(plan));
      plan = std::move(woken->transfers);
    });
  }
}

// --- the tree ---------------------------------------------------------------------------------

void measure_evictions(Bench& bench) {
  Shared shape(bench, 8 * kPageTokens);
  uint32_t next = bench.checkpoints;
  const uint32_t len = 8 * kPageTokens + kTurnTokens;
  bench.measure("insert, evict one: 10 pages", 2000, kNoGoal, true, [&](uint32_t) {
    shape.tree.insert(shape.of(next++, 0), retired(shape.pool, len));
    shape.tree.evict();
  });
  bench.measure("insert what is there", 2000, kNoGoal, true, [&](uint32_t) {
    shape.tree.insert(shape.of(next - 1, 0), retired(shape.pool, len));
  });
  // Fill what is left, so that each lease has to make its room first.
  std::vector<kern::pool::Lease> rest;
  for (uint32_t pages = 1 << 14; pages > 0; pages /= 2)
    while (auto lease = shape.pool.lease(pages * kPageTokens)) rest.push_back(std::move(*lease));
  for (const uint32_t pages : {2u, 64u}) {
    std::vector<int32_t> tokens = text(0, pages * kPageTokens);
    bench.measure("full: evict, lease, retire, insert: " + std::to_string(pages) + " pages", 200,
                  kNoGoal, pages == 2, [&](uint32_t) {
                    auto lease = shape.pool.lease(pages * kPageTokens);
                    if (!lease) {
                      shape.tree.evict(lease.denied().missing);
                      lease = shape.pool.lease(pages * kPageTokens);
                    }
                    tokens[0] = static_cast<int32_t>(-next++);
                    shape.tree.insert(tokens,
                                      shape.pool.retire(std::move(*lease), pages * kPageTokens));
                  });
  }
}

// What comparing as many tokens costs at least.
double measure_memcmp(Bench& bench, const char* size, uint32_t tokens, int operations) {
  const std::vector<int32_t> a = text(0, tokens), b = a;
  return bench.measure(std::string("memcmp: ") + size + " tokens", operations, kNoGoal, false,
                       [&](uint32_t) {
                         int differ = std::memcmp(a.data(), b.data(), tokens * sizeof(int32_t));
                         asm volatile("" : "+r"(differ) : : "memory");
                       });
}

struct Size {
  const char* name;
  uint32_t tokens;
  int operations;
};
constexpr Size kSizes[] = {{"1k", 1024, 2000}, {"32k", 32 * 1024, 500}, {"1M", kMillion, 40}};

double lookup_goal(const Size& size) {
  return size.tokens == kMillion ? kLookupGoalNs : kNoGoal;
}

void ratio(double lookup, double floor) {
  std::printf("%-52s %12.2f\n", "  times memcmp", lookup / floor);
}

// Every checkpoint begins with the same N tokens; each lookup asks for another one.
void measure_shared(Bench& bench, const Size& size, double floor) {
  const std::string name = size.name;
  Shared shape(bench, size.tokens - kTurnTokens);
  uint32_t which = 0;
  const auto next = [&] { return which = (which + 7919) % bench.checkpoints; };
  ratio(bench.measure("lookup, all share, hit at the end: " + name, size.operations,
                      lookup_goal(size), true,
                      [&](uint32_t) { auto hit = shape.tree.lookup(shape.of(next(), 1)); }),
        floor);
  bench.measure(
      "lookup, all share, miss behind: " + name, size.operations, lookup_goal(size), true,
      [&](uint32_t) { auto hit = shape.tree.lookup(shape.of(bench.checkpoints + 1, 1)); });
}

// No two checkpoints begin alike; one of them is long.
void measure_distinct(Bench& bench, const Size& size, double floor) {
  const std::string name = size.name;
  Pool pool(million_pages(bench));
  PrefixTree tree(pool);
  std::vector<int32_t> prompt = text(0, size.tokens + 1);
  for (uint32_t i = 0; i < bench.checkpoints; ++i) {
    prompt[0] = static_cast<int32_t>(i);
    tree.insert(std::span(prompt).first(kTurnTokens), retired(pool, kTurnTokens));
  }
  prompt[0] = -1;
  tree.insert(std::span(prompt).first(size.tokens), retired(pool, size.tokens));
  ratio(bench.measure("lookup, all distinct, hit at the end: " + name, size.operations,
                      lookup_goal(size), true, [&](uint32_t) { auto hit = tree.lookup(prompt); }),
        floor);
  prompt[kPageTokens] = -1;
  bench.measure("lookup, all distinct, miss at token 64: " + name, 2000, kNoGoal, true,
                [&](uint32_t) { auto hit = tree.lookup(prompt); });
  prompt[0] = -2;
  bench.measure("lookup, all distinct, miss at once: " + name, 2000, kNoGoal, true,
                [&](uint32_t) { auto hit = tree.lookup(prompt); });
}

// One conversation with a checkpoint every 512 tokens, among short ones: a step a checkpoint.
void measure_conversation(Bench& bench, const Size& size, double floor) {
  const std::string name = size.name;
  Shared shape(bench, 8 * kPageTokens);
  const std::vector<int32_t> prompt = text(1, size.tokens + 1);
  std::optional<Checkpoint> last;
  for (uint32_t len = 512; len <= size.tokens; len += 512) {
    last = last ? grown(shape.pool, *last, len) : retired(shape.pool, len);
    shape.tree.insert(std::span(prompt).first(len), last->share());
  }
  ratio(bench.measure("lookup, a checkpoint every 512, hit at the end: " + name, size.operations,
                      lookup_goal(size), true,
                      [&](uint32_t) { auto hit = shape.tree.lookup(prompt); }),
        floor);
}

}  // namespace

int main(int argc, char** argv) {
  Bench bench;
  if (argc == 2 && std::strcmp(argv[1], "--once") == 0) {
    bench.repetitions = 1;
    bench.operations_max = 2;
    bench.checkpoints = 1000;
  } else if (argc != 1) {
    std::fprintf(stderr, "usage: pool-bench [--once]\n");
    return 2;
  }
  std::printf("%-52s %12s %12s %8s\n", "operation", "median ns", "least ns", "allocs");
  bench.measure("null", 2000, kNoGoal, false, [](uint32_t i) { asm volatile("" : : "r"(i)); });
  {
    Shared shape(bench, 8 * kPageTokens);
    measure_leases(bench, shape.pool);
  }
  measure_tiers(bench);
  measure_evictions(bench);
  for (const Size& size : kSizes) {
    const double floor = measure_memcmp(bench, size.name, size.tokens, size.operations);
    measure_shared(bench, size, floor);
    measure_distinct(bench, size, floor);
    measure_conversation(bench, size, floor);
  }
  std::printf("%d goals, %d missed\n", bench.goals, bench.missed);
  return 0;
}
