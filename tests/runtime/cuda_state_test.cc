// States, weights, packs and peers of the cuda device, on a driver without a device.
#include <catch2/catch.hpp>
#include <thread>

#include "fixture.h"
#include "kern/runtime/local_peers.h"
#include "kern_test/fake_driver.h"

using namespace kern;
using namespace kern_test;
using runtime::VarValue;
namespace api = cuda::api;

namespace {

struct Gpu {
  explicit Gpu(const std::string& code = {}) : cubin(fake_cubin(code)) {
    REQUIRE(write_file(dir / "test.cubin", as_bytes(cubin)));
    // Copies `bytes` bytes; the last parameter is a count.
    fake.kernels["copy"] = {{8, 8, 4}, [](const api::LaunchConfig&, void* const* params) {
                              std::memcpy(param<void*>(params, 1), param<void*>(params, 0),
                                          static_cast<size_t>(param<int>(params, 2)));
                            }};
  }
  std::string hashed(std::string json) const {
    for (size_t at; (at = json.find("@CUBIN@")) != std::string::npos;)
      json.replace(at, 7, to_hex(sha256(as_bytes(cubin))));
    return json;
  }
  runtime::Options options() const {
    runtime::Options out;
    out.module_dirs = {dir.path()};
    out.driver = &fake.driver();
    return out;
  }
  Result<std::unique_ptr<runtime::Runtime>> load(
      const std::string& json, const runtime::Options& with,
      const safetensors::Catalog* weights = nullptr) const {
    return runtime::Runtime::load(verified(hashed(json)), weights, with, quiet());
  }

