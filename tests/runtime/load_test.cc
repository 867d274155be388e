#include <cmath>
#include <fstream>
#include <set>

#include "fixture.h"

using namespace kern;
using namespace kern_test;
using runtime::VarValue;

namespace {

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

// One kernel launch and one output: the smallest manifest that needs its module.
const std::string kSet = R"({
  "schema_version": 7, "model": "set", "uses": ["host"], "device": "host",
  "vars": {}, "states": {},
  "buffers": {"o": {"dtype": "f32", "shape": [4], "kind": "output"}},
  "modules": {"test": {"source": "test.so", "sha256": "@HASH@"}},
  "ops": {"set": {"params": ["out buffer<f32>", "f32", "i32"], "impl": {"launches": [
    {"module": "test", "entry": "test_set", "block": [1, 1, 1], "grid": [1, 1, 1]}]}}},
  "programs": {"main": {"calls": [{"op": "set", "args": [{"buf": "o"}, {"f32": 3}, {"i32": 4}]}]}}
})";

std::vector<float> counting(size_t count, float first) {
  std::vector<float> out(count);
  for (size_t i = 0; i < count; ++i) out[i] = first + static_cast<float>(i);
  return out;
}

/// A place in a group whose members never speak.
class SilentPeers final : public runtime::PeerGroup {
 public:
  SilentPeers(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Result<void> all_gather(ByteSpan, MutableByteSpan) override {
    return fail(Kind::peer, "member 1 is gone");
  }
  Result<void> all_to_all(ByteSpan, MutableByteSpan) override {
    return fail(Kind::peer, "member 1 is gone");
  }

 private:
  int rank_, size_;
};

std::vector<float> bound(const std::string& json, const safetensors::Catalog& weights, size_t count,
                         runtime::Options with = options()) {
  const auto r = loaded(json, with, &weights);
  REQUIRE(r->run("main", std::vector<VarValue>{}));
  return get<float>(r->buffer("o"), count);
}

}  // namespace

// ---- modules ----

TEST_CASE("a module is found by its file's name, by its hash, and in the cache",
          "[runtime][modules]") {
  const TempDir dir;
  runtime::Options with = options();
  CHECK(refusal(kSet, with).empty());
  std::filesystem::create_directories(dir / "blobs");
  with.module_dirs = {dir.path()};
  std::filesystem::copy_file(kModuleDir / "test.so", dir / module_hash());
  CHECK(refusal(kSet, with).empty());
  with.module_dirs = {};
  with.cache_dir = dir.path();
  CHECK_FALSE(refusal(kSet, with).empty());
  std::filesystem::rename(dir / module_hash(), dir / "blobs" / module_hash());
  CHECK(refusal(kSet, with).empty());
}

TEST_CASE("a module whose bytes differ is refused by both hashes", "[runtime][modules]") {
  const TempDir dir;
  runtime::Options with = options();
  with.module_dirs = {dir.path()};
  std::filesystem::copy_file(kModuleDir / "test.so", dir / "test.so");
  std::ofstream(dir / "test.so", std::ios::app) << '\0';
  const std::string sentence = refusal(kSet, with);
  INFO(sentence);
  CHECK(sentence.find("module `test`: no file with sha256 " + module_hash()) == 0);
  CHECK(sentence.find("test.so` has sha256 ") != std::string::npos);
  CHECK(sentence.find("` is not there") != std::string::npos);
}

TEST_CASE("the bytes that were hashed run, whatever becomes of the file", "[runtime][modules]") {
  const TempDir dir;
  runtime::Options with = options();
  with.module_dirs = {dir.path()};
  std::filesystem::copy_file(kModuleDir / "test.so", dir / "test.so");
  const auto r = loaded(kSet, with);
  std::ofstream(dir / "test.so", std::ios::trunc) << "no longer a module";
  REQUIRE(r->run("main", std::vector<VarValue>{}));
  CHECK(get<float>(r->buffer("o"), 1)[0] == 3);
}

