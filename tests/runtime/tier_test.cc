// The host tier: pages and slots parked and woken, on the host and on a driver without a device.
#include "fixture.h"
#include "kern/runtime/host_tier.h"
#include "kern_test/fake_driver.h"

using namespace kern;
using namespace kern_test;
using runtime::TierMove;
using runtime::VarValue;
namespace api = cuda::api;

namespace {

constexpr auto kPark = TierMove::Way::park;
constexpr auto kWake = TierMove::Way::wake;

// Two paged states, two per-sequence states and a fixed one; a page takes 4 x (8 + 2) bytes, a slot
// 24 + 6.
std::string states(const std::string& head, const std::string& module) {
  return R"({"schema_version": 7, "model": "tier", )" + head + R"( "vars": {},
  "states": {"kv": {"bytes_per_token": 8}, "rec": {"bytes_per_seq": 24},
             "kv2": {"bytes_per_token": 2}, "rec2": {"bytes_per_seq": 6}, "all": {"bytes": 64}},
  "buffers": {"o": {"dtype": "u8", "shape": [64], "kind": "output"}},
  "modules": {"test": )" +
         module + R"(},
  "ops": {"copy": {"params": ["in state", "in state", "in state", "in state", "in state",
      "out buffer<u8>"],
    "impl": {"launches": [{"module": "test", "entry": "test_gather", "block": [1, 1, 1],
      "grid": [1, 1, 1]}]}}},
  "programs": {"main": {"calls": [{"op": "copy", "args": [{"state": "kv"}, {"state": "rec"},
    {"state": "kv2"}, {"state": "rec2"}, {"state": "all"}, {"buf": "o"}]}]}}})";
}

struct Gpu {
  Gpu() : cubin(fake_cubin()) {
    REQUIRE(write_file(dir / "test.cubin", as_bytes(cubin)));
    fake.kernels["test_gather"] = {{8, 8, 8, 8, 8, 8},
                                   [](const api::LaunchConfig&, void* const*) {}};
  }
  Result<std::unique_ptr<runtime::Runtime>> load(int64_t tier_bytes, int64_t token_bytes = 8) {
    runtime::Options with;
    with.module_dirs = {dir.path()};
    with.driver = &fake.driver();
    with.capacity = {8, 4, 4};
    with.host_tier_bytes = tier_bytes;
    const std::string module =
        R"({"source": "test.cubin", "sha256": ")" + to_hex(sha256(as_bytes(cubin))) + R"("})";
    std::string text = states("", module);
    const std::string token = R"("kv": {"bytes_per_token": )";
    text.replace(text.find(token), token.size() + 1, token + std::to_string(token_bytes));
    return runtime::Runtime::load(verified(text), nullptr, with, quiet());
  }
  TempDir dir;
  std::string cubin;
  FakeDriver fake;
};

Result<std::unique_ptr<runtime::Runtime>> load_on_host(int64_t tier_bytes) {
  auto with = options();
  with.capacity = {8, 4, 4};
  with.host_tier_bytes = tier_bytes;
  const std::string module = R"({"source": "test.so", "sha256": "@HASH@"})";
  return runtime::Runtime::load(verified(states(R"("uses": ["host"], "device": "host",)", module)),
                                nullptr, with, quiet());
}

std::unique_ptr<runtime::Runtime> good(Result<std::unique_ptr<runtime::Runtime>> loaded) {
  if (!loaded) FAIL(loaded.error().text());
  return std::move(*loaded);
}

template <class T>
std::string sentence(const Result<T>& result) {
  return result ? "" : result.error().text();
}

/// Bytes of one place of each state that has such places, all different.
struct Places {
  const char* name;
  int64_t bytes;
};
constexpr Places kPages[] = {{"kv", 32}, {"kv2", 8}};
constexpr Places kSlots[] = {{"rec", 24}, {"rec2", 6}};

