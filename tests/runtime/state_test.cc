#include "fixture.h"

using namespace kern;
using namespace kern_test;
using runtime::VarValue;

namespace {

// Lines of two floats, three layers a slot; a paged state beside it; a fixed one.
const char* const kStates = R"({
  "schema_version": 7, "model": "states", "uses": ["host"], "device": "host",
  "vars": {"seqs": {"max": 3, "axis": "groups"}},
  "states": {"rec": {"bytes_per_seq": 24}, "kv": {"bytes_per_token": 8}, "all": {"bytes": 64}},
  "buffers": {
    "lines": {"dtype": "i32", "shape": ["seqs"], "kind": "input", "domain": {"index_into": "rec",
      "stride": 8}},
    "pages": {"dtype": "i32", "shape": ["seqs", 2], "kind": "input",
      "domain": {"index_into": "kv", "stride": 4}},
    "slots": {"dtype": "i32", "shape": ["seqs"], "kind": "input", "domain": {"index_into": "kv"}},
    "x": {"dtype": "f32", "shape": ["seqs", 2], "kind": "input"},
    "y": {"dtype": "f32", "shape": ["seqs", 2], "kind": "output"}},
  "modules": {"test": {"source": "test.so", "sha256": "@HASH@"}},
  "ops": {"grow": {"params": ["inout state", "in buffer<i32>", "in buffer<f32>",
    "out buffer<f32>", "i32",
                              "inout state", "inout state", "in buffer<i32>", "in buffer<i32>"],
    "impl": {"launches": [{"module": "test", "entry": "test_accumulate", "block": [1, 1, 1],
      "grid": ["seqs", 1, 1]}]}}},
  "programs": {"main": {"calls": [{"op": "grow", "args": [{"state": "rec"}, {"buf": "lines"},
    {"buf": "x"}, {"buf": "y"}, {"i32": 2},
    {"state": "kv"}, {"state": "all"}, {"buf": "pages"}, {"buf": "slots"}]}]}}
})";

runtime::Options with_capacity(int64_t pages, int64_t page_tokens, int64_t slots) {
  runtime::Options out = options();
  out.capacity = {pages, page_tokens, slots};
  return out;
}

std::vector<float> step(runtime::Runtime& r, const std::vector<int32_t>& lines) {
  put(r.buffer("lines"), lines);
  put(r.buffer("x"), std::vector<float>(lines.size() * 2, 1.f));
  REQUIRE(r.run("main", std::vector<VarValue>{{"seqs", static_cast<int64_t>(lines.size())}}));
  return get<float>(r.buffer("y"), lines.size() * 2);
}

std::string sentence(const Result<void>& result) {
  return result ? std::string() : result.error().text();
}

}  // namespace

TEST_CASE("states live on from run to run, begin at zero, and are as large as the capacity",
          "[runtime][state]") {
  const auto r = loaded(kStates, with_capacity(5, 4, 3));
  CHECK(r->state("rec").size() == 72);
  CHECK(r->state("kv").size() == 160);
  CHECK(r->state("all").size() == 64);
  CHECK(step(*r, {3, 4}) == std::vector<float>{1, 1, 1, 1});
  CHECK(step(*r, {4, 8}) == std::vector<float>{2, 2, 1, 1});
  CHECK(get<float>(r->state("rec"), 18)[6] == 1);
  CHECK(get<float>(r->state("rec"), 18)[8] == 2);
}

TEST_CASE("slots and pages are copied whole and slots are zeroed", "[runtime][state]") {
  const auto r = loaded(kStates, with_capacity(5, 4, 3));
  step(*r, {3});
  REQUIRE(r->copy_slot(1, 2));
  CHECK(step(*r, {6}) == std::vector<float>{2, 2});
  REQUIRE(r->zero_slot(2));
  CHECK(step(*r, {6}) == std::vector<float>{1, 1});
  r->state("kv")[32] = std::byte{7};
  r->state("kv")[63] = std::byte{8};
  REQUIRE(r->copy_page(1, 4));
  CHECK(r->state("kv")[128] == std::byte{7});
  CHECK(r->state("kv")[159] == std::byte{8});
  CHECK(sentence(r->copy_page(1, 5)) == "page 5 is outside the capacity of 5");
  CHECK(sentence(r->copy_slot(3, 0)) == "slot 3 is outside the capacity of 3");
  CHECK(sentence(r->zero_slot(-1)) == "slot -1 is outside the capacity of 3");
}

TEST_CASE("an index into a state stays inside it", "[runtime][state][domain]") {
  const auto r = loaded(kStates, with_capacity(5, 4, 3));
  const std::vector<VarValue> one = {{"seqs", 1}};
  CHECK(r->run("main", one));
  put(r->buffer("lines"), std::vector<int32_t>{9});
  CHECK(sentence(r->run("main", one)) ==
        "input `lines`[0] is 9, expected 0 to 8 (an index into `rec`)");
  put(r->buffer("lines"), std::vector<int32_t>{8});
  put(r->buffer("pages"), std::vector<int32_t>{4, 5});
  CHECK(sentence(r->run("main", one)) ==
        "input `pages`[1] is 5, expected 0 to 4 (an index into `kv`)");
  put(r->buffer("pages"), std::vector<int32_t>{4, 4});
  put(r->buffer("slots"), std::vector<int32_t>{-1});
  CHECK(sentence(r->run("main", one)) ==
        "input `slots`[0] is -1, expected 0 to 19 (an index into `kv`)");
  put(r->buffer("slots"), std::vector<int32_t>{19});
  CHECK(r->run("main", one));
}

TEST_CASE("a capacity that does not fit the manifest is refused", "[runtime][state]") {
  CHECK(refusal(kStates, with_capacity(5, 4, 0)) == "state `rec` needs slots, got a capacity of 0");
  CHECK(refusal(kStates, with_capacity(0, 4, 3)) ==
        "state `kv` needs pages, got a capacity of 0 pages of 4 tokens");
  CHECK(refusal(kStates, with_capacity(5, 8, 3)) ==
        "page table `pages` counts pages of 4 tokens, the capacity pages of 8");
  CHECK(refusal(kStates, with_capacity(int64_t{1} << 62, 4, 3)) ==
        "state `kv`: its capacity overflows 64 bits");
}
