// Running ahead: the next program starts before the last one's outputs have been read. On the
// host, and on a driver without a device that records the order of its calls.
#include <catch2/catch.hpp>

#include "fixture.h"
#include "kern_test/fake_driver.h"

using namespace kern;
using namespace kern_test;
using runtime::VarValue;
namespace api = cuda::api;

namespace {

// y = x + x; a program of one sequence that may be captured.
const std::string kDouble = R"({
  "schema_version": 7, "model": "double", "states": {},
  "vars": {"rows": {"max": 6, "axis": "rows"}, "seqs": {"max": 1, "axis": "groups"}},
  "buffers": {
    "x": {"dtype": "f32", "shape": ["rows"], "kind": "input", "domain": {"max": 100.0}},
    "y": {"dtype": "f32", "shape": ["rows"], "kind": "output"}},
  "modules": {"test": {"source": "test.cubin", "sha256": "@CUBIN@"}},
  "ops": {"add": {"params": ["in buffer<f32>", "in buffer<f32>", "out buffer<f32>"],
    "impl": {"launches": [{"module": "test", "entry": "add", "block": [32, 1, 1],
      "grid": ["rows", "seqs", 1]}]}}},
  "programs": {"main": {"graph": true, "batch": {"groups": 1, "rows": "rows"}, "calls": [
    {"op": "add", "args": [{"buf": "x"}, {"buf": "x"}, {"buf": "y"}]}]}}
})";

struct Gpu {
  Gpu() : cubin(fake_cubin({})) {
    REQUIRE(write_file(dir / "test.cubin", as_bytes(cubin)));
    fake.kernels["add"] = {{8, 8, 8}, [](const api::LaunchConfig& config, void* const* params) {
                             for (size_t i = 0; i < config.grid[0]; ++i)
                               param<float*>(params, 2)[i] = param<const float*>(params, 0)[i] +
                                                             param<const float*>(params, 1)[i];
                           }};
  }
  std::unique_ptr<runtime::Runtime> load(runtime::Options with = {}) {
    with.module_dirs = {dir.path()};
    with.driver = &fake.driver();
    std::string json = kDouble;
    json.replace(json.find("@CUBIN@"), 7, to_hex(sha256(as_bytes(cubin))));
    auto made = runtime::Runtime::load(verified(json), nullptr, with, quiet());
    if (!made) FAIL(made.error().text());
    fake.take_calls();
    return std::move(*made);
  }
  std::vector<std::string> calls() {
    auto all = fake.take_calls();
    std::erase(all, "cuCtxSetCurrent");
    return all;
  }

  TempDir dir;
  std::string cubin;
  FakeDriver fake;
};

std::vector<VarValue> rows(int64_t n) {
  return {{"rows", n}, {"seqs", 1}};
}

float first_of(runtime::Runtime& r) {
  return get<float>(r.buffer("y"), 1)[0];
}

}  // namespace

TEST_CASE("a launch starts while the outputs before it are still unread", "[runtime][ahead]") {
  Gpu gpu;
  const auto r = gpu.load();
  put(r->buffer("x"), std::vector<float>{1});
  REQUIRE(r->launch("main", rows(1)));
  REQUIRE(r->read_back());
  gpu.calls();
  REQUIRE(r->wait_inputs());
  put(r->buffer("x"), std::vector<float>{2});
  REQUIRE(r->launch("main", rows(1)));
  const auto here = r->outputs_are_here();
  REQUIRE(here);
  CHECK(*here);
  REQUIRE(r->wait_outputs());
  CHECK(first_of(*r) == 2);  // of the first launch: the second's have not been brought back
  REQUIRE(r->read_back());
  REQUIRE(r->wait_outputs());
  CHECK(first_of(*r) == 4);
  const auto calls = gpu.calls();
  const auto at = [&](std::string_view call) {
    return std::find_if(calls.begin(), calls.end(),
                        [&](const std::string& one) { return one.starts_with(call); }) -
           calls.begin();
  };
  CHECK(at("cuGraphLaunch") < at("cuMemcpyDtoHAsync"));
  CHECK(at("cuStreamSynchronize") == static_cast<ptrdiff_t>(calls.size()));
}

TEST_CASE("what was not launched cannot be brought back", "[runtime][ahead]") {
  Gpu gpu;
  const auto r = gpu.load();
  CHECK(r->read_back().error().kind == Kind::caller);
  put(r->buffer("x"), std::vector<float>{101});
  CHECK(!r->launch("main", rows(1)));  // outside its domain
  CHECK(!r->read_back());
  put(r->buffer("x"), std::vector<float>{3});
  REQUIRE(r->launch("main", rows(1)));
  REQUIRE(r->read_back());
  CHECK(!r->read_back());
}

TEST_CASE("a captured program replays from its first run on", "[runtime][ahead]") {
  Gpu gpu;
  const auto r = gpu.load();
  REQUIRE(r->capture("main", rows(2)));
  CHECK(gpu.fake.calls_of("cuGraphUpload").size() == 1);
  REQUIRE(r->capture("main", rows(2)));  // again: it is there
  CHECK(gpu.fake.calls_of("cuGraphUpload").size() == 1);
  gpu.calls();
  put(r->buffer("x"), std::vector<float>{1, 2});
  REQUIRE(r->run("main", rows(2)));
  CHECK(get<float>(r->buffer("y"), 2) == std::vector<float>{2, 4});
  CHECK(gpu.fake.calls_of("cuGraphLaunch").size() == 1);
  CHECK(gpu.fake.calls_of("cuLaunchKernelEx").empty());

  REQUIRE(r->launch("main", rows(2)));
  const auto late = r->capture("main", rows(3));
  REQUIRE(!late);
  CHECK(late.error().text() ==
        "program `main`: what was launched before its capture has not been brought back");
  CHECK(r->capture("main", rows(7)).error().kind == Kind::caller);

  runtime::Options eager;
  eager.eager = true;
  const auto never = gpu.load(eager);
  REQUIRE(never->capture("main", rows(2)));
  CHECK(gpu.fake.calls_of("cuStreamBeginCapture").empty());
}

TEST_CASE("as many graphs are kept as the options say", "[runtime][ahead]") {
  Gpu gpu;
  runtime::Options two;
  two.graphs_max = 2;
  const auto r = gpu.load(two);
  const auto captures = [&](int64_t n) {
    gpu.fake.take_calls();
    REQUIRE(r->capture("main", rows(n)));
    return gpu.fake.calls_of("cuStreamBeginCapture").size();
  };
  CHECK(captures(1) == 1);
  CHECK(captures(2) == 1);
  CHECK(captures(1) == 0);
  CHECK(captures(3) == 1);  // 2 goes
  CHECK(captures(1) == 0);
  CHECK(captures(2) == 1);
}
