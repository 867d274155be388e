#include <catch2/catch.hpp>

#include "kern/safetensors/catalog.h"
#include "temp_dir.h"

using namespace kern;
using kern_test::shard_of;
using kern_test::TempDir;
using safetensors::Catalog;
using safetensors::Shard;

namespace {

/// What Shard::open says of these bytes, without the file's name in front.
std::string refusal(const std::string& bytes) {
  const TempDir dir;
  const auto path = dir.put("s.safetensors", bytes);
  const auto shard = Shard::open(path);
  if (shard) return "accepted";
  if (shard.error().kind != Kind::weight_artifact) return "of another kind";
  const std::string text = shard.error().text();
  const std::string prefix = "`" + path.string() + "`: ";
  return text.starts_with(prefix) ? text.substr(prefix.size()) : "without the file: " + text;
}

std::string refusal(const std::string& json, size_t data_bytes) {
  return refusal(shard_of(json, data_bytes));
}

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

const std::string kGood =
    R"({"a":)" + entry("F32", "[2,2]", "[0,16]") + R"(,"b":)" + entry("U8", "[4]", "[16,20]") + "}";

}  // namespace

TEST_CASE("a well-formed shard is accepted and its tensors lie in the order of their bytes",
          "[safetensors]") {
  const TempDir dir;
  const std::string json = R"({"__metadata__":{"x":"y"},"b":)" + entry("U8", "[4]", "[16,20]") +
                           R"(,"a":)" + entry("F32", "[2,2]", "[0,16]") + R"(,"s":)" +
                           entry("I8", "[]", "[20,21]") + R"(,"e":)" +
                           entry("BF16", "[0,3]", "[21,21]") + "}   ";
  const auto shard = Shard::open(dir.put("s.safetensors", shard_of(json, 21)));
  REQUIRE(shard);
  REQUIRE(shard->tensors().size() == 4);
  CHECK(shard->tensors()[0].name == "a");
  CHECK(shard->tensors()[1].name == "b");
  CHECK(shard->tensors()[1].bytes[0] == std::byte{16});
  CHECK(shard->tensors()[2].shape.empty());
  CHECK(shard->tensors()[3].bytes.empty());
}

TEST_CASE("a header longer than the file is refused", "[safetensors][hostile]") {
  std::string bytes = shard_of(kGood, 20);
  bytes[3] = 1;
  CHECK(refusal(bytes).find("the header says 16777") == 0);
  bytes[7] = char(0xFF);
  CHECK(refusal(bytes).find("bytes, but only") != std::string::npos);
  CHECK(refusal("1234567") == "the file has 7 bytes, expected at least 8 for its header length");
  CHECK(refusal(std::string()) ==
        "the file has 0 bytes, expected at least 8 for its header length");
}

TEST_CASE("a truncated shard is refused by the tensor that is cut", "[safetensors][hostile]") {
  CHECK(refusal(kGood, 20) == "accepted");
  CHECK(refusal(kGood, 19) ==
        "tensor `b`: ends at byte 20, but the file holds 19 bytes of data (truncated?)");
  CHECK(refusal(kGood, 21) == "1 bytes of data follow the last tensor `b`");
  for (size_t n = 0; n < shard_of(kGood, 20).size(); ++n) {
    INFO(n);
    CHECK(refusal(shard_of(kGood, 20).substr(0, n)) != "accepted");
  }
}

