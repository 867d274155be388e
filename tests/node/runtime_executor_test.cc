#include "kern/node/runtime_executor.h"

#include <catch2/catch.hpp>
#include <cstring>

#include "kern/base/file.h"
#include "kern/base/sha256.h"
#include "kern/runtime/local_peers.h"

using namespace kern;
using engine::Item;
using engine::Phase;
using engine::RequestId;
using engine::Slice;

namespace {

const std::filesystem::path kModuleDir = std::filesystem::path(KERN_BUILD_DIR) / "lib/test";

// Every role there is, beside a paged and a recurrent state of two lines a slot. @SHARD@ divides
// the pages, @TOPOLOGY@ names the group.
const char* const kRoles = R"({
  "schema_version": 7, "model": "roles", "uses": ["host", "sampling", "snapshot"], "device": "host",
  @TOPOLOGY@
  "vars": {"tokens": {"max": 8, "axis": "rows"}, "seqs": {"max": 3, "axis": "groups"}},
  "states": {"kv": {"bytes_per_token": 4 @SHARD@}, "rec": {"bytes_per_seq": 16}},
  "buffers": {
    "token": {"dtype": "i32", "shape": ["tokens"], "kind": "input", "fill": "token"},
    "position": {"dtype": "i64", "shape": ["tokens"], "kind": "input", "fill": "position"},
    "slot": {"dtype": "i32", "shape": ["tokens"], "kind": "input", "fill": "slot",
             "domain": {"index_into": "kv"}},
    "valid": {"dtype": "i32", "shape": ["tokens"], "kind": "input", "fill": "valid"},
    "cu_seqlens": {"dtype": "i32", "shape": [4], "kind": "input", "fill": "cu_seqlens",
                   "domain": {"min": 0, "max": "tokens", "monotone": true}},
    "seq_len": {"dtype": "i32", "shape": ["seqs"], "kind": "input", "fill": "seq_len",
                "domain": {"min": 1}},
    "snapshot": {"dtype": "i32", "shape": ["seqs"], "kind": "input", "fill": "snapshot",
                 "domain": {"index_into": "rec", "stride": 8}},
    "temperature": {"dtype": "f32", "shape": ["seqs"], "kind": "input", "fill": "temperature"},
    "top_p": {"dtype": "f32", "shape": ["seqs"], "kind": "input", "fill": "top_p"},
    "top_k": {"dtype": "i32", "shape": ["seqs"], "kind": "input", "fill": "top_k"},
    "min_p": {"dtype": "f32", "shape": ["seqs"], "kind": "input", "fill": "min_p"},
    "seed": {"dtype": "u64", "shape": ["seqs"], "kind": "input", "fill": "seed"},
    "draw": {"dtype": "i32", "shape": ["seqs"], "kind": "input", "fill": "draw"},
    "pages": {"dtype": "i32", "shape": ["seqs", 4], "kind": "input",
              "domain": {"index_into": "kv", "stride": 4}},
    "lines": {"dtype": "i32", "shape": [2, "seqs"], "kind": "input",
              "domain": {"index_into": "rec", "stride": 8}},
    "next": {"dtype": "i32", "shape": ["seqs"], "kind": "output", "fill": "tokens"},
    "logprob": {"dtype": "f32", "shape": ["seqs"], "kind": "output", "fill": "logprob"},
    "top": {"dtype": "i32", "shape": ["seqs", 3], "kind": "output", "fill": "top_tokens"},
    "top_logprob": {"dtype": "f32", "shape": ["seqs", 3], "kind": "output",
                    "fill": "top_logprobs"}},
  "modules": {"test": {"source": "test.so", "sha256": "@HASH@"}},
  "ops": {"step": {
    "params": ["in buffer<i32>", "in buffer<i32>", "out buffer<i32>", "out buffer<f32>",
      "out buffer<i32>", "out buffer<f32>", "i32", "in buffer<i64>", "in buffer<i32>",
      "in buffer<i32>", "in buffer<i32>", "in buffer<i32>", "in buffer<f32>", "in buffer<f32>",
      "in buffer<i32>", "in buffer<f32>", "in buffer<u64>", "in buffer<i32>", "in buffer<i32>",
      "in buffer<i32>", "inout state", "inout state"],
    "impl": {"launches": [{"module": "test", "entry": "test_next", "block": [1, 1, 1],
      "grid": ["seqs", 1, 1]}]}}},
  "programs": {
    "prefill": {"batch": {"groups": 3, "rows": "tokens"}, "calls": [@CALL@]},
    "decode": {"batch": {"groups": 2, "rows": 1}, "calls": [@CALL@]}}
})";

