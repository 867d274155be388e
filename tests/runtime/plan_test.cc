#include "kern/runtime/plan.h"

#include "fixture.h"

using namespace kern;
using namespace kern_test;
using runtime::Capacity;
using runtime::VarValue;

namespace {

// The smallest manifest with memory of every kind: a gather into a workspace, through scratch, into
// an output, beside a paged and a per-sequence state.
const std::string kAll = R"({
  "schema_version": 7, "model": "all", "uses": ["host"], "device": "host",
  "vars": {"n": {"max": 8}},
  "states": {"kv": {"bytes_per_token": 16}, "line": {"bytes_per_seq": 100}},
  "buffers": {
    "w": {"dtype": "f32", "shape": [4, 4], "kind": "weight", "bind": [{"tensor": "w"}]},
    "t": {"dtype": "i32", "shape": ["n"], "kind": "input", "domain": {"index_into": "w"}},
    "mid": {"dtype": "f32", "shape": ["n", 4], "kind": "workspace"},
    "o": {"dtype": "f32", "shape": ["n", 4], "kind": "output"}},
  "modules": {"test": {"source": "test.so", "sha256": "@HASH@"}},
  "ops": {
    "gather": {"params": ["in buffer<f32>", "in buffer<i32>", "out buffer<f32>", "i32"],
      "impl": {"scratch": {"half": {"dtype": "f32", "shape": ["n", 4]}}, "launches": [
        {"module": "test", "entry": "test_gather", "block": [1, 1, 1], "grid": ["n", 1, 1],
         "shared_mem": {"mul": ["n", 32]},
         "params": ["in buffer<f32>", "in buffer<i32>", "out buffer<f32>", "i32"],
         "args": [{"param": 0}, {"param": 1}, {"scratch": "half"}, {"param": 3}]},
        {"module": "test", "entry": "test_gather", "block": [1, 1, 1], "grid": ["n", 1, 1],
         "params": ["in buffer<f32>", "in buffer<i32>", "out buffer<f32>", "i32"],
         "args": [{"scratch": "half"}, {"param": 1}, {"param": 2}, {"param": 3}]}]}},
    "touch": {"params": ["in buffer<f32>", "out buffer<f32>", "inout state", "inout state"],
      "impl": {"launches": [
        {"module": "test", "entry": "test_set", "block": [1, 1, 1], "grid": ["n", 1, 1]}]}}},
  "programs": {"main": {"calls": [
    {"op": "gather", "args": [{"buf": "w"}, {"buf": "t"}, {"buf": "mid"}, {"i32": 4}]},
    {"op": "touch", "args": [{"buf": "mid"}, {"buf": "o"}, {"state": "kv"}, {"state": "line"}]}]}}
})";

const Capacity kCapacity{3, 64, 5};

std::string with(const std::string& from, const std::string& to, std::string text = kAll) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  REQUIRE(text.find(from, at + 1) == std::string::npos);
  return text.replace(at, from.size(), to);
}

std::string plan_refusal(const std::string& json, const Capacity& capacity = kCapacity) {
  const auto plan = runtime::plan(verified(json), capacity);
  return plan ? std::string() : plan.error().text();
}

/// Both refuse, with the same sentence.
std::string both_refuse(const std::string& json) {
  TempDir dir;
  const auto weights = checkpoint(dir, {tensor<float>("w", "F32", {4, 4}, std::vector<float>(16))});
  auto at = options();
  at.capacity = kCapacity;
  const std::string planned = plan_refusal(json);
  CHECK(refusal(json, at, &weights) == planned);
  return planned;
}

}  // namespace

TEST_CASE("a plan says what a load takes, without a module, a checkpoint or memory",
          "[runtime][plan]") {
  const auto plan = runtime::plan(verified(kAll), kCapacity);
  if (!plan) FAIL(plan.error().text());
  CHECK(plan->state_bytes == 3 * 64 * 16 + 5 * 100);
  CHECK(plan->weight_bytes == 64);
  CHECK(plan->buffer_bytes == 8 * 4 + 8 * 16);
  CHECK(plan->arena_bytes == 256 + 256);  // the scratch lives while `mid` is written
  CHECK(plan->shared_bytes_max == 256);
  CHECK(plan->collective_bytes_max == 0);
  CHECK(plan->bytes() == 3572 + 64 + 160 + 512);
  CHECK(plan->entries ==
        std::vector<runtime::NeededEntry>{{"test", "test_gather"}, {"test", "test_set"}});
  REQUIRE(plan->programs.size() == 1);
  CHECK(plan->programs[0].launches == 3);
  CHECK(plan->programs[0].arena_bytes == 512);
}

TEST_CASE("a plan of more memory than any machine has is still a plan", "[runtime][plan]") {
  std::string json = with(R"("n": {"max": 8})", R"("n": {"max": 1000000000000})",
                          with(R"("shared_mem": {"mul": ["n", 32]},)", ""));
  for (size_t at; (at = json.find(R"(["n", 1, 1])")) != std::string::npos;)
    json.replace(at, 11, "[1, 1, 1]");
  const auto plan = runtime::plan(verified(json), kCapacity);
  if (!plan) FAIL(plan.error().text());
  CHECK(plan->arena_bytes == 2 * 16'000'000'000'000);
}

