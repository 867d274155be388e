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
  // Whether this run has made a choice that no run before it made after the same ones.
  bool fresh() const { return next_ > replayed_; }
  bool advance() {
    next_ = 0;
    while (!digits_.empty() && digits_.back().value + 1 == digits_.back().bound) digits_.pop_back();
    if (digits_.empty()) return false;
    ++digits_.back().value;
    replayed_ = digits_.size() - 1;
    return true;
  }

 private:
  struct Digit {
    uint32_t value, bound;
  };
  std::vector<Digit> digits_;
  size_t next_ = 0;
  size_t replayed_ = 0;
};

// Every order of operations and operands up to a depth; a run ends at one that has nothing to do.
uint64_t enumerate(const Geometry& geometry, uint32_t depth) {
  Odometer choose;
  uint64_t runs = 0;
  do {
    World world(geometry, choose);
    for (uint32_t i = 0; i < depth && world.step(); ++i)
      if (choose.fresh()) world.verify();
    ++runs;
  } while (choose.advance());
  return runs;
}

// Two pages of one token and two slots; four pages of two tokens and no state.
const Geometry kStateful{
    .page_tokens = 1, .pages = 3, .slots = 3, .recurrent = true, .row_pages_max = 2};
const Geometry kStateless{.page_tokens = 2, .pages = 5, .recurrent = false, .row_pages_max = 2};
// Room in the host tier for one page and one slot, or two pages.
const Geometry kTiered{1, 3, 3, true, 2, 30, 10, 18};

}  // namespace

TEST_CASE("every history of a few operations holds", "[pool][prop]") {
  const uint64_t stateful = enumerate(kStateful, 4);
  const uint64_t stateless = enumerate(kStateless, 3);
  CHECK(stateful > 4000);
  CHECK(stateless > 4000);
  CHECK(enumerate(kTiered, 4) > 4000);
}

TEST_CASE("every history of five operations holds", "[pool][prop][.]") {
  CHECK(enumerate(kStateful, 5) > 50'000);
  CHECK(enumerate(kStateless, 5) > 100'000);
}
