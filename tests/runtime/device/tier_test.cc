// The host tier on a real device: bytes, rates against a plain copy, and steps that go on
// meanwhile.
#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <thread>

#include "../fixture.h"
#include "kern/base/prng.h"
#include "kern/cuda/memory.h"
#include "kern/cuda/stream.h"
#include "kern/runtime/host_tier.h"

using namespace kern;
using namespace kern_test;
using runtime::TierMove;
using runtime::VarValue;

namespace {

constexpr int kPaged = 3, kLines = 9;  // the states of a stage of twelve layers
constexpr int64_t kTokenBytes = 1152, kPageTokens = 64, kLineBytes = 6512640;
constexpr int64_t kPages = 2 * 2048 + 1, kSlots = 4, kPrefixPages = 2048;
constexpr int64_t kPrefixBytes =
    kPaged * kTokenBytes * kPageTokens * kPrefixPages + kLines * kLineBytes;

/// A program of many launches that names every state.
std::string manifest(const std::string& hash) {
  std::string states, calls;
  const auto add = [&](const std::string& name, const std::string& size) {
    states += (states.empty() ? "\"" : ", \"") + name + "\": {" + size + "}";
    calls += R"({"op": "read", "args": [{"state": ")" + name +
             R"("}, {"buf": "y"}, {"f32": 1}, {"i32": 1024}]}, )";
  };
  for (int i = 0; i < kPaged; ++i)
    add("kv" + std::to_string(i), "\"bytes_per_token\": " + std::to_string(kTokenBytes));
  for (int i = 0; i < kLines; ++i)
    add("kda" + std::to_string(i), "\"bytes_per_seq\": " + std::to_string(kLineBytes));
  const std::string scale = R"({"op": "scale", "args": [{"buf": "x"}, {"buf": "y"}, {"f32": 2},
    {"i32": 1024}]})";
  for (int i = 0; i < 200; ++i) calls += scale + (i < 199 ? ", " : "");
  const auto op = [](const std::string& from) {
    return R"({"params": ["in )" + from + R"(", "out buffer<f32>", "f32", "i32"],
      "impl": {"launches": [{"module": "probe", "entry": "probe_scale", "block": [128, 1, 1],
        "grid": [8, 1, 1]}]}})";
  };
  return R"({"schema_version": 7, "model": "tier", "vars": {}, "states": {)" + states + R"(},
    "buffers": {"x": {"dtype": "f32", "shape": [1024], "kind": "input"},
                "y": {"dtype": "f32", "shape": [1024], "kind": "output"}},
    "modules": {"probe": {"source": "probe.cubin", "sha256": ")" +
         hash + R"("}},
    "ops": {"read": )" +
         op("state") + R"(, "scale": )" + op("buffer<f32>") + R"(},
    "programs": {"main": {"calls": [)" +
         calls + "]}}}";
}

std::unique_ptr<runtime::Runtime> load() {
  const auto here = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const auto bytes = read_file(here / "probe.cubin", 1 << 24);
  REQUIRE(bytes);
  runtime::Options with;
  with.module_dirs = {here};
  with.capacity = {kPages, kPageTokens, kSlots};
  with.host_tier_bytes = 2 * kPrefixBytes;
  auto loaded = runtime::Runtime::load(verified(manifest(to_hex(sha256(as_bytes(*bytes))))),
                                       nullptr, with, Log("tier", Level::info));
  if (!loaded) FAIL(loaded.error().text());
  return std::move(*loaded);
}

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// A prefix of 131,072 tokens and its line, from `first_page` on; scattered: no two pages lie side
/// by side.
std::vector<TierMove> prefix(TierMove::Way way, int64_t first_page, int64_t slot, bool scattered) {
  std::vector<TierMove> moves;
  for (int64_t i = 0; i < kPrefixPages; ++i) {
    const int64_t at = scattered ? i % 2 * (kPrefixPages / 2) + i / 2 : i;
    moves.push_back({way, false, first_page + at, i + 1});
  }
  moves.push_back({way, true, slot, 1});
  return moves;
}

double moved_in(runtime::HostTier& tier, const std::vector<TierMove>& moves) {
  const auto start = Clock::now();
  REQUIRE(tier.move(moves));
  REQUIRE(tier.settle());
  return seconds_since(start);
}

std::vector<std::byte> noise(size_t bytes, uint64_t seed) {
  Prng prng(seed);
  std::vector<std::byte> out(bytes);
  for (size_t i = 0; i + 8 <= bytes; i += 8) {
    const uint64_t word = prng.next();
    std::memcpy(out.data() + i, &word, 8);
  }
  return out;
}

void step(runtime::Runtime& r) {
  REQUIRE(r.run("main", std::vector<VarValue>{}));
}

}  // namespace