  TempDir dir;
  std::string cubin;
  FakeDriver fake;
};

std::unique_ptr<runtime::Runtime> good(Result<std::unique_ptr<runtime::Runtime>> loaded) {
  if (!loaded) FAIL(loaded.error().text());
  return std::move(*loaded);
}

template <class T>
std::string sentence(const Result<T>& result) {
  return result ? "" : result.error().text();
}

/// One op that copies a buffer of that declaration into the output `o` of 64 bytes.
std::string copy_manifest(const std::string& buffers, const std::string& from,
                          const std::string& more = "") {
  return R"({"schema_version": 7, "model": "copy", "vars": {}, "states": {)" + more + R"(},
  "buffers": {)" +
         buffers + R"(, "o": {"dtype": "u8", "shape": [64], "kind": "output"}},
  "modules": {"test": {"source": "test.cubin", "sha256": "@CUBIN@"}},
  "ops": {"copy": {"params": ["in buffer<u8>", "out buffer<u8>", "i32"],
    "impl": {"launches": [{"module": "test", "entry": "copy", "block": [1, 1, 1],
      "grid": [1, 1, 1]}]}}},
  "programs": {"main": {"calls": [{"op": "copy", "args": [)" +
         from + R"(, {"buf": "o"}, {"i32": 64}]}]}}})";
}

const std::string kStates = R"({
  "schema_version": 7, "model": "states", "vars": {},
  "states": {"kv": {"bytes_per_token": 8}, "rec": {"bytes_per_seq": 24}},
  "buffers": {"o": {"dtype": "u8", "shape": [64], "kind": "output"}},
  "modules": {"test": {"source": "test.cubin", "sha256": "@CUBIN@"}},
  "ops": {"copy": {"params": ["in state", "out buffer<u8>", "i32"],
    "impl": {"launches": [{"module": "test", "entry": "copy", "block": [1, 1, 1],
      "grid": [1, 1, 1]}]}}},
  "programs": {"main": {"calls": [
    {"op": "copy", "args": [{"state": "kv"}, {"buf": "o"}, {"i32": 64}]},
    {"op": "copy", "args": [{"state": "rec"}, {"buf": "o"}, {"i32": 64}]}]}}
})";

}  // namespace

TEST_CASE("states of a device are read and written in parts, and moved by place",
          "[runtime][cuda][state]") {
  Gpu gpu;
  auto options = gpu.options();
  options.capacity = {5, 4, 3};
  const auto r = good(gpu.load(kStates, options));
  CHECK(r->state_bytes("kv") == 160);
  CHECK(r->state_bytes("rec") == 72);
  CHECK(r->state_bytes("none") == std::nullopt);
  CHECK(r->state("kv").empty());
  const auto byte = [&](const char* state, int64_t at) {
    std::byte value{};
    REQUIRE(r->read_state(state, at, {&value, 1}));
    return static_cast<int>(value);
  };
  CHECK(byte("kv", 0) == 0);  // fresh memory is cleared
  CHECK(byte("rec", 71) == 0);
  const std::byte seven{7};
  REQUIRE(r->write_state("kv", 63, {&seven, 1}));
  REQUIRE(r->copy_page(1, 4));
  REQUIRE(r->synchronize());
  CHECK(byte("kv", 159) == 7);
  REQUIRE(r->write_state("rec", 30, {&seven, 1}));
  REQUIRE(r->copy_slot(1, 2));
  REQUIRE(r->synchronize());
  CHECK(byte("rec", 54) == 7);
  REQUIRE(r->zero_slot(2));
  REQUIRE(r->synchronize());
  CHECK(byte("rec", 54) == 0);
  CHECK(byte("rec", 30) == 7);
  CHECK(sentence(r->write_state("kv", 160, {&seven, 1})) ==
        "1 bytes at 160 of state `kv`, which has 160");
  CHECK(sentence(r->copy_page(1, 5)) == "page 5 is outside the capacity of 5");
  CHECK(sentence(r->write_state("none", 0, {&seven, 1})) == "no state `none`");
}

TEST_CASE("weights larger than a slice, strided and interleaved, arrive whole on any lanes",
          "[runtime][cuda][bind]") {
  TempDir dir;
  // Rows of 3 MiB; a bind of a part of each row lies in many pieces over several slices.
  constexpr size_t kRows = 7, kRow = size_t{3} << 20;
  std::vector<uint8_t> big(kRows * kRow), other(kRows * kRow);
  for (size_t i = 0; i < big.size(); ++i) {
    big[i] = static_cast<uint8_t>(i * 31 + (i >> 12));
    other[i] = static_cast<uint8_t>(i * 17 + 5 + (i >> 9));
  }
  const auto weights = checkpoint(dir, {tensor<uint8_t>("a", "U8", {kRows, kRow}, big),
                                        tensor<uint8_t>("b", "U8", {kRows, kRow}, other)});
  const std::string cut = R"({"tensor": "a", "rows": [1, 6], "cols": [1000, 3000000]})";
  const std::string both = R"({"tensor": "a", "interleave": {"with": "b", "rows": 1}})";
  const size_t cut_bytes = 5 * 2999000, both_bytes = 2 * kRows * kRow;
  const std::string json =
      copy_manifest(R"("w": {"dtype": "u8", "shape": [)" + std::to_string(cut_bytes + both_bytes) +
                        R"(], "kind": "weight", "bind": [)" + cut + "," + both + "]}",
                    R"({"buf": "w"})");
  std::vector<uint8_t> expected;
  for (size_t row = 1; row < 6; ++row)
    expected.insert(expected.end(), big.begin() + static_cast<ptrdiff_t>(row * kRow + 1000),
                    big.begin() + static_cast<ptrdiff_t>(row * kRow + 3000000));
  for (size_t row = 0; row < kRows; ++row)
    for (const auto* from : {&big, &other})
      expected.insert(expected.end(), from->begin() + static_cast<ptrdiff_t>(row * kRow),
                      from->begin() + static_cast<ptrdiff_t>((row + 1) * kRow));
  for (const int threads : {1, 3}) {
    Gpu gpu;
    std::vector<uint8_t> seen(expected.size());
    gpu.fake.kernels["copy"].run = [&](const api::LaunchConfig&, void* const* params) {
      std::memcpy(seen.data(), param<void*>(params, 0), seen.size());
    };
    auto options = gpu.options();
    options.threads = threads;
    const auto r = good(gpu.load(json, options, &weights));
    REQUIRE(r->run("main", std::vector<VarValue>{}));
    CHECK((seen == expected));
    // What only loading needs is given back: left are the caller's view and a piece for states.
    size_t pinned = 0;
    for (const std::string& what : gpu.fake.live()) pinned += what == "pinned memory";
    CHECK(pinned == 2);
  }
}

TEST_CASE("a weight placed on the host is pinned memory that the device reads",
          "[runtime][cuda][bind]") {
  TempDir dir;
  std::vector<uint8_t> values(64);
  for (size_t i = 0; i < 64; ++i) values[i] = static_cast<uint8_t>(i);
  const auto weights = checkpoint(dir, {tensor<uint8_t>("a", "U8", {64}, values)});
  Gpu gpu;
  const auto r = good(gpu.load(
      copy_manifest(R"("w": {"dtype": "u8", "shape": [64], "kind": "weight", "placement": "host",
                             "bind": [{"tensor": "a"}]})",
                    R"({"buf": "w"})"),
      gpu.options(), &weights));
  REQUIRE(r->run("main", std::vector<VarValue>{}));
  CHECK(get<uint8_t>(r->buffer("o"), 64) == values);
}