const char* const kCall = R"({"op": "step", "args": [{"buf": "cu_seqlens"}, {"buf": "token"},
  {"buf": "next"}, {"buf": "logprob"}, {"buf": "top"}, {"buf": "top_logprob"}, {"i32": 3},
  {"buf": "position"}, {"buf": "slot"}, {"buf": "valid"}, {"buf": "seq_len"}, {"buf": "snapshot"},
  {"buf": "temperature"}, {"buf": "top_p"}, {"buf": "top_k"}, {"buf": "min_p"}, {"buf": "seed"},
  {"buf": "draw"}, {"buf": "pages"}, {"buf": "lines"}, {"state": "kv"}, {"state": "rec"}]})";

// A stage in the middle: it takes `hidden` and `bank`, and hands on `hidden` and `more`.
const char* const kStage = R"({
  "schema_version": 7, "model": "stage", "uses": ["host"], "device": "host",
  "vars": {"tokens": {"max": 8, "axis": "rows"}, "seqs": {"max": 3, "axis": "groups"}},
  "states": {},
  "buffers": {
    "hidden": {"dtype": "f32", "shape": ["tokens", 4], "kind": "inout"},
    "bank": {"dtype": "f32", "shape": ["tokens", 4], "kind": "input"},
    "each": {"dtype": "f32", "shape": ["seqs", 2], "kind": "input"},
    "more": {"dtype": "f32", "shape": ["tokens", 4], "kind": "output"}},
  "modules": {"test": {"source": "test.so", "sha256": "@HASH@"}},
  "ops": {"add": {"params": ["in buffer<f32>", "in buffer<f32>", "out buffer<f32>", "i32",
                             "inout buffer<f32>", "in buffer<f32>"],
    "impl": {"launches": [{"module": "test", "entry": "test_add", "block": [1, 1, 1],
      "grid": ["tokens", 1, 1]}]}}},
  "programs": {"prefill": {"batch": {"groups": 3, "rows": "tokens"}, "calls": [{"op": "add",
    "args": [{"buf": "bank"}, {"buf": "bank"}, {"buf": "more"}, {"i32": 4}, {"buf": "hidden"},
             {"buf": "each"}]}]}},
  "cut": {"id": "@HASH@", "stage": 1, "stages": 3}
})";

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

/// A manifest, its runtime and the executor over it.
struct Fixture {
  std::unique_ptr<manifest::Verified> manifest;
  std::unique_ptr<runtime::Runtime> runtime;
  std::unique_ptr<node::RuntimeExecutor> executor;
};

Fixture fixture(std::string json, runtime::PeerGroup* peers = nullptr, int64_t tier_bytes = 0) {
  const auto bytes = read_file(kModuleDir / "test.so", 1 << 24);
  REQUIRE(bytes);
  json = replaced(std::move(json), "@HASH@", to_hex(sha256(as_bytes(*bytes))));
  auto verified = manifest::load(json);
  if (!verified) FAIL(manifest::to_text(verified.error()));
  Fixture out;
  out.manifest = std::make_unique<manifest::Verified>(std::move(*verified));
  runtime::Options options;
  options.module_dirs = {kModuleDir};
  options.capacity = {.pages = 10, .page_tokens = 4, .slots = 5};
  options.host_tier_bytes = tier_bytes;
  if (peers != nullptr) options.peers["tp"] = peers;
  auto runtime = runtime::Runtime::load(*out.manifest, nullptr, options, Log("test", Level::off));
  if (!runtime) FAIL(runtime.error().text());
  out.runtime = std::move(*runtime);
  auto executor = node::RuntimeExecutor::create(*out.manifest, *out.runtime,
                                                {options.capacity, options.peers, 0, 0});
  if (!executor) FAIL(executor.error().text());
  out.executor = std::move(*executor);
  return out;
}