std::vector<std::byte> pattern(const Places& state, int mark) {
  std::vector<std::byte> bytes(static_cast<size_t>(state.bytes));
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(static_cast<size_t>(mark) * 37 + i + (state.name[0] == 'k') +
                                      7 * std::strlen(state.name));
  return bytes;
}

template <size_t kCount>
void fill(runtime::Runtime& r, const Places (&states)[kCount], int64_t place, int mark) {
  for (const Places& state : states)
    REQUIRE(r.write_state(state.name, place * state.bytes, pattern(state, mark)));
}

template <size_t kCount>
bool holds(runtime::Runtime& r, const Places (&states)[kCount], int64_t place, int mark) {
  bool same = true;
  for (const Places& state : states) {
    std::vector<std::byte> bytes(static_cast<size_t>(state.bytes));
    REQUIRE(r.read_state(state.name, place * state.bytes, bytes));
    same &= bytes == pattern(state, mark);
  }
  return same;
}

/// What must hold on every device.
void parks_and_wakes(runtime::Runtime& r) {
  REQUIRE(r.host_tier() != nullptr);
  runtime::HostTier& tier = *r.host_tier();
  CHECK(tier.size().page_bytes == 40);
  CHECK(tier.size().slot_bytes == 30);
  for (int page = 1; page < 6; ++page) fill(r, kPages, page, page);
  fill(r, kSlots, 1, 11);
  fill(r, kSlots, 2, 12);
  // a run of three, one apart, two slots that lie the other way round
  const std::vector<TierMove> out = {{kPark, false, 1, 1}, {kPark, false, 2, 2},
                                     {kPark, false, 3, 3}, {kPark, false, 5, 4},
                                     {kPark, true, 1, 1},  {kPark, true, 2, 2}};
  const auto ticket = tier.move(out);
  REQUIRE(ticket);
  CHECK(*ticket == 1);
  REQUIRE(tier.await(*ticket));
  for (int page = 1; page < 8; ++page) fill(r, kPages, page, 90 + page);
  fill(r, kSlots, 1, 80);
  fill(r, kSlots, 2, 81);
  // elsewhere, in another order, and one place of the host filled anew behind its last reader
  const std::vector<TierMove> back = {{kWake, false, 6, 2}, {kWake, false, 7, 3},
                                      {kWake, true, 3, 2},  {kWake, false, 1, 1},
                                      {kPark, false, 4, 1}, {kWake, false, 2, 1}};
  const auto second = tier.move(back);
  REQUIRE(second);
  CHECK(*second == 2);
  REQUIRE(tier.settle());
  const auto done = tier.done();
  REQUIRE(done);
  CHECK(*done == 2);
  CHECK(holds(r, kPages, 6, 2));
  CHECK(holds(r, kPages, 7, 3));
  CHECK(holds(r, kSlots, 3, 12));
  CHECK(holds(r, kPages, 1, 1));
  CHECK(holds(r, kPages, 2, 94));
  CHECK(holds(r, kPages, 3, 93));
  CHECK(holds(r, kSlots, 1, 80));
}

}  // namespace

TEST_CASE("what was parked wakes at another place with the same bytes", "[runtime][tier]") {
  SECTION("on the host") {
    const auto r = good(load_on_host(4 * 40 + 2 * 30));
    parks_and_wakes(*r);
  }
  SECTION("through a driver") {
    Gpu gpu;
    {
      const auto r = good(gpu.load(4 * 40 + 2 * 30));
      parks_and_wakes(*r);
    }
    CHECK(gpu.fake.live().empty());
  }
}