TEST_CASE("an entry that a module lacks is refused by name", "[runtime][modules]") {
  const std::string sentence = refusal(replaced(kSet, "test_set", "test_none"));
  CHECK(sentence.find("program `main`, call 0, op `set` launch #0: module `test` (`") == 0);
  CHECK(sentence.find("has no entry `test_none`") != std::string::npos);
}

TEST_CASE("a file with the right hash that is no shared object is refused", "[runtime][modules]") {
  const TempDir dir;
  std::ofstream(dir / "test.so") << "text";
  runtime::Options with = options();
  with.module_dirs = {dir.path()};
  const std::string hash = to_hex(sha256(as_bytes("text")));
  const std::string sentence = refusal(replaced(kSet, "@HASH@", hash), with);
  INFO(sentence);
  CHECK(sentence.find("module `test`: `" + (dir / "test.so").string() + "` does not load: ") == 0);
}

TEST_CASE("several runtimes may hold the same module, and one goes before another",
          "[runtime][modules]") {
  auto first = loaded(kSet);
  const auto second = loaded(kSet);
  first.reset();
  const auto third = loaded(kSet);
  for (const auto* r : {&second, &third}) {
    REQUIRE((*r)->run("main", std::vector<VarValue>{}));
    CHECK(get<float>((*r)->buffer("o"), 1)[0] == 3);
  }
}

TEST_CASE("a manifest for a GPU says what is missing on a machine without a driver", "[runtime]") {
  const std::string json = R"({
    "schema_version": 7, "model": "cuda", "vars": {}, "states": {},
    "buffers": {"o": {"dtype": "f32", "shape": [4], "kind": "output"}},
    "modules": {"test": {"source": "test.cubin", "sha256": "@HASH@"}},
    "ops": {"set": {"params": ["out buffer<f32>"], "impl": {"launches": [
      {"module": "test", "entry": "set", "block": [1, 1, 1], "grid": [1, 1, 1]}]}}},
    "programs": {"main": {"calls": [{"op": "set", "args": [{"buf": "o"}]}]}}
  })";
  const std::string sentence = refusal(json);
  // Where there is a driver, the module is what it refuses: a host library without device code.
  const bool has_driver = sentence.find("module `test`") == 0;
  CHECK((has_driver ||
         sentence.find("manifest `cuda` is for the cuda device: no CUDA driver: ") == 0));
}

// ---- binding ----

TEST_CASE("segments lie end to end, each a rectangle of its tensor", "[runtime][bind]") {
  const TempDir dir;
  const auto weights = checkpoint(dir, {tensor("a", "F32", {4, 3}, counting(12, 0)),
                                        tensor("b", "F32", {2, 2, 3}, counting(12, 100))});
  CHECK(bound(weight_manifest("f32", 4, 3, R"([{"tensor": "a"}])"), weights, 12) ==
        counting(12, 0));
  CHECK(bound(weight_manifest("f32", 3, 2, R"([{"tensor": "a", "rows": [1, 3], "cols": [1, 3]},
                                               {"tensor": "b", "rows": [1, 2], "cols": [4, 6]}])"),
              weights, 6) == std::vector<float>{4, 5, 7, 8, 110, 111});
}

TEST_CASE("blocks of rows of two tensors alternate", "[runtime][bind]") {
  const TempDir dir;
  const auto weights = checkpoint(dir, {tensor("g", "F32", {4, 2}, counting(8, 0)),
                                        tensor("u", "F32", {4, 2}, counting(8, 100)),
                                        tensor("v", "F32", {2, 4}, counting(8, 100))});
  const auto bind = [](const std::string& with, const std::string& rows) {
    return weight_manifest(
        "f32", 8, 2,
        R"([{"tensor": "g", "interleave": {"with": ")" + with + R"(", "rows": )" + rows + "}}]");
  };
  CHECK(bound(bind("u", "2"), weights, 16) ==
        std::vector<float>{0, 1, 2, 3, 100, 101, 102, 103, 4, 5, 6, 7, 104, 105, 106, 107});
  CHECK(bound(bind("u", "1"), weights, 16) ==
        std::vector<float>{0, 1, 100, 101, 2, 3, 102, 103, 4, 5, 104, 105, 6, 7, 106, 107});
  CHECK(refusal(bind("v", "2"), options(), &weights) ==
        "weight `w`: tensors `g` and `v` interleave but differ in shape");
  CHECK(refusal(bind("u", "3"), options(), &weights) ==
        "weight `w`: tensor `g`: its 4 rows are no multiple of blocks of 3");
}

