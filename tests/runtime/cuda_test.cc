// The cuda device on a driver without a device (kern_test/fake_driver.h): kernels are functions of
// this file, so programs really run, and every call is on record.
#include <catch2/catch.hpp>
#include <cmath>
#include <thread>

#include "fixture.h"
#include "kern/runtime/local_peers.h"
#include "kern_test/fake_driver.h"

using namespace kern;
using namespace kern_test;
using runtime::VarValue;
namespace api = cuda::api;

namespace {

/// out[block, i] = a[block, i] + b[block, i], `width` wide.
FakeKernel add() {
  return {{8, 8, 8, 4}, [](const api::LaunchConfig& config, void* const* params) {
            const auto width = static_cast<size_t>(param<int>(params, 3));
            for (size_t i = 0; i < config.grid[0] * width; ++i)
              param<float*>(params, 2)[i] =
                  param<const float*>(params, 0)[i] + param<const float*>(params, 1)[i];
          }};
}

/// A folder with one cubin, and a driver that has those kernels.
struct Gpu {
  explicit Gpu(const std::string& code = {}) : cubin(fake_cubin(code)) {
    REQUIRE(write_file(dir / "test.cubin", as_bytes(cubin)));
    fake.kernels["add"] = add();
  }

  manifest::Verified read(std::string json) const {
    for (size_t at; (at = json.find("@CUBIN@")) != std::string::npos;)
      json.replace(at, 7, to_hex(sha256(as_bytes(cubin))));
    auto read = manifest::load(json);
    if (!read) FAIL(manifest::to_text(read.error()));
    return std::move(*read);
  }
  runtime::Options options() const {
    runtime::Options out;
    out.module_dirs = {dir.path()};
    out.driver = &fake.driver();
    return out;
  }
  Result<std::unique_ptr<runtime::Runtime>> try_load(
      const std::string& json, const runtime::Options& with,
      const safetensors::Catalog* weights = nullptr) const {
    return runtime::Runtime::load(read(json), weights, with, quiet());
  }
  std::unique_ptr<runtime::Runtime> load(const std::string& json, const runtime::Options& with,
                                         const safetensors::Catalog* weights = nullptr) {
    auto loaded = try_load(json, with, weights);
    if (!loaded) FAIL(loaded.error().text());
    fake.take_calls();
    return std::move(*loaded);
  }
  std::unique_ptr<runtime::Runtime> load(const std::string& json) { return load(json, options()); }
  std::string refusal(const std::string& json) const {
    const auto loaded = try_load(json, options());
    return loaded ? "" : loaded.error().text();
  }

  TempDir dir;
  std::string cubin;
  FakeDriver fake;
};

// x = a + b, z = x + b.
const std::string kChain = R"({
  "schema_version": 7, "model": "chain", "vars": {"rows": {"max": 6}}, "states": {},
  "buffers": {
    "a": {"dtype": "f32", "shape": ["rows", 4], "kind": "input",
          "domain": {"min": -100.0, "max": 100.0}},
    "b": {"dtype": "f32", "shape": ["rows", 4], "kind": "input"},
    "x": {"dtype": "f32", "shape": ["rows", 4], "kind": "workspace"},
    "z": {"dtype": "f32", "shape": ["rows", 4], "kind": "output"}},
  "modules": {"test": {"source": "test.cubin", "sha256": "@CUBIN@"}},
  "ops": {"add": {"params": ["in buffer<f32>", "in buffer<f32>", "out buffer<f32>", "i32"],
    "impl": {"launches": [{"module": "test", "entry": "add", "block": [32, 1, 1],
      "grid": ["rows", 1, 1]}]}}},
  "programs": {"main": {"calls": [
    {"op": "add", "args": [{"buf": "a"}, {"buf": "b"}, {"buf": "x"}, {"i32": 4}], "label": "first"},
    {"op": "add", "args": [{"buf": "x"}, {"buf": "b"}, {"buf": "z"}, {"i32": 4}]}]}}
})";

std::string with(const std::string& from, const std::string& to, std::string text = kChain) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

/// The same as a program that may be captured: one sequence of as many rows as there are.
std::string graph_of_chain() {
  return with(R"("programs": {"main": {)",
              R"("programs": {"main": {"graph": true, "batch": {"groups": 1, "rows": "rows"},)",
              with(R"("vars": {"rows": {"max": 6}})",
                   R"("vars": {"rows": {"max": 6, "axis": "rows"},
                               "seqs": {"max": 1, "axis": "groups"}})",
                   with(R"("grid": ["rows", 1, 1])", R"("grid": ["rows", "seqs", 1])")));
}

std::vector<float> counting(size_t count) {
  std::vector<float> out(count);
  for (size_t i = 0; i < count; ++i) out[i] = static_cast<float>(i);
  return out;
}