TEST_CASE("sources are bound for derive, and their memory is free afterwards",
          "[runtime][cuda][bind]") {
  TempDir dir;
  std::vector<uint8_t> values(64, 9);
  const auto weights = checkpoint(dir, {tensor<uint8_t>("a", "U8", {64}, values)});
  std::string json = copy_manifest(
      R"("s": {"dtype": "u8", "shape": [64], "kind": "source", "bind": [{"tensor": "a"}]},
         "c": {"dtype": "u8", "shape": [64], "kind": "carry"})",
      R"({"buf": "c"})");
  const std::string programs = R"("programs": {)";
  json.replace(json.find(programs), programs.size(),
               programs + R"("prepare": {"derive": true, "calls": [
                 {"op": "copy", "args": [{"buf": "s"}, {"buf": "c"}, {"i32": 64}]}]}, )");
  Gpu gpu;
  const auto r = good(gpu.load(json, gpu.options(), &weights));
  REQUIRE(r->run("main", std::vector<VarValue>{}));
  CHECK(get<uint8_t>(r->buffer("o"), 64) == values);
  // The carry, the staged block and an arena of nothing.
  CHECK(gpu.fake.calls_of("cuMemAlloc").size() == gpu.fake.calls_of("cuMemFree").size() + 3);
}

TEST_CASE("a pack holds its fields and an encoded tensormap", "[runtime][cuda][pack]") {
  Gpu gpu;
  std::array<uint64_t, 20> pack{};
  gpu.fake.kernels["packed"] = {{160, 8}, [&](const api::LaunchConfig&, void* const* params) {
                                  std::memcpy(pack.data(), params[0], 160);
                                }};
  const std::string json = R"({
    "schema_version": 7, "model": "pack", "vars": {"n": {"max": 9}}, "states": {},
    "buffers": {"x": {"dtype": "bf16", "shape": [32, 64], "kind": "input"},
                "o": {"dtype": "u8", "shape": [64], "kind": "output"}},
    "modules": {"test": {"source": "test.cubin", "sha256": "@CUBIN@"}},
    "ops": {"packed": {"params": ["in buffer<bf16>", "out buffer<u8>", "i32"], "impl": {
      "launches": [{"module": "test", "entry": "packed", "block": [1, 1, 1], "grid": [1, 1, 1],
        "params": ["bytes<160>", "out buffer<u8>"],
        "args": [{"pack": {"size": 160, "fields": [
          {"at": 0, "tensormap": {"param": 0, "dtype": "bf16", "dims": [64, 0], "strides": [128],
            "box": [64, 8], "swizzle": 128, "l2_promotion": 256}},
          {"at": 128, "param": 1}, {"at": 136, "var": "n"}, {"at": 144, "i32": -3}]}},
          {"param": 1}]}]}}},
    "programs": {"main": {"calls": [
      {"op": "packed", "args": [{"buf": "x"}, {"buf": "o"}, {"var": "n"}]}]}}
  })";
  const auto r = good(gpu.load(json, gpu.options()));
  REQUIRE(r->run("main", std::vector<VarValue>{{"n", 4}}));
  CHECK(pack[1] == 32);    // the outermost extent spans what is bound
  CHECK(pack[2] == 128);   // its stride
  CHECK(pack[4] == 9330);  // bf16, swizzle 128, promotion 256
  CHECK(pack[17] == 4);
  CHECK(static_cast<int32_t>(pack[18]) == -3);
  REQUIRE(r->run("main", std::vector<VarValue>{{"n", 7}}));
  CHECK(pack[17] == 7);
  gpu.fake.fail("cuTensorMapEncodeTiled", 1);
  CHECK(
      sentence(gpu.load(json, gpu.options()))
          .find("program `main`, call 0, op `packed` launch #0: the driver refuses a tensormap of "
                "`bf16` at 0x") == 0);
}

