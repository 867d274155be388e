#include "fixture.h"

using namespace kern;
using namespace kern_test;
using runtime::VarValue;

namespace {

// x = a + b, y = x + b, z = y + x: two short-lived buffers, one of them read twice.
const char* const kChain = R"({
  "schema_version": 7, "model": "chain", "uses": ["host"], "device": "host",
  "vars": {"rows": {"max": 6}},
  "states": {},
  "buffers": {
    "a": {"dtype": "f32", "shape": ["rows", 4], "kind": "input", "domain": {"min": -100.0,
      "max": 100.0}},
    "b": {"dtype": "f32", "shape": ["rows", 4], "kind": "input"},
    "x": {"dtype": "f32", "shape": ["rows", 4], "kind": "workspace"},
    "y": {"dtype": "f32", "shape": ["rows", 4], "kind": "workspace"},
    "z": {"dtype": "f32", "shape": ["rows", 4], "kind": "output"}},
  "modules": {"test": {"source": "test.so", "sha256": "@HASH@"}},
  "ops": {"add": {"params": ["in buffer<f32>", "in buffer<f32>", "out buffer<f32>", "i32"],
    "impl": {"launches": [{"module": "test", "entry": "test_add", "block": [1, 1, 1],
      "grid": ["rows", 1, 1]}]}}},
  "programs": {"main": {"calls": [
    {"op": "add", "args": [{"buf": "a"}, {"buf": "b"}, {"buf": "x"}, {"i32": 4}], "label": "first"},
    {"op": "add", "args": [{"buf": "x"}, {"buf": "b"}, {"buf": "y"}, {"i32": 4}],
      "label": "second"},
    {"op": "add", "args": [{"buf": "y"}, {"buf": "x"}, {"buf": "z"}, {"i32": 4}]}]}}
})";

std::vector<float> counting(size_t count, float first) {
  std::vector<float> out(count);
  for (size_t i = 0; i < count; ++i) out[i] = first + static_cast<float>(i);
  return out;
}

std::string run_error(runtime::Runtime& r, std::string_view program,
                      const std::vector<VarValue>& vars) {
  const auto done = r.run(program, vars);
  if (done) return "";
  return done.error().kind == Kind::caller ? done.error().text() : "of another kind";
}

}  // namespace

TEST_CASE("a program runs its calls in order on inputs and outputs found by name", "[runtime]") {
  for (const int threads : {1, 3}) {
    const auto r = loaded(kChain, options(threads));
    put(r->buffer("a"), counting(24, 0));
    put(r->buffer("b"), std::vector<float>(24, 10.f));
    REQUIRE(r->run("main", std::vector<VarValue>{{"rows", 6}}));
    const auto z = get<float>(r->buffer("z"), 24);
    for (size_t i = 0; i < 24; ++i) CHECK(z[i] == 2 * static_cast<float>(i) + 30);
  }
}

TEST_CASE("a run touches the rows of its vars and no more", "[runtime]") {
  const auto r = loaded(kChain);
  put(r->buffer("a"), counting(24, 0));
  put(r->buffer("z"), std::vector<float>(24, -1.f));
  REQUIRE(r->run("main", std::vector<VarValue>{{"rows", 2}}));
  const auto z = get<float>(r->buffer("z"), 24);
  CHECK(z[7] == 14);
  CHECK(z[8] == -1);
}

TEST_CASE("only what a caller fills or reads is addressable", "[runtime]") {
  const auto r = loaded(kChain);
  CHECK(r->buffer("a").size() == 96);
  CHECK(r->buffer("x").empty());
  CHECK(r->buffer("nothing").empty());
  CHECK(r->state("nothing").empty());
}

TEST_CASE("a run that asks for what is not there says so", "[runtime]") {
  const auto r = loaded(kChain);
  CHECK(run_error(*r, "other", {}) == "no program `other`");
  CHECK(run_error(*r, "main", {}) == "program `main`: var `rows` has no value, expected 1 to 6");
  CHECK(run_error(*r, "main", {{"rows", 7}}) == "program `main`: var `rows` is 7, expected 1 to 6");
  CHECK(run_error(*r, "main", {{"rows", 0}}) == "program `main`: var `rows` is 0, expected 1 to 6");
  CHECK(run_error(*r, "main", {{"cols", 1}}) == "program `main`: no var `cols`");
}