TEST_CASE("a rank binds its own entry of every table", "[runtime][bind]") {
  const TempDir dir;
  const auto weights = checkpoint(dir, {tensor("a", "F32", {4, 2}, counting(8, 0)),
                                        tensor("b", "F32", {4, 2}, counting(8, 100))});
  const std::string rows = weight_manifest(
      "f32", 2, 2, R"([{"tensor": "a", "rows": {"group": "tp", "ranges": [[0, 2], [2, 4]]}}])",
      "tp");
  const std::string names =
      weight_manifest("f32", 4, 2, R"([{"tensor": {"group": "tp", "tensors": ["a", "b"]}}])", "tp");
  for (const int rank : {0, 1}) {
    SilentPeers peers(rank, 2);
    runtime::Options with = options();
    with.peers["tp"] = &peers;
    CHECK(bound(rows, weights, 4, with) == counting(4, static_cast<float>(rank * 4)));
    CHECK(bound(names, weights, 8, with) == counting(8, static_cast<float>(rank * 100)));
  }
  CHECK(refusal(rows, options(), &weights) ==
        "group `tp` has 2 ranks, and no peers were given for it");
  SilentPeers three(0, 3);
  runtime::Options with = options();
  with.peers["tp"] = &three;
  CHECK(refusal(rows, with, &weights) == "group `tp` has 2 ranks, its peers are 3");
}

TEST_CASE("a series binds what its tensors bind one by one", "[runtime][bind]") {
  const TempDir dir;
  std::vector<NamedTensor> tensors;
  for (int i = 0; i < 12; ++i)
    tensors.push_back(tensor("e." + std::to_string(i) + ".w", "F32", {2, 2},
                             counting(4, static_cast<float>(10 * i))));
  const auto weights = checkpoint(dir, tensors);
  const auto with_series = [](std::string json) {
    return json.replace(json.find("[\"host\"]"), 8, "[\"host\", \"series\"]");
  };
  const std::string one_by_one = weight_manifest(
      "f32", 6, 2, R"([{"tensor": "e.9.w"}, {"tensor": "e.10.w"}, {"tensor": "e.11.w"}])");
  const std::string series = with_series(weight_manifest(
      "f32", 6, 2, R"([{"tensor": "e.{}.w", "series": {"first": 9, "count": 3}}])"));
  const std::vector<float> want = {90, 91, 92, 93, 100, 101, 102, 103, 110, 111, 112, 113};
  CHECK(bound(one_by_one, weights, 12) == want);
  CHECK(bound(series, weights, 12) == want);
  const std::string by_rank = with_series(weight_manifest("f32", 2, 2, R"([{"tensor": "e.{}.w",
      "rows": [1, 2], "series": {"first": {"group": "tp", "firsts": [1, 8]}, "count": 2}}])",
                                                          "tp"));
  for (const int rank : {0, 1}) {
    SilentPeers peers(rank, 2);
    runtime::Options with = options();
    with.peers["tp"] = &peers;
    const float first = rank == 0 ? 10 : 80;
    CHECK(bound(by_rank, weights, 4, with) ==
          std::vector<float>{first + 2, first + 3, first + 12, first + 13});
  }
  CHECK(refusal(with_series(weight_manifest(
                    "f32", 6, 2, R"([{"tensor": "e.{}.w", "series": {"first": 10, "count": 3}}])")),
                options(), &weights) ==
        "weight `w`: checkpoint `" + dir.path().string() + "` has no tensor `e.12.w`");
}