std::vector<VarValue> rows(int64_t n) {
  return {{"rows", n}};
}

std::vector<VarValue> seqs(int64_t n) {
  return {{"rows", n}, {"seqs", 1}};
}

using Calls = std::vector<std::string>;

Calls without_context(Calls calls) {
  std::erase(calls, "cuCtxSetCurrent");
  return calls;
}

}  // namespace

TEST_CASE("inputs go in, launches follow in order, outputs come back", "[runtime][cuda]") {
  Gpu gpu;
  const auto r = gpu.load(kChain);
  put(r->buffer("a"), counting(24));
  put(r->buffer("b"), std::vector<float>(24, 10.f));
  REQUIRE(r->run("main", rows(6)));
  CHECK(without_context(gpu.fake.take_calls()) ==
        Calls{"cuMemcpyHtoDAsync 352 stream 1",
              "cuLaunchKernelEx add grid 6,1,1 block 32,1,1 stream 1",
              "cuLaunchKernelEx add grid 6,1,1 block 32,1,1 stream 1",
              "cuMemcpyDtoHAsync 96 stream 1", "cuStreamSynchronize stream 1"});
  const auto z = get<float>(r->buffer("z"), 24);
  for (size_t i = 0; i < 24; ++i) CHECK(z[i] == static_cast<float>(i) + 20);
}

TEST_CASE("only what the caller changed goes over the link, and only the vars' rows come back",
          "[runtime][cuda]") {
  Gpu gpu;
  const auto r = gpu.load(kChain);
  put(r->buffer("b"), std::vector<float>(24, 1.f));
  REQUIRE(r->run("main", rows(6)));
  gpu.fake.take_calls();
  REQUIRE(r->run("main", rows(6)));
  CHECK(gpu.fake.calls_of("cuMemcpyHtoDAsync").empty());
  put(r->buffer("z"), std::vector<float>(24, -1.f));
  put(r->buffer("a"), std::vector<float>{5});
  REQUIRE(r->run("main", rows(2)));
  CHECK(gpu.fake.calls_of("cuMemcpyHtoDAsync") == Calls{"cuMemcpyHtoDAsync 32 stream 1"});
  const auto z = get<float>(r->buffer("z"), 24);
  CHECK(z[0] == 7);
  CHECK(z[7] == 2);
  CHECK(z[8] == -1);
}

TEST_CASE("an output that the caller does not read stays where it is", "[runtime][cuda]") {
  Gpu gpu;
  auto options = gpu.options();
  options.read_back = {{"other"}};
  const auto r = gpu.load(kChain, options);
  REQUIRE(r->run("main", rows(6)));
  CHECK(gpu.fake.calls_of("cuMemcpyDtoHAsync").empty());
}

TEST_CASE("enqueue does not wait, synchronize does", "[runtime][cuda]") {
  Gpu gpu;
  const auto r = gpu.load(kChain);
  REQUIRE(r->enqueue("main", rows(1)));
  CHECK(gpu.fake.calls_of("cuStreamSynchronize").empty());
  REQUIRE(r->synchronize());
  CHECK(gpu.fake.calls_of("cuStreamSynchronize").size() == 1);
}

TEST_CASE("a caller's mistake enqueues nothing", "[runtime][cuda]") {
  Gpu gpu;
  const auto r = gpu.load(kChain);
  put(r->buffer("a"), std::vector<float>{500});
  const auto done = r->run("main", rows(1));
  REQUIRE(!done);
  CHECK(done.error().kind == Kind::caller);
  CHECK(done.error().text() == "input `a`[0] is 500, expected -100 to 100");
  CHECK(!r->run("main", rows(7)));
  CHECK(gpu.fake.take_calls().empty());
}

TEST_CASE("a launch carries the manifest's cluster, shared memory and early start",
          "[runtime][cuda]") {
  Gpu gpu;
  const auto r = gpu.load(with(R"("grid": ["rows", 1, 1])",
                               R"("grid": [{"mul": ["rows", 4]}, 1, 1], "cluster": [2, 1, 1],
                                   "pdl": true, "shared_mem": {"mul": ["rows", 10000]})"));
  REQUIRE(r->run("main", rows(1)));
  CHECK(gpu.fake.calls_of("cuLaunchKernelEx")[0] ==
        "cuLaunchKernelEx add grid 4,1,1 block 32,1,1 shared 10000 cluster 2,1,1 pdl stream 1");
}

TEST_CASE("shared memory beyond the default is allowed at load, as much as the bound needs",
          "[runtime][cuda]") {
  Gpu gpu;
  const auto r =
      gpu.try_load(with(R"("grid": ["rows", 1, 1])",
                        R"("grid": ["rows", 1, 1], "shared_mem": {"mul": ["rows", 10000]})"),
                   gpu.options());
  REQUIRE(r);
  CHECK(gpu.fake.calls_of("cuFuncSetAttribute") == Calls{"cuFuncSetAttribute add 8 = 60000"});
}

TEST_CASE("a launch whose `when` does not hold, or without a block, is not made",
          "[runtime][cuda]") {
  Gpu gpu;
  const std::string two = R"("launches": [
    {"module": "test", "entry": "add", "block": [32, 1, 1], "grid": ["rows", 1, 1]},
    {"module": "test", "entry": "add", "block": [64, 1, 1], "grid": ["rows", 1, 1],
     "when": {"var": "rows", "min": 3}}]}}})";
  const auto r =
      gpu.load(with(R"("launches": [{"module": "test", "entry": "add", "block": [32, 1, 1],
      "grid": ["rows", 1, 1]}]}}})",
                    two));
  REQUIRE(r->run("main", rows(2)));
  CHECK(gpu.fake.calls_of("cuLaunchKernelEx").size() == 2);
  gpu.fake.take_calls();
  REQUIRE(r->run("main", rows(3)));
  CHECK(gpu.fake.calls_of("cuLaunchKernelEx").size() == 4);
}