TEST_CASE("an observer sees a buffer after each call of its label, though it is short-lived",
          "[runtime]") {
  const auto r = loaded(kChain);
  put(r->buffer("a"), counting(24, 0));
  put(r->buffer("b"), std::vector<float>(24, 1.f));
  std::vector<float> seen;
  const auto see = [&](ByteSpan bytes) { seen.push_back(get<float>(bytes, 24)[3]); };
  REQUIRE(r->observe("first", "x", see));
  REQUIRE(r->observe("second", "y", see));
  REQUIRE(r->run("main", std::vector<VarValue>{{"rows", 1}}));
  CHECK(seen == std::vector<float>{4, 5});
  CHECK(r->observe("first", "w", see).error().text() == "no buffer `w`");
  CHECK(r->observe("third", "x", see).error().text() ==
        "no call labelled `third` stands in a program that uses buffer `x`");
}

TEST_CASE("an input outside its domain is refused before anything runs", "[runtime][domain]") {
  const auto r = loaded(kChain);
  put(r->buffer("z"), std::vector<float>(24, -1.f));
  auto a = counting(24, 0);
  a[9] = 101;
  put(r->buffer("a"), a);
  CHECK(run_error(*r, "main", {{"rows", 3}}) == "input `a`[9] is 101, expected -100 to 100");
  CHECK(get<float>(r->buffer("z"), 1)[0] == -1);
  CHECK(run_error(*r, "main", {{"rows", 2}}).empty());
  a[2] = std::numeric_limits<float>::quiet_NaN();
  put(r->buffer("a"), a);
  CHECK(run_error(*r, "main", {{"rows", 2}}) == "input `a`[2] is nan, expected -100 to 100");
}

TEST_CASE(
    "blocks find their place in the grid, and private shared memory, on any number of workers",
    "[runtime][grid]") {
  const char* const json = R"({
    "schema_version": 7, "model": "grid", "uses": ["host"], "device": "host",
    "vars": {"n": {"max": 9}},
    "states": {},
    "buffers": {"out": {"dtype": "i32", "shape": ["n", 20], "kind": "output"}},
    "modules": {"test": {"source": "test.so", "sha256": "@HASH@"}},
    "ops": {"where": {"params": ["out buffer<i32>"], "impl": {"launches": [
      {"module": "test", "entry": "test_where", "block": [32, 1, 1], "grid": ["n", 4, 5],
       "shared_mem": {"mul": ["n", 400]}}]}}},
    "programs": {"main": {"calls": [{"op": "where", "args": [{"buf": "out"}]}]}}
  })";
  for (const int threads : {1, 2, 4}) {
    const auto r = loaded(json, options(threads));
    for (const int64_t n : {1, 7, 9}) {
      REQUIRE(r->run("main", std::vector<VarValue>{{"n", n}}));
      const auto out = get<int32_t>(r->buffer("out"), static_cast<size_t>(n) * 20);
      bool right = true;
      for (int64_t place = 0; place < n * 20; ++place)
        right = right && out[static_cast<size_t>(place)] == 32 + place * 100 * n;
      CHECK(right);
    }
  }
}