TEST_CASE("memory that 64 bits do not count is refused, not added up wrongly", "[runtime][plan]") {
  CHECK(both_refuse(with(R"("shape": [4, 4], "kind": "weight")",
                         R"("shape": [576460752303423487, 4], "kind": "weight")")) ==
        "its states, buffers and weights together overflow 64 bits");
  std::string json = with(R"("half": {"dtype": "f32", "shape": ["n", 4]})",
                          R"("half": {"dtype": "f32", "shape": [1152921504606846976]})");
  json = with(R"("mid": {"dtype": "f32", "shape": ["n", 4])",
              R"("mid": {"dtype": "f32", "shape": [1152921504606846976])", json);
  CHECK(both_refuse(json) == "program `main`: its workspaces and scratch overflow 64 bits");
}

TEST_CASE("an offset past a state, at the capacity it has, is refused", "[runtime][plan]") {
  CHECK(both_refuse(with(R"({"state": "kv"})", R"({"state": "kv", "offset": 3072})")) ==
        "program `main`, call 1, op `touch` arg #2: byte 3072 of state `kv`, which has 3072 at "
        "this capacity");
  CHECK(plan_refusal(with(R"({"state": "kv"})", R"({"state": "kv", "offset": 3056})")) == "");
  CHECK(plan_refusal(with(R"({"state": "kv"})", R"({"state": "kv", "offset": 3072})"),
                     {4, 64, 5}) == "");
}

TEST_CASE("an expression may nest as deep as a manifest may", "[runtime][plan]") {
  std::string deep = "1";
  for (int i = 0; i < 120; ++i) deep = R"({"add": [0, )" + deep + "]}";
  const std::string json = with(R"({"mul": ["n", 32]})", R"({"mul": [)" + deep + ", 64]}");
  const auto plan = runtime::plan(verified(json), kCapacity);
  if (!plan) FAIL(plan.error().text());
  CHECK(plan->shared_bytes_max == 64);
}

// A peer buffer over a group of one rank, read as bytes into the output.
const std::string kPeer = R"({
  "schema_version": 7, "model": "peer", "uses": ["host"], "device": "host",
  "topology": {"groups": {"tp": 1}}, "vars": {}, "states": {},
  "buffers": {
    "w": {"dtype": "f32", "shape": [4], "kind": "weight", "export": true,
          "bind": [{"tensor": "w"}]},
    "all": {"dtype": "u64", "shape": [1], "kind": "peer", "of": "w", "group": "tp"},
    "t": {"dtype": "i32", "shape": [1], "kind": "input", "domain": {"min": 0, "max": 0}},
    "o": {"dtype": "u64", "shape": [1], "kind": "output"}},
  "modules": {"test": {"source": "test.so", "sha256": "@HASH@"}},
  "ops": {"copy": {"params": ["in buffer<u64>", "in buffer<i32>", "out buffer<u64>", "i32"],
    "impl": {"launches": [
      {"module": "test", "entry": "test_gather", "block": [1, 1, 1], "grid": [1, 1, 1]}]}}},
  "programs": {"main": {"calls": [
    {"op": "copy", "args": [{"buf": "all"}, {"buf": "t"}, {"buf": "o"}, {"i32": 2}]}]}}
})";

TEST_CASE("a peer buffer holds the address of a weight once the weight is bound",
          "[runtime][plan]") {
  TempDir dir;
  const std::vector<float> values = {1, 2, 3, 4};
  const auto weights = checkpoint(dir, {tensor<float>("w", "F32", {4}, values)});
  CHECK(plan_refusal(kPeer) == "");
  const auto r = loaded(kPeer, options(), &weights);
  REQUIRE(r->run("main", std::vector<VarValue>{}));
  const auto address = get<uint64_t>(r->buffer("o"), 1)[0];
  REQUIRE(address != 0);
  std::vector<float> seen(4);
  std::memcpy(seen.data(), reinterpret_cast<const void*>(address), 16);
  CHECK(seen == values);
}

TEST_CASE("a plan refuses what this device has not, with a load's own sentence",
          "[runtime][plan]") {
  CHECK(plan_refusal(with(R"("tp": 1)", R"("tp": 2)",
                          with(R"("u64", "shape": [1], "kind": "peer")",
                               R"("u64", "shape": [2], "kind": "peer")", kPeer))) ==
        "peer buffer `all`: the host device maps no memory of the other 1 ranks of `tp`");
  CHECK(plan_refusal(kAll, {3, 64, 0}) == "state `line` needs slots, got a capacity of 0");
}

TEST_CASE("a manifest for a GPU is planned on a machine without one", "[runtime][plan]") {
  const std::string json = with(R"("uses": ["host"], "device": "host",)", "");
  const auto plan = runtime::plan(verified(json), kCapacity);
  if (!plan) FAIL(plan.error().text());
  CHECK(plan->entries.size() == 2);
  CHECK(plan->arena_bytes == 512);
}