std::string roles(const std::string& topology = "", const std::string& shard = "") {
  return replaced(replaced(replaced(kRoles, "@TOPOLOGY@", topology), "@SHARD@", shard), "@CALL@",
                  kCall);
}

const std::string kTwoRanks = R"("topology": {"groups": {"tp": 2}},)";
const std::string kByPosition = R"(, "shard": {"group": "tp", "by": "position"})";

template <class T>
std::vector<T> values(Fixture& f, const std::string& name, size_t count) {
  const MutableByteSpan bytes = f.runtime->buffer(name);
  REQUIRE(bytes.size() >= count * sizeof(T));
  std::vector<T> out(count);
  std::memcpy(out.data(), bytes.data(), count * sizeof(T));
  return out;
}

Slice slice(uint64_t id, uint32_t start, std::vector<engine::Token> tokens, bool emits = true) {
  Slice out;
  out.request = RequestId(id);
  out.slot = static_cast<uint32_t>(id);
  out.start = start;
  out.tokens = std::move(tokens);
  out.emits = emits;
  return out;
}

std::string refusal(Fixture& f, const Item& item) {
  const auto done = f.executor->run(item);
  if (done) return "";
  return done.error().kind == Kind::caller ? done.error().text() : "of another kind";
}

using I = std::vector<int32_t>;

}  // namespace

TEST_CASE("limits come from the protocol and the capacity", "[node][executor]") {
  const Fixture f = fixture(roles());
  const engine::ExecutorLimits& l = f.executor->limits();
  CHECK(l.prefill_rows_max == 8);
  CHECK(l.prefill_seqs_max == 3);
  CHECK(l.decode_seqs_max == 2);
  CHECK(l.context_max == 16);
  CHECK(l.page_tokens == 4);
  CHECK(l.top_logprobs_max == 3);
  CHECK(l.recurrent);
  CHECK(l.pages == 10);
  CHECK(l.slots == 5);
  CHECK(f.executor->received().empty());
  CHECK(f.executor->sent().empty());
}

TEST_CASE("every input is filled by its role, rows back to back in slice order",
          "[node][executor]") {
  Fixture f = fixture(roles());
  Item item;
  item.id = 9;
  item.slices = {slice(1, 3, {5, 6, 7}), slice(4, 0, {8})};
  item.slices[0].pages = {2, 9};
  item.slices[0].snapshot_slot = 3;
  item.slices[1].pages = {7};
  item.slices[1].sampling = {0.5f, 0.25f, 40, 0.125f, 0xFFFFFFFFFFFFFFF0u};
  item.slices[1].draw = 6;
  REQUIRE(f.executor->run(item));
  CHECK(values<int32_t>(f, "token", 4) == I{5, 6, 7, 8});
  CHECK(values<int64_t>(f, "position", 4) == std::vector<int64_t>{3, 4, 5, 0});
  CHECK(values<int32_t>(f, "slot", 4) == I{2 * 4 + 3, 9 * 4, 9 * 4 + 1, 7 * 4});
  CHECK(values<int32_t>(f, "valid", 4) == I{1, 1, 1, 1});
  CHECK(values<int32_t>(f, "cu_seqlens", 4) == I{0, 3, 4, 4});
  CHECK(values<int32_t>(f, "seq_len", 2) == I{6, 1});
  CHECK(values<int32_t>(f, "snapshot", 2) == I{6, 0});
  CHECK(values<float>(f, "temperature", 2) == std::vector<float>{0, 0.5f});
  CHECK(values<float>(f, "top_p", 2) == std::vector<float>{1, 0.25f});
  CHECK(values<int32_t>(f, "top_k", 2) == I{0, 40});
  CHECK(values<float>(f, "min_p", 2) == std::vector<float>{0, 0.125f});
  CHECK(values<uint64_t>(f, "seed", 2) == std::vector<uint64_t>{0, 0xFFFFFFFFFFFFFFF0u});
  CHECK(values<int32_t>(f, "draw", 2) == I{0, 6});
  CHECK(values<int32_t>(f, "pages", 8) == I{2, 9, 0, 0, 7, 0, 0, 0});
  CHECK(values<int32_t>(f, "lines", 4) == I{2, 8, 3, 9});
}

