// Bytes as operations on a pool: the first says which geometry, or that the next ones make one up;
// each other is one choice, of an operation or an operand. Every outcome is compared with the
// reference, every handle read after every operation (tests/pool/world.h).
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>

#include "world.h"

using kern::pool::Geometry;
using kern_test::Broken;
using kern_test::Setup;
using kern_test::World;

namespace {

class Bytes final : public kern_test::Chooser {
 public:
  explicit Bytes(std::span<const uint8_t> bytes) : bytes_(bytes) {}
  uint32_t below(uint32_t bound) override {
    if (bound < 2 || done()) return 0;
    return bytes_[next_++] % bound;
  }
  bool done() const { return next_ == bytes_.size(); }

 private:
  std::span<const uint8_t> bytes_;
  size_t next_ = 0;
};

Setup setup_of(Bytes& bytes) {
  const auto known = kern_test::setups();
  const uint32_t which = bytes.below(static_cast<uint32_t>(2 * known.size()));
  if (which < known.size()) return known[which];
  const uint32_t page_tokens = 1 + bytes.below(5);
  const bool recurrent = bytes.below(2) == 1;
  Geometry geometry{.page_tokens = page_tokens,
                    .pages = 2 + bytes.below(24),
                    .slots = recurrent ? 2 + bytes.below(8) : 0,
                    .recurrent = recurrent,
                    .row_pages_max = 1 + bytes.below(9)};
  // A page and a slot hold at least what the reference writes there.
  if (bytes.below(2) == 1) {
    geometry.page_bytes = 8 * page_tokens + bytes.below(16);
    geometry.slot_bytes = recurrent ? 8 + bytes.below(100) : 0;
    geometry.host_bytes = 1 + 20 * bytes.below(100);
  }
  return {.geometry = geometry, .by_cost = bytes.below(2) == 1};
}

void play(std::span<const uint8_t> input, bool traced) {
  Bytes bytes(input);
  Setup setup = setup_of(bytes);
  setup.traced = traced;
  if (!kern::pool::refusal(setup.geometry).empty()) return;
  World world(setup, bytes);
  while (!bytes.done()) {
    world.step();
    world.verify();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    play({data, size}, false);
  } catch (const Broken&) {
    try {
      play({data, size}, true);
    } catch (const Broken& broken) {
      std::fprintf(stderr, "%s\n", broken.what());
    }
    std::abort();
  }
  return 0;
}