TEST_CASE("a prefix that was parked wakes elsewhere with the same bytes, steps between and beside",
          "[gpu][tier]") {
  const auto r = load();
  runtime::HostTier& tier = *r->host_tier();
  const auto pages = noise(kPrefixPages * kPageTokens * kTokenBytes, 1);
  const auto line = noise(kLineBytes, 2);
  const int64_t page_bytes = kPageTokens * kTokenBytes;
  for (const bool scattered : {false, true}) {
    REQUIRE(r->write_state("kv1", page_bytes, pages));
    REQUIRE(r->write_state("kda8", kLineBytes, line));
    REQUIRE(tier.move(prefix(TierMove::Way::park, 1, 1, scattered)));
    for (int i = 0; i < 20; ++i) step(*r);
    // other bytes come to where it lay, once the copies have read it
    const auto emptied = tier.move(prefix(TierMove::Way::park, kPrefixPages + 1, 3, false));
    REQUIRE(emptied);
    REQUIRE(tier.await(*emptied - 1));
    for (int64_t page = 1; page <= kPrefixPages; ++page) REQUIRE(r->copy_page(0, page));
    REQUIRE(r->zero_slot(1));
    REQUIRE(r->synchronize());
    REQUIRE(tier.settle());
    // what was parked last came to the same places of the host; this one's own bytes once more
    REQUIRE(r->write_state("kv1", page_bytes, pages));
    REQUIRE(r->write_state("kda8", kLineBytes, line));
    REQUIRE(tier.move(prefix(TierMove::Way::park, 1, 1, scattered)));
    const auto woken = tier.move(prefix(TierMove::Way::wake, kPrefixPages + 1, 2, scattered));
    REQUIRE(woken);
    REQUIRE(tier.await(*woken));
    REQUIRE(r->copy_slot(2, 3));  // of the main stream: it waits for the wake
    step(*r);
    std::vector<std::byte> there(pages.size());
    REQUIRE(r->read_state("kv1", (kPrefixPages + 1) * page_bytes, there));
    CHECK((there == pages));
    there.resize(line.size());
    REQUIRE(r->read_state("kda8", 3 * kLineBytes, there));
    CHECK((there == line));
  }
}

TEST_CASE("how fast a prefix is parked and woken, against a plain copy, and steps meanwhile",
          "[gpu][tier][bench]") {
  const auto r = load();
  runtime::HostTier& tier = *r->host_tier();
  const double gigabytes = kPrefixBytes * 1e-9;
  double plain_out = 0, plain_in = 0;
  {
    const auto driver = cuda::Driver::load();
    REQUIRE(driver);
    const auto context = cuda::Context::open(**driver, 0);
    REQUIRE(context);
    const auto stream = cuda::Stream::create(**driver);
    const auto pinned = cuda::PinnedBuffer::allocate(*context, kPrefixBytes);
    const auto memory = cuda::DeviceBuffer::allocate(*context, kPrefixBytes);
    REQUIRE((stream && pinned && memory));
    for (int i = 0; i < 3; ++i) {
      auto start = Clock::now();
      REQUIRE(stream->copy_to_host(pinned->bytes(), memory->address()));
      REQUIRE(stream->synchronize());
      plain_out = gigabytes / seconds_since(start);
      start = Clock::now();
      REQUIRE(stream->copy_to_device(memory->address(), pinned->bytes()));
      REQUIRE(stream->synchronize());
      plain_in = gigabytes / seconds_since(start);
    }
  }
  std::string line = fmt::format("{:.2f} GB: plain copy out {:.1f} GB/s, in {:.1f};", gigabytes,
                                 plain_out, plain_in);
  for (const bool scattered : {false, true}) {
    double out = 0, in = 0;
    for (int i = 0; i < 3; ++i) {
      out = gigabytes / moved_in(tier, prefix(TierMove::Way::park, 1, 1, scattered));
      in = gigabytes / moved_in(tier, prefix(TierMove::Way::wake, 1, 1, scattered));
    }
    line += fmt::format(" {} park {:.1f} GB/s, wake {:.1f};",
                        scattered ? "pages scattered:" : "pages side by side:", out, in);
  }
  for (int i = 0; i < 20; ++i) step(*r);
  auto start = Clock::now();
  for (int i = 0; i < 100; ++i) step(*r);
  const double alone = seconds_since(start) / 100;
  for (const auto way : {TierMove::Way::park, TierMove::Way::wake}) {
    start = Clock::now();
    uint64_t ticket = 0;
    for (int i = 0; i < 8; ++i) {  // a few in a row, so that there are steps beside them
      const auto moved = tier.move(prefix(way, 1, 1, false));
      REQUIRE(moved);
      ticket = *moved;
    }
    const double issued = seconds_since(start);
    int steps = 0;
    for (uint64_t done = 0; done < ticket; ++steps) {
      step(*r);
      const auto now = tier.done();
      REQUIRE(now);
      done = *now;
    }
    const double took = seconds_since(start);
    CHECK(steps > 4);
    line += fmt::format(
        " eight {}: {:.1f} ms, {:.2f} ms to start, {} steps of {:.0f} us beside "
        "them (alone {:.0f} us);",
        way == TierMove::Way::park ? "parked" : "woken", took * 1e3, issued * 1e3, steps,
        (took - issued) / steps * 1e6, alone * 1e6);
  }
  WARN(line);
}