TEST_CASE("a table row forgets the pages of the sequence before", "[node][executor]") {
  Fixture f = fixture(roles());
  Item item;
  item.slices = {slice(1, 0, {5})};
  item.slices[0].pages = {1, 2, 3, 4};
  REQUIRE(f.executor->run(item));
  item.slices[0].pages = {9};
  REQUIRE(f.executor->run(item));
  CHECK(values<int32_t>(f, "pages", 4) == I{9, 0, 0, 0});
}

TEST_CASE("only emitting slices answer, and a NaN fails its own request", "[node][executor]") {
  Fixture f = fixture(roles());
  Item item;
  item.id = 77;
  item.slices = {slice(1, 0, {5, 6}), slice(2, 0, {9}, false), slice(3, 0, {13})};
  for (Slice& s : item.slices) s.pages = {static_cast<uint32_t>(s.request.value())};
  item.slices[0].top_logprobs = 2;
  const auto result = f.executor->run(item);
  REQUIRE(result);
  CHECK(result->id == 77);
  REQUIRE(result->emitted.size() == 2);
  CHECK(result->emitted[0].request == RequestId(1));
  CHECK(result->emitted[0].token == 7);
  CHECK_FALSE(result->emitted[0].failed);
  CHECK(result->emitted[0].logprob == -6);
  CHECK(result->emitted[0].top == std::vector<engine::TokenLogprob>{{7, 0.f}, {8, -1.f}});
  CHECK(result->emitted[1].request == RequestId(3));
  CHECK(result->emitted[1].failed);
  CHECK(result->emitted[1].top.empty());
}

TEST_CASE("slots are zeroed and copies made before the step, in that order", "[node][executor]") {
  Fixture f = fixture(roles());
  const MutableByteSpan rec = f.runtime->state("rec"), kv = f.runtime->state("kv");
  std::memset(rec.data() + 16, 1, 16);
  std::memset(rec.data() + 32, 2, 16);
  std::memset(kv.data() + 16, 3, 16);
  Item item;
  item.zero_slots = {1};
  item.slot_copies = {{2, 3}, {1, 2}};
  item.page_copies = {{1, 5}};
  item.slices = {slice(1, 0, {5})};
  item.slices[0].pages = {1};
  REQUIRE(f.executor->run(item));
  CHECK(rec[16] == std::byte{0});
  CHECK(rec[32] == std::byte{0});
  CHECK(rec[48] == std::byte{2});
  CHECK(kv[5 * 16] == std::byte{3});
}

