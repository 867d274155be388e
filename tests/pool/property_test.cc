// Random operations in many worlds. A run says which seeds it took; KERN_SEED=n takes only that
// one.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <iostream>
#include <numeric>
#include <string>
#include <vector>

#include "world.h"

using kern_test::Broken;
using kern_test::Chooser;
using kern_test::Setup;
using kern_test::World;

namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kRunOperations = 60'000;  // under sanitizers an operation takes far longer
#else
constexpr uint64_t kRunOperations = 1'000'000;
#endif
constexpr uint32_t kWorldOperations = 3000;

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

// The seed of KERN_SEED alone, or the first few.
std::vector<uint64_t> seeds(uint64_t count) {
  if (const char* text = std::getenv("KERN_SEED")) return {std::strtoull(text, nullptr, 10)};
  std::vector<uint64_t> seeds(count);
  std::iota(seeds.begin(), seeds.end(), 1);
  return seeds;
}

// Operations of one world, until so many had something to work on; what each kind did is added up.
std::string run(Setup setup, uint64_t seed, uint32_t operations, bool traced,
                std::vector<uint64_t>* done = nullptr) {
  setup.traced = traced;
  Xorshift choose(seed);
  World world(setup, choose);
  for (uint32_t i = 0; i < operations;) {
    i += world.step();
    world.verify();
  }
  for (uint32_t i = 0; done != nullptr && i < World::kOperations; ++i)
    (*done)[i] += world.done()[i];
  return world.trace();
}

// Runs every setup with every seed; one that breaks is run again for its trace.
void run_all(const std::vector<uint64_t>& seeds, std::vector<uint64_t>& done) {
  for (const uint64_t seed : seeds)
    for (size_t i = 0; i < kern_test::setups().size(); ++i) {
      const Setup& setup = kern_test::setups()[i];
      try {
        run(setup, seed, kWorldOperations, false, &done);
      } catch (const Broken&) {
        try {
          run(setup, seed, kWorldOperations, true);
        } catch (const Broken& broken) {
          FAIL("KERN_SEED=" << seed << ", setup " << i << ": " << broken.what());
        }
        FAIL("KERN_SEED=" << seed << ", setup " << i << ": breaks only once");
      }
    }
}

void random_operations(uint64_t operations) {
  const uint64_t a_seed = kern_test::setups().size() * kWorldOperations;
  const std::vector<uint64_t> chosen = seeds((operations + a_seed - 1) / a_seed);
  std::vector<uint64_t> done(World::kOperations);
  run_all(chosen, done);
  const uint64_t all = std::accumulate(done.begin(), done.end(), uint64_t{0});
  std::cout << "pool: " << all << " random operations in " << kern_test::setups().size()
            << " setups, KERN_SEED " << chosen.front() << " to " << chosen.back() << "\n";
  CHECK(all == chosen.size() * a_seed);
  if (chosen.size() == 1) return;
  CHECK(all >= operations);
  for (const uint64_t count : done) CHECK(count > all / 1000);  // no operation was left out
}

}  // namespace

TEST_CASE("every handle reads what its prefix wrote, over a million random operations",
          "[pool][prop]") {
  random_operations(kRunOperations);
}

TEST_CASE("every handle reads what its prefix wrote, over long runs", "[pool][prop][.]") {
  random_operations(50 * kRunOperations);
}

TEST_CASE("the same operations give the same trace", "[pool][prop]") {
  for (const uint64_t seed : seeds(3))
    for (const Setup& setup : kern_test::setups()) {
      INFO("KERN_SEED=" << seed);
      const std::string once = run(setup, seed, 300, true);
      CHECK(once == run(setup, seed, 300, true));
      CHECK(once != run(setup, seed + 100, 300, true));
    }
}