namespace {

/// Every rank writes its number into its exported workspace, then reads all of them.
const std::string kPeers = R"({
  "schema_version": 7, "model": "peers", "vars": {}, "states": {},
  "topology": {"groups": {"tp": 3}},
  "buffers": {
    "x": {"dtype": "u8", "shape": [64], "kind": "carry", "export": true},
    "all": {"dtype": "u64", "shape": [3], "kind": "peer", "of": "x", "group": "tp"},
    "o": {"dtype": "u8", "shape": [64], "kind": "output"}},
  "modules": {"test": {"source": "test.cubin", "sha256": "@CUBIN@"}},
  "ops": {
    "mark": {"params": ["out buffer<u8>", "i32"], "impl": {"launches": [
      {"module": "test", "entry": "mark", "block": [1, 1, 1], "grid": [1, 1, 1]}]}},
    "read": {"params": ["in buffer<u64>", "in buffer<u8>", "out buffer<u8>"], "impl": {"launches": [
      {"module": "test", "entry": "read", "block": [1, 1, 1], "grid": [1, 1, 1]}]}}},
  "programs": {
    "start": {"once": true, "calls": [{"op": "mark", "args": [{"buf": "x"}, {"rank": "tp"}]}]},
    "main": {"calls": [{"op": "read", "args": [{"buf": "all"}, {"buf": "x"}, {"buf": "o"}]}]}}
})";

void add_peer_kernels(FakeDriver& fake) {
  fake.kernels["mark"] = {{8, 4}, [](const api::LaunchConfig&, void* const* params) {
                            std::memset(param<void*>(params, 0), 10 + param<int>(params, 1), 64);
                          }};
  fake.kernels["read"] = {{8, 8, 8}, [](const api::LaunchConfig&, void* const* params) {
                            const auto* all = param<const uint8_t* const*>(params, 0);
                            for (int rank = 0; rank < 3; ++rank)
                              param<uint8_t*>(params, 2)[rank] = all[rank][63];
                          }};
}

}  // namespace