TEST_CASE("overlapping, gapped and backward offsets are refused", "[safetensors][hostile]") {
  const auto two = [](const std::string& a, const std::string& b) {
    return R"({"a":)" + entry("U8", "[4]", a) + R"(,"b":)" + entry("U8", "[4]", b) + "}";
  };
  CHECK(refusal(two("[0,4]", "[2,6]"), 6) ==
        "tensor `b`: begins at byte 2, expected at 4 where tensor `a` ends (they overlap)");
  CHECK(refusal(two("[0,4]", "[0,4]"), 4) ==
        "tensor `b`: begins at byte 0, expected at 4 where tensor `a` ends (they overlap)");
  CHECK(refusal(two("[0,4]", "[5,9]"), 9) ==
        "tensor `b`: begins at byte 5, expected at 4 where tensor `a` ends (a gap)");
  CHECK(refusal(two("[1,5]", "[5,9]"), 9) == "tensor `a`: begins at byte 1, expected at 0 (a gap)");
  CHECK(refusal(two("[4,0]", "[4,8]"), 8) == "tensor `a`: data_offsets [4, 0] run backwards");
  CHECK(refusal(two("[0,18446744073709551615]", "[4,8]"), 8).find("tensor `a`: ends at byte") == 0);
}

TEST_CASE("a size that is not what dtype and shape give is refused", "[safetensors][hostile]") {
  CHECK(refusal(R"({"a":)" + entry("F32", "[3]", "[0,8]") + "}", 8) ==
        "tensor `a`: F32 of shape [3] takes 12 bytes, got 8");
  CHECK(refusal(R"({"a":)" + entry("F33", "[2]", "[0,8]") + "}", 8) ==
        "tensor `a`: unknown dtype `F33`");
  CHECK(refusal(R"({"a":)" + entry("F4", "[3]", "[0,1]") + "}", 1)
            .find("tensor `a`: F4 of shape [3] "
                  "has no size") == 0);
}

TEST_CASE("a shape whose product overflows is refused", "[safetensors][hostile]") {
  const std::string huge = "[4294967296,4294967296,4294967296]";
  CHECK(
      refusal(R"({"a":)" + entry("F32", huge, "[0,0]") + "}", 0).find("tensor `a`: F32 of shape") ==
      0);
  CHECK(refusal(R"({"a":)" + entry("F32", "[9223372036854775807,2]", "[0,8]") + "}", 8)
            .find("tensor `a`") == 0);
  CHECK(refusal(R"({"a":)" + entry("F32", "[-1]", "[0,8]") + "}", 8)
            .find("tensor `a`: `shape` holds "
                  "`-1`") == 0);
  CHECK(refusal(R"({"a":)" + entry("F32", "[2.0]", "[0,8]") + "}", 8).find("tensor `a`: `shape`") ==
        0);
  CHECK(refusal(R"({"a":)" + entry("F32", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "[0,4]") + "}",
                4) == "tensor `a`: `shape` has more than 16 extents");
}

TEST_CASE("duplicate names and keys are refused", "[safetensors][hostile]") {
  CHECK(refusal(R"({"a":)" + entry("U8", "[4]", "[0,4]") + R"(,"a":)" +
                    entry("U8", "[4]", "[4,8]") + "}",
                8) == "tensor `a` stands twice in the header");
  CHECK(refusal(R"({"a":{"dtype":"U8","dtype":"I8","shape":[4],"data_offsets":[0,4]}})", 4) ==
        "tensor `a`: the key `dtype` stands twice");
  CHECK(refusal(R"({"\u0061":)" + entry("U8", "[4]", "[0,4]") + R"(,"a":)" +
                    entry("U8", "[4]", "[4,8]") + "}",
                8) == "tensor `a` stands twice in the header");
}