TEST_CASE("a place outside either memory is refused and nothing moves", "[runtime][tier]") {
  Gpu gpu;
  const auto r = good(gpu.load(100));
  runtime::HostTier& tier = *r->host_tier();
  gpu.fake.take_calls();
  const auto refused = [&](TierMove move) {
    return sentence(tier.move(std::vector<TierMove>{{kPark, false, 1, 1}, move}));
  };
  CHECK(refused({kPark, false, 8, 1}) == "page 8 is outside the capacity of 8");
  CHECK(refused({kWake, true, 4, 1}) == "slot 4 is outside the capacity of 4");
  CHECK(refused({kPark, false, 1, 3}) == "page 3 of the host tier, which has room for 2");
  CHECK(refused({kPark, true, 1, 0}) == "slot 0 of the host tier, which has room for 3");
  CHECK(gpu.fake.take_calls().empty());
}

TEST_CASE("moves run on a stream of their own, behind what was enqueued and ahead of who waits",
          "[runtime][cuda][tier]") {
  Gpu gpu;
  const auto r = good(gpu.load(1000));
  runtime::HostTier& tier = *r->host_tier();
  REQUIRE(r->enqueue("main", std::vector<VarValue>{}));
  const auto calls = gpu.fake.calls_of("cuLaunchKernelEx");
  REQUIRE(calls.size() == 1);
  const std::string main = calls[0].substr(calls[0].rfind("stream "));
  gpu.fake.take_calls();
  REQUIRE(tier.move(std::vector<TierMove>{
      {kPark, false, 1, 1}, {kPark, false, 2, 2}, {kPark, true, 1, 1}, {kWake, false, 3, 1}}));
  auto moved = gpu.fake.take_calls();
  std::erase(moved, "cuCtxSetCurrent");
  std::erase(moved, "cuEventCreate");
  REQUIRE(moved.size() == 9);
  // first the main stream's work so far, then the copies, all on one other stream
  const std::string event = moved[0].substr(0, moved[0].find(" stream"));
  CHECK(moved[0] == event + " " + main);
  const std::string side =
      moved[1].substr(moved[1].find("stream "), moved[1].find(" event") - moved[1].find("stream "));
  CHECK(side != main);
  CHECK(moved[1] == "cuStreamWaitEvent " + side + " " + event.substr(event.find("event ")));
  CHECK(moved[2] == "cuMemcpy2DAsync to host 32 x 2 " + side);
  CHECK(moved[3] == "cuMemcpy2DAsync to host 8 x 2 " + side);
  CHECK(moved[4] == "cuMemcpyDtoHAsync 24 " + side);
  CHECK(moved[5] == "cuMemcpyDtoHAsync 6 " + side);
  CHECK(moved[6] == "cuMemcpyHtoDAsync 32 " + side);
  CHECK(moved[7] == "cuMemcpyHtoDAsync 8 " + side);
  CHECK(moved[8].ends_with(" " + side));
  CHECK(moved[8].starts_with("cuEventRecord event "));
  const std::string mark = moved[8].substr(14, moved[8].find(" stream") - 14);
  // a program that says nothing waits for nothing; one behind `await` waits for the copies' end
  REQUIRE(r->enqueue("main", std::vector<VarValue>{}));
  CHECK(gpu.fake.calls_of("cuStreamWaitEvent").empty());
  gpu.fake.fail("cuEventQuery", api::kNotReady);
  const auto under_way = tier.done();
  REQUIRE(under_way);
  CHECK(*under_way == 0);
  gpu.fake.fail("cuEventQuery", api::kNotReady);
  gpu.fake.take_calls();
  REQUIRE(tier.await(1));
  CHECK(gpu.fake.calls_of("cuStreamWaitEvent") ==
        std::vector<std::string>{"cuStreamWaitEvent " + main + " " + mark});
  // what is done is waited for no more
  const auto done = tier.done();
  REQUIRE(done);
  CHECK(*done == 1);
  gpu.fake.take_calls();
  REQUIRE(tier.await(1));
  CHECK(gpu.fake.calls_of("cuStreamWaitEvent").empty());
}