TEST_CASE("a page that an item parks and another wakes is there before the step reads it",
          "[node][executor]") {
  using What = engine::Move::What;
  Fixture f = fixture(roles(), nullptr, 1 << 16);
  const MutableByteSpan rec = f.runtime->state("rec"), kv = f.runtime->state("kv");
  std::memset(rec.data() + 16, 1, 16);
  std::memset(kv.data() + 16, 3, 16);
  Item item;
  item.id = 5;
  item.moves = {{What::park_page, 1, 1}, {What::park_slot, 1, 1}};
  item.after_moves = 5;
  item.zero_slots = {1};
  item.page_copies = {{2, 1}};
  item.slices = {slice(2, 0, {5})};
  item.slices[0].pages = {3};
  REQUIRE(f.executor->start_moves(item));  // starts once, also when `run` comes to it
  const auto parked = f.executor->run(item);
  REQUIRE(parked);
  CHECK(parked->moved == 5);
  CHECK(kv[16] == std::byte{0});
  item.id = 6;
  item.moves = {{What::wake_page, 4, 1}, {What::wake_slot, 3, 1}};
  item.after_moves = 6;
  item.zero_slots.clear();
  item.page_copies = {{4, 5}};
  item.slot_copies = {{3, 4}};
  const auto woken = f.executor->run(item);
  REQUIRE(woken);
  CHECK(woken->moved == 6);
  CHECK(kv[5 * 16] == std::byte{3});
  CHECK(rec[4 * 16] == std::byte{1});
  // after a rest the ids may come again
  REQUIRE(f.executor->settle());
  item.moves = {{What::wake_page, 6, 1}};
  item.page_copies.clear();
  item.slot_copies.clear();
  REQUIRE(f.executor->run(item));
  CHECK(kv[6 * 16] == std::byte{3});
}

TEST_CASE("an item that does not fit is refused before it touches anything", "[node][executor]") {
  Fixture f = fixture(roles());
  f.runtime->state("rec")[16] = std::byte{1};
  Item item;
  item.id = 3;
  item.zero_slots = {1};
  CHECK(refusal(f, item) == "item 3: 0 sequences, expected 1 to 3");
  Item parks;
  parks.id = 4;
  parks.moves = {{engine::Move::What::park_page, 1, 1}};
  parks.slices = {slice(1, 0, {5})};
  parks.slices[0].pages = {1};
  CHECK(refusal(f, parks) == "item 4: 1 moves, and this process has no host tier (--host-gib)");
  item.slices = {slice(1, 0, {1, 2, 3, 4, 5, 6, 7, 8, 9})};
  item.slices[0].pages = {1, 2, 3};
  CHECK(refusal(f, item) == "item 3: 9 rows, expected at most 8");
  item.slices = {slice(1, 3, {1, 2})};
  item.slices[0].pages = {1};
  CHECK(refusal(f, item) == "item 3: request 1 needs 2 pages for 5 tokens, got 1");
  item.slices = {slice(1, 16, {1})};
  item.slices[0].pages = {1, 2, 3, 4, 5};
  CHECK(refusal(f, item) == "item 3: request 1 needs 5 pages, a row of `pages` holds 4");
  item.slices = {slice(1, 0, {})};
  CHECK(refusal(f, item) == "item 3: request 1 feeds no token");
  item.phase = Phase::decode;
  item.slices = {slice(1, 0, {1, 2})};
  CHECK(refusal(f, item) == "item 3: 2 rows for 1 sequences of a decode step");
  item.slices = {slice(1, 0, {1}), slice(2, 0, {1}), slice(3, 0, {1})};
  CHECK(refusal(f, item) == "item 3: 3 sequences, expected 1 to 2");
  CHECK(f.runtime->state("rec")[16] == std::byte{1});
}

TEST_CASE("a member of a group that divides positions fills its own rows and lengths of all",
          "[node][executor]") {
  runtime::LocalGroup group(2);
  for (const int rank : {0, 1}) {
    Fixture f = fixture(roles(kTwoRanks, kByPosition), &group.member(rank));
    CHECK(f.executor->limits().context_max == 32);
    Item item;
    item.slices = {slice(1, 7, {5, 6, 7})};  // positions 7, 8, 9
    item.slices[0].pages = {6, 3};
    REQUIRE(f.executor->run(item));
    // Position p lies on rank p mod 2 at row p div 2: 7 -> row 3 of 1, 8 -> row 4 of 0, 9 -> 4
    // of 1.
    CHECK(values<int32_t>(f, "slot", 3) == (rank == 0 ? I{0, 3 * 4, 0} : I{6 * 4 + 3, 0, 3 * 4}));
    CHECK(values<int32_t>(f, "seq_len", 1) == I{10});
    CHECK(values<int64_t>(f, "position", 3) == std::vector<int64_t>{7, 8, 9});
  }
}

