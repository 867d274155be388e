#include <array>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include "world.h"

using kern::pool::Geometry;
using kern_test::Chooser;
using kern_test::World;

namespace {

class Xorshift final : public Chooser {
 public:
  explicit Xorshift(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ULL + 1) {}
  uint32_t below(uint32_t bound) override {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return static_cast<uint32_t>((state_ >> 32) * bound >> 32);
  }

 private:
  uint64_t state_;
};

// Roomy and tight, with and without recurrent state, pages of one token and of several.
const std::array<Geometry, 9> kGeometries{{
    {.page_tokens = 4, .pages = 24, .slots = 9, .recurrent = true, .row_pages_max = 8},
    {.page_tokens = 4, .pages = 24, .recurrent = false, .row_pages_max = 8},
    {.page_tokens = 3, .pages = 8, .slots = 4, .recurrent = true, .row_pages_max = 5},
    {.page_tokens = 3, .pages = 8, .recurrent = false, .row_pages_max = 9},
    {.page_tokens = 1, .pages = 16, .slots = 6, .recurrent = true, .row_pages_max = 6},
    // with a host tier, roomy and tight; a slot as large as several pages, and smaller than one
    {4, 24, 9, true, 8, 4000, 32, 80},
    {4, 24, 0, false, 8, 1000, 32, 0},
    {3, 8, 4, true, 5, 310, 24, 88},
    {1, 16, 6, true, 6, 100, 16, 8},
}};

// The seed of KERN_SEED alone, or the first few.
std::vector<uint64_t> seeds(uint64_t count) {
  if (const char* text = std::getenv("KERN_SEED")) return {std::strtoull(text, nullptr, 10)};
  std::vector<uint64_t> seeds(count);
  std::iota(seeds.begin(), seeds.end(), 1);
  return seeds;
}

std::string run(const Geometry& geometry, uint64_t seed, uint32_t steps,
                std::vector<uint32_t>* done = nullptr) {
  Xorshift choose(seed);
  World world(geometry, choose);
  for (uint32_t i = 0; i < steps; ++i) {
    world.step();
    world.verify();
  }
  for (uint32_t i = 0; done != nullptr && i < World::kOperations; ++i)
    (*done)[i] += world.done()[i];
  return world.trace();
}

// How often each operation had its way.
std::vector<uint32_t> run_all(uint64_t seed_count, uint32_t steps) {
  std::vector<uint32_t> done(World::kOperations);
  for (const uint64_t seed : seeds(seed_count))
    for (const Geometry& geometry : kGeometries) {
      INFO("KERN_SEED=" << seed << " pages " << geometry.pages << " page_tokens "
                        << geometry.page_tokens << " recurrent " << geometry.recurrent);
      run(geometry, seed, steps, &done);
    }
  return done;
}

}  // namespace

TEST_CASE("every handle reads what its prefix wrote, over random operations", "[pool][prop]") {
  const std::vector<uint32_t> done = run_all(3, 1200);
  for (const uint32_t count : done) CHECK(count > 100);  // no operation was left out
}

TEST_CASE("every handle reads what its prefix wrote, over long runs", "[pool][prop][.]") {
  const std::vector<uint32_t> done = run_all(40, 10'000);
  for (const uint32_t count : done) CHECK(count > 10'000);
}

TEST_CASE("the same operations give the same trace", "[pool][prop]") {
  for (const uint64_t seed : seeds(3))
    for (const Geometry& geometry : kGeometries) {
      INFO("KERN_SEED=" << seed);
      const std::string once = run(geometry, seed, 300);
      CHECK(once == run(geometry, seed, 300));
      CHECK(once != run(geometry, seed + 100, 300));
    }
}
