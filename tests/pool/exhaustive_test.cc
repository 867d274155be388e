// Every order of operations on pools of a few pages. Histories that lead to the same state have the
// same future, so each state is continued once; that this leaves nothing out is tested itself, by
// following every single history to a smaller depth.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "world.h"

using kern::pool::Geometry;
using kern_test::Broken;
using kern_test::Chooser;
using kern_test::Setup;
using kern_test::World;

namespace {

using Path = std::vector<uint8_t>;  // choices from the start

// Makes the choices of a path, then every sequence of choices that can follow.
class Odometer final : public Chooser {
 public:
  explicit Odometer(Path fixed) : path_(std::move(fixed)), fixed_(path_.size()) {}
  uint32_t below(uint32_t bound) override {
    if (next_ == path_.size()) {
      path_.push_back(0);
      bounds_.push_back(bound);
    }
    return path_[next_++];
  }
  bool advance() {
    next_ = 0;
    while (path_.size() > fixed_ && path_.back() + 1u == bounds_.back()) {
      path_.pop_back();
      bounds_.pop_back();
    }
    if (path_.size() == fixed_) return false;
    ++path_.back();
    return true;
  }
  const Path& path() const { return path_; }

 private:
  Path path_;
  const size_t fixed_;
  std::vector<uint32_t> bounds_;  // of what follows the fixed ones
  size_t next_ = 0;
};

[[noreturn]] void show_broken(Setup setup, const Path& path, uint32_t depth) {
  setup.traced = true;
  Odometer choose(path);
  try {
    World world(setup, choose);
    for (uint32_t i = 0; i <= depth; ++i) {
      world.step();
      world.verify();
    }
  } catch (const Broken& broken) {
    FAIL(broken.what());
  }
  FAIL("breaks only once");
  std::abort();
}

// Calls `visit` with the state and the path of each operation that can follow a path of so many.
template <class Visit>
void go_on(const Setup& setup, const Path& path, uint32_t depth, Visit&& visit) {
  Odometer choose(path);
  do {
    try {
      World world(setup, choose);
      for (uint32_t i = 0; i < depth; ++i) world.step();
      if (!world.step()) continue;
      world.verify();
      visit(world.key(), choose.path());
    } catch (const Broken&) {
      show_broken(setup, choose.path(), depth);
    }
  } while (choose.advance());
}

std::string start_of(const Setup& setup) {
  Odometer choose({});
  return World(setup, choose).key();
}

// The states that so many operations can lead to, each continued once.
std::unordered_set<std::string> states(const Setup& setup, uint32_t depth, uint64_t& operations) {
  std::unordered_set<std::string> seen{start_of(setup)};
  std::vector<Path> now{{}};
  for (uint32_t done = 0; done < depth; ++done) {
    std::vector<Path> next;
    for (const Path& path : now)
      go_on(setup, path, done, [&](std::string state, const Path& to) {
        ++operations;
        if (seen.insert(std::move(state)).second) next.push_back(to);
      });
    now = std::move(next);
  }
  return seen;
}

using Futures = std::map<std::string, std::set<std::string>>;

// Follows every history; states that are equal must have equal futures, whichever way led there.
void follow(const Setup& setup, const std::string& state, const Path& path, uint32_t depth,
            uint32_t depth_max, Futures& futures, uint64_t& histories) {
  std::set<std::string> future;
  std::vector<std::pair<std::string, Path>> ways;
  go_on(setup, path, depth, [&](std::string to, const Path& way) {
    ++histories;
    future.insert(to);
    ways.emplace_back(std::move(to), way);
  });
  const auto [known, fresh] = futures.emplace(state, future);
  if (!fresh && known->second != future) FAIL("two futures of " << state);
  if (depth + 1 == depth_max) return;
  for (const auto& [to, way] : ways)
    follow(setup, to, way, depth + 1, depth_max, futures, histories);
}

#if defined(__SANITIZE_ADDRESS__)
constexpr uint32_t kShallower = 2;  // under sanitizers an operation takes far longer
#else
constexpr uint32_t kShallower = 0;
#endif

// Two to four pages of one token or two, and two slots or no state; host memory for a page and a
// slot, for two pages, or for two of each.
struct Tiny {
  const char* name;
  Setup setup;
  uint32_t depth;      // that every order is followed to
  uint32_t histories;  // the depth that every history is followed to
  Tiny(const char* name, const Geometry& geometry, uint32_t depth, uint32_t histories)
      : name(name),
        setup{.geometry = geometry, .narrow = true},
        depth(depth - kShallower),
        histories(histories - kShallower) {}
};
const std::vector<Tiny> kTiny{
    {"two pages", {1, 3, 3, true, 2}, 8, 5},
    {"two pages, host memory", {1, 3, 3, true, 2, 30, 10, 18}, 8, 5},
    {"three pages, host memory", {1, 4, 3, true, 3, 30, 10, 18}, 8, 5},
    {"four pages, host memory", {1, 5, 3, true, 4, 50, 16, 10}, 8, 4},
    {"four pages of two tokens", {2, 5, 3, true, 2}, 8, 4},
    {"four pages of two tokens, host memory", {2, 5, 3, true, 2, 50, 16, 10}, 8, 4},
    {"four pages of two tokens, no state", {2, 5, 0, false, 2}, 6, 4},
    {"three pages, no state, host memory", {1, 4, 0, false, 3, 20, 10, 0}, 6, 4},
};

uint64_t enumerate(const Tiny& tiny, uint32_t depth) {
  uint64_t operations = 0;
  const auto seen = states(tiny.setup, depth, operations);
  std::cout << "pool: every order of " << depth << " operations on " << tiny.name << ": "
            << seen.size() << " states, " << operations << " operations\n";
  return seen.size();
}

}  // namespace

TEST_CASE("every order of up to eight operations on a tiny pool holds", "[pool][prop]") {
  for (const Tiny& tiny : kTiny) CHECK(enumerate(tiny, tiny.depth) > 10 * tiny.depth);
}

TEST_CASE("every order of eight operations holds without state too", "[pool][prop][.]") {
  for (const Tiny& tiny : kTiny)
    if (!tiny.setup.geometry.recurrent) CHECK(enumerate(tiny, 8) > 1000);
}

TEST_CASE("equal states have equal futures, and continuing one of them reaches every other",
          "[pool][prop]") {
  for (const Tiny& tiny : kTiny) {
    Futures futures;
    uint64_t histories = 0, operations = 0;
    const std::string start = start_of(tiny.setup);
    follow(tiny.setup, start, {}, 0, tiny.histories, futures, histories);
    std::unordered_set<std::string> reached{start};
    for (const auto& [state, future] : futures) reached.insert(future.begin(), future.end());
    std::cout << "pool: every history of " << tiny.histories << " operations on " << tiny.name
              << ": " << histories << " of them, " << reached.size() << " states\n";
    CHECK(histories > 2 * reached.size());
    CHECK(reached == states(tiny.setup, tiny.histories, operations));
  }
}
