// The executor and hand-offs over the cuda device, on a driver without a device.
#include <catch2/catch.hpp>

#include "../runtime/fixture.h"
#include "kern/node/handoff.h"
#include "kern/node/runtime_executor.h"
#include "kern_test/fake_driver.h"

using namespace kern;
using namespace kern_test;
namespace api = cuda::api;

namespace {

struct Gpu {
  Gpu() {
    const std::string cubin = fake_cubin();
    hash = to_hex(sha256(as_bytes(cubin)));
    REQUIRE(write_file(dir / "test.cubin", as_bytes(cubin)));
  }
  std::unique_ptr<runtime::Runtime> load(const manifest::Verified& manifest) {
    runtime::Options options;
    options.module_dirs = {dir.path()};
    options.driver = &fake.driver();
    options.capacity = {.pages = 10, .page_tokens = 4, .slots = 5};
    auto loaded = runtime::Runtime::load(manifest, nullptr, options, quiet());
    if (!loaded) FAIL(loaded.error().text());
    return std::move(*loaded);
  }
  manifest::Verified read(std::string json) const {
    for (size_t at; (at = json.find("@CUBIN@")) != std::string::npos;) json.replace(at, 7, hash);
    auto read = manifest::load(json);
    if (!read) FAIL(manifest::to_text(read.error()));
    return std::move(*read);
  }

  TempDir dir;
  std::string hash;
  FakeDriver fake;
};

// A stage in the middle: it takes `hidden` and hands on `more`.
const char* const kStage = R"({
  "schema_version": 7, "model": "stage",
  "vars": {"tokens": {"max": 8, "axis": "rows"}, "seqs": {"max": 3, "axis": "groups"}},
  "states": {},
  "buffers": {
    "token": {"dtype": "i32", "shape": ["tokens"], "kind": "input", "fill": "token"},
    "each": {"dtype": "f32", "shape": ["seqs", 2], "kind": "input"},
    "hidden": {"dtype": "f32", "shape": ["tokens", 4], "kind": "inout"},
    "more": {"dtype": "f32", "shape": ["tokens", 4], "kind": "output"}},
  "modules": {"test": {"source": "test.cubin", "sha256": "@CUBIN@"}},
  "ops": {"step": {"params": ["in buffer<i32>", "in buffer<f32>", "inout buffer<f32>",
                              "out buffer<f32>", "i32"],
    "impl": {"launches": [{"module": "test", "entry": "step", "block": [1, 1, 1],
      "grid": ["tokens", 1, 1]}]}}},
  "programs": {"prefill": {"batch": {"groups": 3, "rows": "tokens"}, "calls": [{"op": "step",
    "args": [{"buf": "token"}, {"buf": "each"}, {"buf": "hidden"}, {"buf": "more"},
             {"var": "tokens"}]}]}},
  "cut": {"id": "@CUBIN@", "stage": 1, "stages": 3}
})";

const char* const kStates = R"({
  "schema_version": 7, "model": "states", "vars": {},
  "states": {"kv": {"bytes_per_token": 6}, "rec": {"bytes_per_seq": 24}},
  "buffers": {"o": {"dtype": "u8", "shape": [64], "kind": "output"}},
  "modules": {"test": {"source": "test.cubin", "sha256": "@CUBIN@"}},
  "ops": {"touch": {"params": ["in state", "in state", "out buffer<u8>"],
    "impl": {"launches": [{"module": "test", "entry": "touch", "block": [1, 1, 1],
      "grid": [1, 1, 1]}]}}},
  "programs": {"main": {"calls": [
    {"op": "touch", "args": [{"state": "kv"}, {"state": "rec"}, {"buf": "o"}]}]}}
})";

std::vector<std::byte> joined(const std::vector<ByteSpan>& pieces) {
  std::vector<std::byte> out;
  for (const ByteSpan piece : pieces) out.insert(out.end(), piece.begin(), piece.end());
  return out;
}

}  // namespace