TEST_CASE("a stage tells what crosses and how much of it an item fills", "[node][executor]") {
  Fixture f = fixture(kStage);
  REQUIRE(f.executor->received().size() == 3);
  REQUIRE(f.executor->sent().size() == 2);
  CHECK(f.executor->received()[0].name == "hidden");
  CHECK(f.executor->received()[1].name == "bank");
  CHECK(f.executor->received()[2].name == "each");
  CHECK(f.executor->sent()[0].name == "hidden");
  CHECK(f.executor->sent()[1].name == "more");
  CHECK(f.executor->received()[0].bytes.size() == 128);
  CHECK(f.executor->received()[0].valid(3, 2).size() == 48);
  CHECK(f.executor->received()[2].valid(3, 2).size() == 16);
  const std::vector<float> bank = {1, 2, 3, 4};
  std::memcpy(f.executor->received()[1].bytes.data(), bank.data(), 16);
  Item item;
  item.id = 5;
  item.slices = {slice(1, 0, {0})};
  const auto result = f.executor->run(item);
  REQUIRE(result);
  CHECK(result->emitted.empty());
  CHECK(values<float>(f, "more", 4) == std::vector<float>{2, 4, 6, 8});
}

TEST_CASE("an item starts before the one ahead of it is finished, and results come in order",
          "[node][executor]") {
  Fixture f = fixture(roles());
  Item one, two;
  one.id = 1, two.id = 2;
  one.slices = {slice(1, 0, {5, 6})};
  one.slices[0].pages = {1};
  two.slices = {slice(2, 0, {7})};
  two.slices[0].pages = {2};
  REQUIRE(f.executor->start(one));
  REQUIRE(f.executor->start(two));
  CHECK(f.executor->started() == 2);
  const auto done = f.executor->is_done();
  REQUIRE(done);
  CHECK(*done);
  const auto first = f.executor->finish();
  REQUIRE(first);
  CHECK(first->id == 1);
  CHECK(first->emitted[0].request == RequestId(1));
  CHECK(first->emitted[0].token == 7);
  const auto second = f.executor->finish();
  REQUIRE(second);
  CHECK(second->id == 2);
  CHECK(second->emitted[0].token == 8);
  CHECK(f.executor->started() == 0);
}

TEST_CASE("a slice is fed by a row of the step before, where the manifest keeps its tokens",
          "[node][executor]") {
  Item step;
  step.id = 1;
  step.phase = engine::Phase::decode;
  step.slices = {slice(1, 3, {5}), slice(2, 0, {6})};
  step.slices[0].pages = step.slices[1].pages = {1};
  Item next = step;
  next.id = 2;
  next.slices[0].fed_from = 1;

  Fixture plain = fixture(roles());
  CHECK(!plain.executor->limits().feeds);
  REQUIRE(plain.executor->run(step));
  CHECK(refusal(plain, next) ==
        "item 2: request 1 is fed a token of the step before, which this manifest does not keep");

  Fixture f = fixture(replaced(replaced(roles(), R"("fill": "position")", R"("fill": "fed_from")"),
                               R"("uses": ["host",)", R"("uses": ["feedback", "host",)"));
  CHECK(f.executor->limits().feeds);
  CHECK(refusal(f, next) == "item 2: request 1 is fed by row 1 of a step of 0");
  REQUIRE(f.executor->run(step));
  REQUIRE(f.executor->run(next));
  CHECK(values<int64_t>(f, "position", 2) == std::vector<int64_t>{1, -1});
  next.phase = engine::Phase::prefill;
  CHECK(refusal(f, next) ==
        "item 2: request 1 is fed a token of the step before, which a prompt is not");
}