TEST_CASE("little is given to the device at a time, and what waits goes on when it is asked for",
          "[runtime][cuda][tier]") {
  constexpr int64_t kMiB = 1 << 20;
  Gpu gpu;
  const auto r = good(gpu.load(40 * kMiB, kMiB));  // a page is 4 MiB and 8 bytes
  runtime::HostTier& tier = *r->host_tier();
  std::vector<TierMove> seven;
  for (int64_t page = 1; page < 8; ++page) seven.push_back({kPark, false, page, page});
  const auto rows = [&] {  // of the large state that were given to the device since
    int64_t count = 0;
    for (const std::string& call : gpu.fake.calls_of("cuMemcpy2DAsync to host 4194304 x"))
      count += call[call.find(" x ") + 3] - '0';
    for (const std::string& call : gpu.fake.calls_of("cuMemcpyDtoHAsync 4194304"))
      count += !call.empty();
    gpu.fake.take_calls();
    return count;
  };
  rows();
  for (int i = 0; i < 3; ++i) REQUIRE(tier.move(seven));
  CHECK(rows() == 18);  // of 21: the third move's last three are beyond 64 MiB
  gpu.fake.fail("cuEventQuery", api::kNotReady);
  CHECK(*tier.done() == 0);
  CHECK(rows() == 0);
  REQUIRE(tier.move(seven));
  CHECK(rows() == 0);
  CHECK(*tier.done() == 2);  // both that were whole; room for the rest
  CHECK(rows() == 10);
  CHECK(*tier.done() == 4);
  for (int i = 0; i < 4; ++i) REQUIRE(tier.move(seven));
  CHECK(rows() == 18);
  // who must come behind a move has all of it enqueued, and of later ones no more than before
  gpu.fake.fail("cuEventQuery", api::kNotReady);
  REQUIRE(tier.await(7));
  CHECK(gpu.fake.calls_of("cuStreamWaitEvent").size() == 1);
  CHECK(rows() == 3);
  REQUIRE(tier.settle());
  CHECK(rows() == 7);
  CHECK(*tier.done() == 8);
}

TEST_CASE("a tier that cannot be had is refused in a sentence and leaves nothing behind",
          "[runtime][cuda][tier]") {
  Gpu gpu;
  CHECK(sentence(gpu.load(69)) == "a host tier of 69 bytes: one page and one slot take 70");
  const std::string vast = sentence(gpu.load(int64_t{1} << 60));
  CHECK(vast.starts_with("a host tier of 1073741824.00 GiB: this machine has "));
  CHECK(vast.ends_with(" GiB available"));
  gpu.fake.fail("cuMemHostRegister", api::kOutOfMemory, 3);  // after the staged block and a piece
  const std::string locked = sentence(gpu.load(1 << 20));
  CHECK(locked.starts_with("a host tier of 0.00 GiB: 1048576 bytes of page-locked memory"));
  for (const char* call : {"cuStreamCreate", "cuEventCreate"})
    for (int nth = 1; nth < 6; ++nth) {
      gpu.fake.fail(call, api::kOutOfMemory, nth);
      (void)gpu.load(1 << 20);
      CHECK(gpu.fake.live().empty());
    }
  CHECK(gpu.fake.live().empty());
  CHECK(sentence(load_on_host(int64_t{1} << 60)).starts_with("a host tier of 1073741824.00 GiB"));
}

TEST_CASE("a copy that fails is the device's error, and all is given back",
          "[runtime][cuda][tier]") {
  Gpu gpu;
  for (const char* call : {"cuEventRecord", "cuStreamWaitEvent", "cuMemcpy2DAsync"}) {
    auto r = good(gpu.load(1000));
    gpu.fake.fail(call, api::kInvalidValue);
    const auto moved =
        r->host_tier()->move(std::vector<TierMove>{{kPark, false, 1, 1}, {kPark, false, 2, 2}});
    REQUIRE(!moved);
    CHECK(moved.error().kind == Kind::device);
    CHECK(moved.error().text().find(call) != std::string::npos);
    r.reset();
    CHECK(gpu.fake.live().empty());
  }
}