TEST_CASE("what a launch passes must be what its entry takes", "[runtime][cuda]") {
  Gpu gpu;
  gpu.fake.kernels["add"].param_bytes = {8, 8, 8};
  const std::string where = "program `main`, call 0, op `add` launch #0: ";
  CHECK(gpu.refusal(kChain) == where + "entry `add` takes 3 parameters, the launch passes 4");
  gpu.fake.kernels["add"].param_bytes = {8, 8, 16, 4};
  CHECK(gpu.refusal(kChain) ==
        where +
            "entry `add` takes 16 bytes as parameter #2, the launch passes `out buffer<f32>`, "
            "8 bytes");
  const std::string sentence = gpu.refusal(with(R"("entry": "add")", R"("entry": "sub")"));
  CHECK(sentence.find(where + "module `test` (`") == 0);
  CHECK(sentence.ends_with("no entry `sub`"));
}

TEST_CASE("a program that may be captured is, the second time its vars come", "[runtime][cuda]") {
  Gpu gpu;
  const std::string graph = graph_of_chain();
  const auto r = gpu.load(graph);
  const auto once = [&](float first) {
    put(r->buffer("a"), std::vector<float>{first});
    gpu.fake.take_calls();
    REQUIRE(r->run("main", seqs(2)));
    CHECK(get<float>(r->buffer("z"), 1)[0] == first);
    return std::pair(gpu.fake.calls_of("cuLaunchKernelEx").size(),
                     gpu.fake.calls_of("cuGraphLaunch").size());
  };
  using Counts = std::pair<size_t, size_t>;
  CHECK(once(1) == Counts{2, 0});
  CHECK(once(2) == Counts{2, 1});  // captured, then launched
  CHECK(once(3) == Counts{0, 1});
  REQUIRE(r->run("main", seqs(5)));  // other vars, another graph
  CHECK(once(4) == Counts{0, 1});

  auto options = gpu.options();
  options.eager = true;
  const auto eager = gpu.load(graph, options);
  for (int i = 0; i < 3; ++i) REQUIRE(eager->run("main", seqs(2)));
  CHECK(gpu.fake.calls_of("cuStreamBeginCapture").empty());
}

TEST_CASE("a capture that fails is an error, and the next run goes on", "[runtime][cuda]") {
  Gpu gpu;
  const auto r = gpu.load(graph_of_chain());
  REQUIRE(r->run("main", seqs(2)));
  gpu.fake.fail("cuLaunchKernelEx", 700);
  const auto failed = r->run("main", seqs(2));
  REQUIRE(!failed);
  CHECK(failed.error().kind == Kind::device);
  CHECK(failed.error().text() ==
        "program `main`, call 0, op `add`: cuLaunchKernelEx: as the test asked "
        "(CUDA_ERROR_FAKE, 700)");
  put(r->buffer("a"), std::vector<float>{9});
  REQUIRE(r->run("main", seqs(2)));
  CHECK(get<float>(r->buffer("z"), 1)[0] == 9);
}

TEST_CASE("an observer sees a workspace of the device after its call", "[runtime][cuda]") {
  Gpu gpu;
  const auto r = gpu.load(kChain);
  put(r->buffer("a"), counting(24));
  put(r->buffer("b"), std::vector<float>(24, 1.f));
  std::vector<float> seen;
  REQUIRE(r->observe("first", "x", [&](ByteSpan bytes) { seen = get<float>(bytes, 24); }));
  REQUIRE(r->run("main", rows(6)));
  REQUIRE(seen.size() == 24);
  CHECK(seen[23] == 24);
}