TEST_CASE("an item runs on a GPU: what crosses goes in and comes back, by its rows",
          "[node][gpu]") {
  Gpu gpu;
  gpu.fake.kernels["step"] = {{8, 8, 8, 8, 4}, [](const api::LaunchConfig&, void* const* params) {
                                const auto* token = param<const int32_t*>(params, 0);
                                auto* hidden = param<float*>(params, 2);
                                for (int i = 0; i < 4 * param<int>(params, 4); ++i) {
                                  param<float*>(params, 3)[i] =
                                      hidden[i] + static_cast<float>(token[i / 4]);
                                  hidden[i] = -hidden[i];
                                }
                              }};
  const auto manifest = gpu.read(kStage);
  const auto runtime = gpu.load(manifest);
  auto executor = node::RuntimeExecutor::create(manifest, *runtime, {});
  if (!executor) FAIL(executor.error().text());
  engine::Item item;
  item.id = 1;
  engine::Slice& slice = item.slices.emplace_back();
  slice.request = engine::RequestId(1);
  slice.tokens = {100, 200, 300};
  for (const node::Crossing& crossing : (*executor)->received())
    if (crossing.name == "hidden")
      put(crossing.valid(3, 1), std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  const auto done = (*executor)->run(item);
  if (!done) FAIL(done.error().text());
  bool seen = false;
  for (const node::Crossing& crossing : (*executor)->sent()) {
    const auto values = get<float>(crossing.valid(3, 1), 12);
    if (crossing.name == "more") CHECK(values[11] == 311);
    if (crossing.name == "hidden") CHECK(values[11] == -11);
    seen = seen || crossing.name == "more";
  }
  CHECK(seen);
}

TEST_CASE("parts cut from a GPU's states are those of the same bytes on the host", "[node][gpu]") {
  Gpu gpu;
  gpu.fake.kernels["touch"] = {{8, 8, 8}, [](const api::LaunchConfig&, void* const*) {}};
  const auto manifest = gpu.read(kStates);
  const auto runtime = gpu.load(manifest);
  std::map<std::string, std::vector<std::byte>> memory;
  for (const std::string name : {"kv", "rec"}) {
    auto& bytes = memory[name];
    bytes.resize(static_cast<size_t>(*runtime->state_bytes(name)));
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 + 1);
    REQUIRE(runtime->write_state(name, 0, bytes));
  }
  const engine::Place place{3, {7, 2, 5}};
  constexpr uint32_t kTokens = 11, kMembers = 2;
  const auto compare = [&](const engine::HandoffState& state, int64_t own_bytes) {
    const auto image = node::copy_out(*runtime, state, own_bytes, 4, place, kTokens);
    REQUIRE(image);
    std::vector<std::byte> copied = image->bytes;
    for (uint32_t member = 0; member < kMembers; ++member) {
      const auto here = node::cut_part(state, own_bytes, {memory[state.name], 4}, place, kTokens,
                                       member, kMembers);
      const auto there =
          node::cut_part(state, own_bytes, {copied, 4}, image->place, kTokens, member, kMembers);
      REQUIRE((here && there));
      CHECK(joined(here->pieces) == joined(there->pieces));
      CHECK(!joined(here->pieces).empty());
    }
  };
  using Shard = engine::HandoffState::Shard;
  engine::HandoffState kv;
  kv.name = "kv";
  kv.paged = true;
  kv.bytes = 6;
  compare(kv, 6);
  kv.shard = Shard::position;
  compare(kv, 6);
  engine::HandoffState rec;
  rec.name = "rec";
  rec.paged = false;
  rec.bytes = 12;
  rec.shard = Shard::heads;
  rec.segments = {{1, 16}, {2, 4}};
  compare(rec, 24);
}

TEST_CASE("where a part lies is the same as ranges and as memory", "[node][gpu]") {
  engine::HandoffState state;
  state.name = "kv";
  state.paged = true;
  state.bytes = 6;
  state.shard = engine::HandoffState::Shard::position;
  std::vector<std::byte> memory(240);
  const engine::Place place{0, {7, 2}};
  const auto spans = node::place_part(state, {memory, 4}, place, 11, 1, 2);
  const auto ranges = node::ranges_of_part(state, 4, place, 11, 1, 2);
  REQUIRE(spans.size() == ranges.size());
  for (size_t i = 0; i < spans.size(); ++i) {
    CHECK(spans[i].data() - memory.data() == ranges[i].offset);
    CHECK(static_cast<int64_t>(spans[i].size()) == ranges[i].size);
  }
}