TEST_CASE("a whole tensor may be used where it is mapped", "[runtime][bind]") {
  const TempDir dir;
  const auto weights = checkpoint(dir, {tensor("a", "F32", {4, 4}, counting(16, 0))});
  runtime::Options with = options();
  with.weights_in_place = true;
  CHECK(bound(weight_manifest("f32", 4, 4, R"([{"tensor": "a"}])"), weights, 16, with) ==
        counting(16, 0));
  CHECK(bound(weight_manifest("f32", 2, 4, R"([{"tensor": "a", "rows": [1, 3]}])"), weights, 8,
              with) == counting(8, 4));
  CHECK(bound(weight_manifest("f32", 4, 2, R"([{"tensor": "a", "cols": [1, 3]}])"), weights, 8,
              with) == std::vector<float>{1, 2, 5, 6, 9, 10, 13, 14});
}

TEST_CASE("a bind that the checkpoint does not honour is refused by weight and tensor",
          "[runtime][bind]") {
  const TempDir dir;
  const auto weights = checkpoint(dir, {tensor("a", "F32", {4, 2}, counting(8, 0)),
                                        tensor("h", "BF16", {4, 2}, std::vector<uint16_t>(8))});
  const auto sentence = [&](const std::string& bind) {
    return refusal(weight_manifest("f32", 4, 2, bind), options(), &weights);
  };
  CHECK(sentence(R"([{"tensor": "a"}])").empty());
  CHECK(sentence(R"([{"tensor": "c"}])") ==
        "weight `w`: checkpoint `" + dir.path().string() + "` has no tensor `c`");
  CHECK(sentence(R"([{"tensor": "h"}])") ==
        "weight `w`: tensor `h` is BF16 in the checkpoint, expected F32");
  CHECK(sentence(R"([{"tensor": "a", "rows": [1, 5]}])") ==
        "weight `w`: tensor `a`: rows [1, 5) do not lie in its 4");
  CHECK(sentence(R"([{"tensor": "a", "cols": [1, 3]}])") ==
        "weight `w`: tensor `a`: columns [1, 3) do not lie in its 2");
  CHECK(sentence(R"([{"tensor": "a", "rows": [0, 3]}])") ==
        "weight `w`: its tensors hold 24 bytes, expected 32");
  CHECK(refusal(weight_manifest("f32", 4, 2, R"([{"tensor": "a"}])")) ==
        "weight `w` needs a checkpoint, none was given");
}

TEST_CASE("bytes on disk bind as the packed types", "[runtime][bind]") {
  const TempDir dir;
  const auto weights =
      checkpoint(dir, {tensor("q", "U8", {4, 2}, std::vector<uint8_t>{1, 2, 3, 4, 5, 6, 7, 8})});
  for (const char* dtype : {"u8", "fp8e4m3", "fp8e8m0"})
    CHECK(
        refusal(weight_manifest(dtype, 4, 2, R"([{"tensor": "q"}])"), options(), &weights).empty());
  CHECK(refusal(weight_manifest("i8", 4, 2, R"([{"tensor": "q"}])"), options(), &weights) ==
        "weight `w`: tensor `q` is U8 in the checkpoint, expected I8");
}

TEST_CASE("synthetic weights are of a trained tensor's magnitude, and follow the seed",
          "[runtime][bind]") {
  const auto values = [](int64_t rows, int64_t cols, uint64_t seed) {
    return get<float>(loaded_weight("f32", rows, cols, seed), static_cast<size_t>(rows * cols));
  };
  const auto matrix = values(600, 1024, 1);
  double sum = 0, squares = 0;
  for (const float value : matrix) {
    if (!std::isfinite(value)) FAIL(value);
    sum += value;
    squares += static_cast<double>(value) * value;
  }
  const auto count = static_cast<double>(matrix.size());
  CHECK(std::abs(sum / count) < 1e-3);
  CHECK(std::sqrt(squares / count) == Approx(1.0 / 32).epsilon(0.02));
  CHECK(values(600, 1024, 1) == matrix);
  CHECK(values(600, 1024, 2) != matrix);
  // 16 * 65537 bytes, then the same again; rows of 4 KiB stand elsewhere in it every time
  CHECK(std::equal(matrix.begin(), matrix.end() - 262148, matrix.begin() + 262148));
  CHECK(!std::equal(matrix.begin(), matrix.begin() + 1024, matrix.begin() + 262144));
}