TEST_CASE("a peer buffer holds every member's address, and what one wrote all read",
          "[runtime][cuda][peers]") {
  Gpu gpu;
  add_peer_kernels(gpu.fake);
  runtime::LocalGroup group(3);
  std::vector<std::unique_ptr<runtime::Runtime>> ranks(3);
  std::vector<std::thread> threads;
  std::vector<std::string> errors(3);
  const auto manifest = verified(gpu.hashed(kPeers));
  for (int rank = 0; rank < 3; ++rank)
    threads.emplace_back([&, rank] {
      auto options = gpu.options();
      options.peers = {{"tp", &group.member(rank)}};
      auto loaded = runtime::Runtime::load(manifest, nullptr, options, quiet());
      if (loaded)
        ranks[static_cast<size_t>(rank)] = std::move(*loaded);
      else
        errors[static_cast<size_t>(rank)] = loaded.error().text();
      if (!loaded) group.leave(rank);
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) CHECK(error.empty());
  // One thread drives all: every rank is enqueued before one is waited for.
  for (const auto& r : ranks) REQUIRE(r->enqueue("main", std::vector<VarValue>{}));
  for (const auto& r : ranks) {
    REQUIRE(r->synchronize());
    CHECK(get<uint8_t>(r->buffer("o"), 3) == std::vector<uint8_t>{10, 11, 12});
  }
  ranks.clear();
  CHECK(gpu.fake.live().empty());
}

TEST_CASE("code that may copy by multicast receives no peer buffer", "[runtime][cuda][peers]") {
  // UBLKCP.S.G.MULTICAST
  const uint64_t words[] = {0x00000004080073ba, 0x0001d80008000a06};
  Gpu gpu(std::string(reinterpret_cast<const char*>(words), sizeof(words)));
  add_peer_kernels(gpu.fake);
  std::string alone = kPeers;
  alone.replace(alone.find("\"tp\": 3"), 7, "\"tp\": 1");
  alone.replace(alone.find("\"shape\": [3]"), 12, "\"shape\": [1]");
  const std::string refused = sentence(gpu.load(alone, gpu.options()));
  CHECK(refused.find("program `main`, call 0, op `read` launch #0: receives a peer buffer, and its "
                     "module `test` (`") == 0);
  CHECK(
      refused.ends_with("copies by multicast: an entry that reaches other members' memory is "
                        "built alone, as a cubin for sm_90"));
}

TEST_CASE("peers that pass no descriptors cannot share memory", "[runtime][cuda][peers]") {
  struct Mute final : runtime::PeerGroup {
    int rank() const override { return 0; }
    int size() const override { return 3; }
    Result<void> all_gather(ByteSpan, MutableByteSpan) override { return {}; }
    Result<void> all_to_all(ByteSpan, MutableByteSpan) override { return {}; }
  } mute;
  Gpu gpu;
  add_peer_kernels(gpu.fake);
  auto options = gpu.options();
  options.peers = {{"tp", &mute}};
  CHECK(
      sentence(gpu.load(kPeers, options)) ==
      "peer buffer `all`: memory of 3 ranks is to be mapped, and these peers pass no descriptors");
  CHECK(gpu.fake.live().empty());
}

TEST_CASE("a built-in that the cuda device has not, or cannot have, is refused by name",
          "[runtime][cuda][built-in]") {
  Gpu gpu;
  const auto json = [](const std::string& name, const std::string& params,
                       const std::string& args) {
    return R"({"schema_version": 7, "model": "b", "vars": {"m": {"max": 9}, "q": {"max": 8}},
      "states": {}, "topology": {"groups": {"tp": 2}},
      "buffers": {"a": {"dtype": "bf16", "shape": ["m", 64], "kind": "input"},
        "w": {"dtype": "bf16", "shape": [48, 64], "kind": "input"},
        "c": {"dtype": "bf16", "shape": ["m", 48], "kind": "output"}},
      "modules": {},
      "ops": {"f": {"params": )" +
           params + R"(, "impl": {"launches": [{"entry": "extern:)" + name + R"("}]}}},
      "programs": {"main": {"calls": [{"op": "f", "args": )" +
           args + "}]}}}";
  };
  const std::string gemm =
      R"(["in buffer<bf16>", "in buffer<bf16>", "out buffer<bf16>", "i32", "i32", "i32"])";
  const auto refused = [&](const std::string& text) {
    auto read = manifest::load(text);
    if (!read) return manifest::to_text(read.error());
    runtime::LocalGroup group(1);
    return sentence(runtime::Runtime::load(*read, nullptr, gpu.options(), quiet()));
  };
  const std::string unused = R"("topology": {"groups": {"tp": 2}},)";
  const auto without_group = [&](std::string text) {
    text.erase(text.find(unused), unused.size());
    return text;
  };
  const std::string args = R"([{"buf": "a"}, {"buf": "w"}, {"buf": "c"}, {"var": "m"}, {"i32": 48},
    {"i32": 64}])";
  const std::string where = "program `main`, call 0, op `f` launch #0: ";
  std::string plain = without_group(json("dense_magic", gemm, args));
  plain.replace(plain.find(R"(, "q": {"max": 8})"), 17, "");
  CHECK(refused(plain).find(where + "the cuda device has no built-in `extern:dense_magic`, it has: "
                                    "gemm_bf16_tn") == 0);
  const std::string varying = R"([{"buf": "a"}, {"buf": "w"}, {"buf": "c"}, {"var": "m"},
    {"expr": {"mul": ["q", 6]}}, {"i32": 64}])";
  CHECK(refused(without_group(json("cublaslt_bf16_tn", gemm, varying))) ==
        where +
            "`extern:cublaslt_bf16_tn` arg #4 changes with a var, and only the number of rows "
            "may");
}
