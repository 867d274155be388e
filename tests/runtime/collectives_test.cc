#include <thread>

#include "fixture.h"
#include "kern/runtime/local_peers.h"

using namespace kern;
using namespace kern_test;
using runtime::VarValue;

namespace {

constexpr int kRanks = 3;

// One collective over three ranks: n elements a rank from x to y, [12] and [12] at the bound.
std::string collective(const std::string& name, const std::string& dtype) {
  const std::string buffer = "buffer<" + dtype + ">";
  return R"({
    "schema_version": 7, "model": "collective", "uses": ["collectives", "host"], "device": "host",
    "topology": {"groups": {"tp": 3}}, "vars": {"n": {"max": 4}}, "states": {},
    "buffers": {"x": {"dtype": ")" +
         dtype + R"(", "shape": [12], "kind": "input"},
                "y": {"dtype": ")" +
         dtype + R"(", "shape": [12], "kind": "output"}},
    "modules": {},
    "ops": {"share": {"params": ["in )" +
         buffer + R"(", "out )" + buffer + R"(", "i64"],
      "impl": {"launches": [{"entry": "extern:)" +
         name + R"(", "params": ["in )" + buffer + R"(", "out )" + buffer + R"(", "i64", "i32"],
        "args": [{"param": 0}, {"param": 1}, {"param": 2}, {"rank": "tp"}]}]}}},
    "programs": {"main": {"calls": [{"op": "share", "args": [{"buf": "x"}, {"buf": "y"},
      {"var": "n"}]}]}}
  })";
}

/// Runs one step on three threads; `x` is what each rank sends. Returns each rank's `y`.
template <class T>
std::vector<std::vector<T>> share(const std::string& name, const std::string& dtype, int64_t n,
                                  const std::vector<std::vector<T>>& x) {
  runtime::LocalGroup group(kRanks);
  std::vector<std::vector<T>> out(kRanks);
  std::vector<std::unique_ptr<runtime::Runtime>> runtimes;
  for (int rank = 0; rank < kRanks; ++rank) {
    runtime::Options with = options();
    with.peers["tp"] = &group.member(rank);
    runtimes.push_back(loaded(collective(name, dtype), with));
    put(runtimes.back()->buffer("x"), x[static_cast<size_t>(rank)]);
  }
  std::vector<std::thread> threads;
  std::vector<char> good(kRanks, 0);
  for (size_t rank = 0; rank < kRanks; ++rank)
    threads.emplace_back([&, rank] {
      good[rank] = runtimes[rank]->run("main", std::vector<VarValue>{{"n", n}}).has_value();
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(good == std::vector<char>(kRanks, 1));
  for (size_t rank = 0; rank < kRanks; ++rank) out[rank] = get<T>(runtimes[rank]->buffer("y"), 12);
  return out;
}

using Floats = std::vector<std::vector<float>>;

}  // namespace

TEST_CASE("an all-reduce sums in rank order, the same bytes on every rank",
          "[runtime][collectives]") {
  // (1e8 + 1) - 1e8 is 0 in f32; any other order gives 1.
  const Floats x = {{1e8f, 1, 2}, {1, 10, 20}, {-1e8f, 100, 200}};
  for (const auto& y : share("allreduce_f32", "f32", 3, x)) {
    CHECK(y[0] == 0);
    CHECK(y[1] == 111);
    CHECK(y[2] == 222);
    CHECK(y[3] == 0);
  }
}

TEST_CASE("a bf16 all-reduce sums in f32 and rounds once", "[runtime][collectives]") {
  // 1 + 2^-8 + 2^-8: rounding after each sum would stay at 1.
  const std::vector<std::vector<uint16_t>> x = {{0x3F80}, {0x3B80}, {0x3B80}};
  for (const auto& y : share("allreduce_bf16", "bf16", 1, x)) CHECK(y[0] == 0x3F81);
}

TEST_CASE("gathered blocks lie in rank order", "[runtime][collectives]") {
  for (const auto& y : share("allgather_f32", "f32", 2, Floats{{1, 2}, {3, 4}, {5, 6}}))
    CHECK(std::vector<float>(y.begin(), y.begin() + 6) == std::vector<float>{1, 2, 3, 4, 5, 6});
}

TEST_CASE("a reduce-scatter leaves each rank the sum of its block", "[runtime][collectives]") {
  const auto y =
      share("reducescatter_f32", "f32", 2,
            Floats{{1, 2, 3, 4, 5, 6}, {10, 20, 30, 40, 50, 60}, {100, 0, 0, 0, 0, 600}});
  CHECK(y[0][0] == 111);
  CHECK(y[1][1] == 44);
  CHECK(y[2][1] == 666);
}

TEST_CASE("an all-to-all hands block i to member i", "[runtime][collectives]") {
  const auto y = share("alltoall_f32", "f32", 1, Floats{{1, 2, 3}, {4, 5, 6}, {7, 8, 9}});
  CHECK(std::vector<float>(y[1].begin(), y[1].begin() + 3) == std::vector<float>{2, 5, 8});
}

TEST_CASE("a collective that spans more than its buffer is refused at load",
          "[runtime][collectives]") {
  runtime::LocalGroup group(kRanks);
  runtime::Options with = options();
  with.peers["tp"] = &group.member(0);
  std::string json = collective("allgather_f32", "f32");
  json.replace(json.find("\"max\": 4"), 8, "\"max\": 5");
  CHECK(refusal(json, with) ==
        "program `main`, call 0, op `share` launch #0: `extern:allgather_f32` arg #1 spans 15 "
        "elements, but `y` has 48 bytes left");
}

TEST_CASE("a lost peer fails the run with its kind", "[runtime][collectives]") {
  runtime::LocalGroup group(kRanks);
  runtime::Options with = options();
  with.peers["tp"] = &group.member(0);
  group.leave(2);
  const auto r = loaded(collective("allreduce_f32", "f32"), with);
  const auto done = r->run("main", std::vector<VarValue>{{"n", 1}});
  REQUIRE_FALSE(done);
  CHECK(done.error().kind == Kind::peer);
  CHECK(done.error().text() == "program `main`, call 0, op `share`: rank 2 has left");
}