TEST_CASE("synthetic bytes of the packed types are numbers", "[runtime][bind]") {
  const auto bytes = [](const char* dtype) {
    return get<uint8_t>(loaded_weight(dtype, 64, 1024, 5), 64 * 1024);
  };
  const auto distinct = [&](const char* dtype) {
    const auto all = bytes(dtype);
    return std::set<int>(all.begin(), all.end());
  };
  CHECK(distinct("fp8e8m0") == std::set<int>{120, 121, 122});
  for (const int value : distinct("fp8e4m3")) CHECK((value & 0x40) == 0);  // below two, no NaN
  CHECK(distinct("u8").size() == 256);
  CHECK(distinct("i32") == std::set<int>{0});
  for (const char* dtype : {"bf16", "f16"}) {
    const int exponent_shift = dtype[0] == 'b' ? 7 : 10, exponent_mask = dtype[0] == 'b' ? 255 : 31;
    const auto halves = get<uint16_t>(loaded_weight(dtype, 64, 1024, 5), 32 * 1024);
    for (const uint16_t half : halves)  // nothing near infinity, or NaN
      if ((half >> exponent_shift & exponent_mask) >= exponent_mask * 2 / 3) FAIL(half);
    CHECK(std::set<uint16_t>(halves.begin(), halves.end()).size() > 1000);
  }
}

// ---- programs that run at load ----

TEST_CASE("derive turns sources into carries call by call, and once programs follow",
          "[runtime][derive]") {
  const std::string json = R"({
    "schema_version": 7, "model": "derive", "uses": ["host"], "device": "host",
    "vars": {}, "states": {},
    "buffers": {
      "raw0": {"dtype": "u8", "shape": [4], "kind": "source", "bind": [{"tensor": "q",
        "rows": [0, 4]}]},
      "raw1": {"dtype": "u8", "shape": [4], "kind": "source", "bind": [{"tensor": "q",
        "rows": [4, 8]}]},
      "wide": {"dtype": "f32", "shape": [8], "kind": "carry"},
      "sum": {"dtype": "f32", "shape": [8], "kind": "carry"},
      "o": {"dtype": "f32", "shape": [8], "kind": "output"}},
    "modules": {"test": {"source": "test.so", "sha256": "@HASH@"}},
    "ops": {
      "widen": {"params": ["in buffer<u8>", "out buffer<f32>", "i32"], "impl": {"launches": [
        {"module": "test", "entry": "test_widen", "block": [1, 1, 1], "grid": [1, 1, 1]}]}},
      "add": {"params": ["in buffer<f32>", "in buffer<f32>", "out buffer<f32>", "i32"],
        "impl": {"launches": [
        {"module": "test", "entry": "test_add", "block": [1, 1, 1], "grid": [1, 1, 1]}]}}},
    "programs": {
      "prepare": {"derive": true, "calls": [
        {"op": "widen", "args": [{"buf": "raw0"}, {"buf": "wide"}, {"i32": 4}]},
        {"op": "widen", "args": [{"buf": "raw1"}, {"buf": "wide", "offset": 16}, {"i32": 4}]}]},
      "start": {"once": true, "calls": [{"op": "add", "args": [{"buf": "wide"}, {"buf": "wide"},
        {"buf": "sum"}, {"i32": 8}]}]},
      "main": {"calls": [{"op": "add", "args": [{"buf": "sum"}, {"buf": "wide"}, {"buf": "o"},
        {"i32": 8}]}]}}
  })";
  const TempDir dir;
  const auto weights =
      checkpoint(dir, {tensor("q", "U8", {8}, std::vector<uint8_t>{1, 2, 3, 4, 5, 6, 7, 8})});
  for (const bool in_place : {false, true}) {
    runtime::Options with = options();
    with.weights_in_place = in_place;
    const auto r = loaded(json, with, &weights);
    REQUIRE(r->run("main", std::vector<VarValue>{}));
    CHECK(get<float>(r->buffer("o"), 8) == std::vector<float>{3, 6, 9, 12, 15, 18, 21, 24});
    CHECK(r->run("start", std::vector<VarValue>{}).error().text() ==
          "program `start` runs at load only");
  }
}