TEST_CASE("missing, unknown and ill-typed keys are refused", "[safetensors][hostile]") {
  CHECK(refusal(R"({"a":{"dtype":"U8","shape":[4]}})", 4) ==
        "tensor `a`: the key `data_offsets` is missing");
  CHECK(refusal(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"x":1}})", 4) ==
        "tensor `a`: unknown key `x`, expected dtype, shape and data_offsets");
  CHECK(refusal(R"({"a":{"dtype":7,"shape":[4],"data_offsets":[0,4]}})", 4) ==
        "tensor `a`: `dtype` is not a string");
  CHECK(refusal(R"({"a":[]})", 0) == "tensor `a`: its entry is not a JSON object");
  CHECK(refusal(R"({"a":)" + entry("U8", "4", "[0,4]") + "}", 4) ==
        "tensor `a`: `shape` is not an array");
  for (const char* offsets : {"[0]", "[0,4,8]", "[0,-4]", "[0,4.5]", "7", "[\"0\",\"4\"]"}) {
    INFO(offsets);
    CHECK(refusal(R"({"a":)" + entry("U8", "[4]", offsets) + "}", 4)
              .find("tensor `a`: `data_offsets` "
                    "is `") == 0);
  }
  CHECK(refusal(R"({"__metadata__":{"x":1}})", 0) ==
        "`__metadata__`: the value of `x` is not a string");
  CHECK(refusal(R"({"__metadata__":[]})", 0) == "`__metadata__` is not a JSON object");
}

TEST_CASE("a header that is not JSON, not UTF-8 or too deep is refused", "[safetensors][hostile]") {
  CHECK(refusal("{\"a\xFF\":1}", 0) == "the header is not valid UTF-8");
  CHECK(refusal("{\"a\":", 0).find("the header is not JSON") == 0);
  CHECK(refusal("", 0).find("the header is not JSON") == 0);
  CHECK(refusal("[]", 0) == "the header is not a JSON object");
  CHECK(refusal("{} {}", 0).find("the header is not JSON") == 0);
  CHECK(refusal("{\"a\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}", 0) ==
        "the header nests deeper than 8 levels");
  CHECK(refusal("{\"a\":99999999999999999999999}", 0).find("the header is not JSON") == 0);
}

TEST_CASE("every single flipped header bit is refused or leaves views inside the file",
          "[safetensors][hostile]") {
  const TempDir dir;
  const std::string good = shard_of(kGood, 20);
  for (size_t bit = 0; bit < (good.size() - 20) * 8; ++bit) {
    std::string bytes = good;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
    const auto shard = Shard::open(dir.put("s.safetensors", bytes));
    if (!shard) continue;
    size_t held = 0;
    for (const auto& tensor : shard->tensors()) held += tensor.bytes.size();
    INFO(bit);
    CHECK(held == 20);
  }
}

TEST_CASE("an index that names what is not there is refused", "[safetensors][hostile]") {
  const TempDir dir;
  dir.put("one.safetensors", shard_of(kGood, 20));
  const auto open = [&](const std::string& map) {
    dir.put("model.safetensors.index.json", R"({"metadata":{},"weight_map":)" + map + "}");
    const auto catalog = Catalog::open(dir.path());
    if (!catalog && catalog.error().kind != Kind::weight_artifact) return std::string("other kind");
    return catalog ? std::string("accepted") : catalog.error().text();
  };
  const std::string index = "`" + (dir / "model.safetensors.index.json").string() + "`: ";
  CHECK(open(R"({"a":"one.safetensors"})") == "accepted");
  CHECK(open(R"({"a":"two.safetensors"})") ==
        index + "shard `two.safetensors` of tensor `a` is missing");
  CHECK(open(R"({"c":"one.safetensors"})") ==
        index + "tensor `c` is not in its shard `one.safetensors`");
  CHECK(open(R"({"a":"one.safetensors","a":"one.safetensors"})") ==
        index + "tensor `a` stands twice in the index");
  CHECK(open(R"({"a":"../one.safetensors"})") ==
        index + "tensor `a`: its shard `../one.safetensors` is not a file name of the same folder");
  CHECK(open(R"({"a":7})") == index + "tensor `a`: its shard is not a string");
  CHECK(open("[]") == index + "the index has no object `weight_map`");
  dir.put("one.safetensors", shard_of(kGood, 12));
  CHECK(open(R"({"a":"one.safetensors"})").find("one.safetensors`: tensor `a`: ends at byte 16") !=
        std::string::npos);
}