TEST_CASE("scalars, packs and scratch reach an entry as a launch would pass them",
          "[runtime][args]") {
  const char* const json = R"({
    "schema_version": 7, "model": "args", "uses": ["host"], "device": "host",
    "vars": {"n": {"max": 50}},
    "states": {},
    "buffers": {"s": {"dtype": "f32", "shape": [4], "kind": "output"},
                "p": {"dtype": "f32", "shape": [4], "kind": "output"},
                "q": {"dtype": "f32", "shape": [4], "kind": "output"}},
    "modules": {"test": {"source": "test.so", "sha256": "@HASH@"}},
    "ops": {
      "scalars": {"params": ["i32", "i64", "f32", "u8", "out buffer<f32>"], "impl": {"launches": [
        {"module": "test", "entry": "test_scalars", "block": [1, 1, 1], "grid": [1, 1, 1]}]}},
      "pack": {"params": ["out buffer<f32>", "i64"], "impl": {"launches": [
        {"module": "test", "entry": "test_pack", "block": [1, 1, 1], "grid": [1, 1, 1],
         "params": ["bytes<32>"], "args": [{"pack": {"size": 32, "fields": [
           {"at": 0, "param": 0}, {"at": 8, "width": 4, "expr": {"add": ["n", 1]}},
           {"at": 16, "param": 1}, {"at": 24, "u8": 9}]}}]}]}},
      "twice": {"params": ["in buffer<f32>", "out buffer<f32>"], "impl": {
        "scratch": {"t": {"dtype": "f32", "shape": [4]}},
        "launches": [
        {"module": "test", "entry": "test_add", "block": [1, 1, 1], "grid": [1, 1, 1],
         "params": ["in buffer<f32>", "in buffer<f32>", "out buffer<f32>", "i32"],
         "args": [{"param": 0}, {"param": 0}, {"scratch": "t"}, {"i32": 4}]},
        {"module": "test", "entry": "test_add", "block": [1, 1, 1], "grid": [1, 1, 1],
         "params": ["in buffer<f32>", "in buffer<f32>", "out buffer<f32>", "i32"],
         "args": [{"scratch": "t"}, {"scratch": "t"}, {"param": 1}, {"i32": 4}]}]}}},
    "programs": {"main": {"calls": [
      {"op": "scalars", "args": [{"expr": {"ceil_div": [{"mul": ["n", 3]}, 4]}},
        {"i64": -5000000000}, {"f32": 1.5}, {"u8": 200}, {"buf": "s"}]},
      {"op": "pack", "args": [{"buf": "p"}, {"i64": -7}]},
      {"op": "twice", "args": [{"buf": "s"}, {"buf": "q"}]}]}}
  })";
  const auto r = loaded(json);
  for (const int64_t n : {5, 50}) {
    REQUIRE(r->run("main", std::vector<VarValue>{{"n", n}}));
    CHECK(get<float>(r->buffer("s"), 4) ==
          std::vector<float>{static_cast<float>((3 * n + 3) / 4), -5e9f, 1.5f, 200});
    CHECK(get<float>(r->buffer("p"), 3) == std::vector<float>{static_cast<float>(n + 1), -7, 9});
    CHECK(get<float>(r->buffer("q"), 4)[3] == 800);
  }
}

TEST_CASE("a launch outside its `when` does nothing", "[runtime][when]") {
  const char* const json = R"({
    "schema_version": 7, "model": "when", "uses": ["host"], "device": "host",
    "vars": {"n": {"max": 50}},
    "states": {},
    "buffers": {"o": {"dtype": "f32", "shape": [4], "kind": "output"}},
    "modules": {"test": {"source": "test.so", "sha256": "@HASH@"}},
    "ops": {"set": {"params": ["out buffer<f32>"], "impl": {"launches": [
      {"module": "test", "entry": "test_set", "block": [1, 1, 1], "grid": [1, 1, 1],
        "when": {"var": "n", "max": 8},
       "params": ["out buffer<f32>", "f32", "i32"], "args": [{"param": 0}, {"f32": 1}, {"i32": 4}]},
      {"module": "test", "entry": "test_set", "block": [1, 1, 1], "grid": [1, 1, 1],
        "when": {"var": "n", "min": 9},
       "params": ["out buffer<f32>", "f32", "i32"], "args": [{"param": 0}, {"f32": 2},
         {"i32": 4}]}]}}},
    "programs": {"main": {"calls": [{"op": "set", "args": [{"buf": "o"}]}]}}
  })";
  const auto r = loaded(json);
  for (const auto& [n, want] :
       {std::pair(1, 1.f), std::pair(8, 1.f), std::pair(9, 2.f), std::pair(50, 2.f)}) {
    REQUIRE(r->run("main", std::vector<VarValue>{{"n", n}}));
    CHECK(get<float>(r->buffer("o"), 1)[0] == want);
  }
}