TEST_CASE("whatever call of a load fails, it says so and gives everything back",
          "[runtime][cuda][unwind]") {
  TempDir dir;
  const auto weights =
      checkpoint(dir, {tensor<float>("w", "F32", {6, 4}, std::vector<float>(24, 3.f))});
  const std::string json = with(R"("b": {"dtype": "f32", "shape": ["rows", 4], "kind": "input"})",
                                R"("b": {"dtype": "f32", "shape": [6, 4], "kind": "weight",
                                          "bind": [{"tensor": "w"}]})");
  for (const char* name :
       {"cuDeviceGetCount", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent",
        "cuStreamCreate", "cuModuleLoadData", "cuModuleGetFunction", "cuMemAlloc",
        "cuMemHostRegister", "cuMemsetD8Async", "cuEventCreate", "cuEventSynchronize",
        "cuMemcpyHtoDAsync", "cuEventRecord", "cuStreamWaitEvent", "cuStreamSynchronize"}) {
    INFO(name);
    Gpu gpu;
    gpu.fake.fail(name, 999);
    const auto failed = gpu.try_load(json, gpu.options(), &weights);
    REQUIRE(!failed);
    CHECK(failed.error().text().find(name) != std::string::npos);
    CHECK(gpu.fake.live().empty());
  }
  Gpu gpu;
  {
    const auto r = gpu.load(json, gpu.options(), &weights);
    REQUIRE(r->run("main", rows(6)));
    CHECK(get<float>(r->buffer("z"), 24)[23] == 6);
  }
  CHECK(gpu.fake.live().empty());
}

TEST_CASE("a device with too little memory says what did not fit", "[runtime][cuda]") {
  Gpu gpu;
  gpu.fake.memory_bytes = 1000;
  CHECK(gpu.refusal(kChain) ==
        "workspaces and scratch: 256 bytes of device memory, 232 are free: cuMemAlloc: out of "
        "memory (CUDA_ERROR_OUT_OF_MEMORY, 2)");
}

TEST_CASE("synthetic weights cross the link as one block and are doubled on the device",
          "[runtime][cuda]") {
  // as many bytes as two and a half blocks
  const int64_t elements = 16 * 65537 / 4 / 2 * 5;
  const std::string json =
      with(R"({"buf": "a"}, {"buf": "b"})", R"({"buf": "a"}, {"buf": "b", "offset": 1048544})",
           with(R"("b": {"dtype": "f32", "shape": ["rows", 4], "kind": "input"})",
                R"("b": {"dtype": "f32", "shape": [)" + std::to_string(elements) +
                    R"(, 1], "kind": "weight", "bind": [{"tensor": "w"}]})"));
  Gpu gpu;
  auto options = gpu.options();
  options.synthetic_weights = 3;
  auto loaded = gpu.try_load(json, options);
  if (!loaded) FAIL(loaded.error().text());
  const auto copies = gpu.fake.calls_of("cuMemcpy");
  CHECK(copies == Calls{"cuMemcpyHtoDAsync 1048592 stream 3", "cuMemcpyDtoDAsync 1048592 stream 1",
                        "cuMemcpyDtoDAsync 524296 stream 1"});
  REQUIRE((*loaded)->run("main", rows(6)));
  // the first values, and those on both sides of where the second block begins
  const auto z = get<float>((*loaded)->buffer("z"), 24);
  const auto block = get<float>(loaded_weight("f32", elements, 1, 4), 262148);
  for (size_t i = 0; i < 24; ++i) CHECK(z[i] == block[(262148 - 12 + i) % 262148] + block[i]);

  TempDir dir;
  const auto weights =
      checkpoint(dir, {tensor<float>("w", "F32", {6, 4}, std::vector<float>(24, 3.f))});
  const auto both = gpu.try_load(json, options, &weights);
  REQUIRE(!both);
  CHECK(both.error().text() == "a checkpoint and synthetic weights exclude each other");
}

TEST_CASE("a timed run marks every launch it makes, and no graph stands in", "[runtime][cuda]") {
  Gpu gpu;
  const auto r = gpu.load(graph_of_chain());
  put(r->buffer("a"), counting(8));
  for (int i = 0; i < 2; ++i) REQUIRE(r->run("main", seqs(2)));
  gpu.fake.take_calls();
  const auto times = r->run_timed("main", seqs(2));
  REQUIRE(times);
  REQUIRE(times->size() == 2);
  CHECK((*times)[0].call == 0);
  CHECK((*times)[1].call == 1);
  CHECK((*times)[1].launch == 0);
  CHECK((*times)[1].milliseconds == 1);  // the fake driver's answer
  CHECK(gpu.fake.calls_of("cuGraphLaunch").empty());
  CHECK(gpu.fake.calls_of("cuEventRecord").size() == 3);
  CHECK(get<float>(r->buffer("z"), 8)[7] == 7);
  CHECK(!r->run_timed("main", seqs(7)));
}
