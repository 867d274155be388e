#include <catch2/catch.hpp>
#include <vector>

#include "world.h"

using kern::pool::Geometry;
using kern_test::Chooser;
using kern_test::World;

namespace {

// Tries every sequence of choices: each run replays a prefix of the last and differs in its last
// choice that had another value left.
class Odometer final : public Chooser {
 public:
  uint32_t below(uint32_t bound) override {
    if (next_ == digits_.size()) digits_.push_back({0, bound});
    return digits_[next_++].value;
  }
  bool advance() {
    next_ = 0;
    while (!digits_.empty() && digits_.back().value + 1 == digits_.back().bound) digits_.pop_back();
    if (digits_.empty()) return false;
    ++digits_.back().value;
    return true;
  }

 private:
  struct Digit {
    uint32_t value, bound;
  };
  std::vector<Digit> digits_;
  size_t next_ = 0;
};

// Every order of operations and operands up to a depth; a run ends at one that has nothing to do.
uint64_t enumerate(const Geometry& geometry, uint32_t depth) {
  Odometer choose;
  uint64_t runs = 0;
  do {
    World world(geometry, choose);
    for (uint32_t i = 0; i < depth && world.step(); ++i) {
    }
    ++runs;
  } while (choose.advance());
  return runs;
}

}  // namespace

TEST_CASE("every short history on two pages and two slots holds", "[pool][prop]") {
  const Geometry tiny{.page_tokens = 1, .pages = 3, .slots = 3, .recurrent = true,
                      .row_pages_max = 2};
  CHECK(enumerate(tiny, 5) > 10'000);
}

TEST_CASE("every short history on four pages without state holds", "[pool][prop]") {
  const Geometry tiny{.page_tokens = 2, .pages = 5, .recurrent = false, .row_pages_max = 2};
  CHECK(enumerate(tiny, 4) > 10'000);
}
