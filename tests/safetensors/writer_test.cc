#include "kern/safetensors/writer.h"

#include <catch2/catch.hpp>

#include "kern/base/prng.h"
#include "kern/safetensors/catalog.h"
#include "temp_dir.h"

using namespace kern;
using kern_test::TempDir;
using namespace kern::safetensors;

namespace {

std::vector<std::byte> pattern(size_t bytes, uint64_t seed) {
  Prng prng(seed);
  std::vector<std::byte> out(bytes);
  for (std::byte& b : out) b = static_cast<std::byte>(prng.next());
  return out;
}

const std::vector<TensorSpec> kSpecs = {
    {"z \"quoted\"\\\n", "U8", {5}},
    {"m.weight", "BF16", {3, 7}},
    {"scalar", "F32", {}},
    {"empty", "BF16", {0, 9}},
    {"b.scale", "F8_E8M0", {4, 2}, true},
    {"b.packed", "U8", {4, 32}},
};

void write_all(const std::filesystem::path& dir, const WriterOptions& options) {
  auto writer = Writer::create(dir, kSpecs, options);
  REQUIRE(writer);
  uint64_t seed = 1;
  for (const TensorSpec& spec : kSpecs) {
    const auto bytes = pattern(*bytes_of_tensor(spec.dtype, spec.shape), seed++);
    const size_t half = bytes.size() / 2;
    REQUIRE(writer->write(spec.name, ByteSpan(bytes).subspan(half), half));
    REQUIRE(writer->write(spec.name, ByteSpan(bytes).first(half)));
  }
  REQUIRE(writer->finish());
}

}  // namespace

TEST_CASE("what a writer puts in shards a catalog reads back", "[safetensors][writer]") {
  const TempDir dir;
  write_all(dir.path(), {});
  const auto catalog = Catalog::open(dir.path());
  REQUIRE(catalog);
  CHECK(catalog->shards().size() == 2);
  CHECK(catalog->tensors().size() == kSpecs.size());
  uint64_t seed = 1;
  for (const TensorSpec& spec : kSpecs) {
    const auto bytes = pattern(*bytes_of_tensor(spec.dtype, spec.shape), seed++);
    const Tensor* tensor = catalog->find(spec.name);
    REQUIRE(tensor != nullptr);
    CHECK(tensor->dtype == spec.dtype);
    CHECK(tensor->shape == spec.shape);
    CHECK(std::equal(bytes.begin(), bytes.end(), tensor->bytes.begin(), tensor->bytes.end()));
  }
  CHECK(reinterpret_cast<uintptr_t>(catalog->find("scalar")->bytes.data()) % 64 == 0);
}

TEST_CASE("the same tensors give the same files", "[safetensors][writer]") {
  const TempDir a, b;
  write_all(a.path(), {});
  write_all(b.path(), {});
  for (const char* name : {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                           "model.safetensors.index.json"}) {
    CHECK(!a.get(name).empty());
    CHECK(a.get(name) == b.get(name));
  }
}

TEST_CASE("a shard ends before it grows over its limit", "[safetensors][writer]") {
  const TempDir dir;
  write_all(dir.path(), {.shard_bytes_max = 46});
  const auto catalog = Catalog::open(dir.path());
  REQUIRE(catalog);
  CHECK(catalog->shards().size() == 4);
}

TEST_CASE("an unfinished checkpoint leaves no file behind", "[safetensors][writer]") {
  const TempDir dir;
  {
    auto writer = Writer::create(dir.path(), kSpecs);
    REQUIRE(writer);
    const auto end = writer->finish();
    REQUIRE_FALSE(end);
    CHECK(end.error().text() == "tensor `b.packed`: 0 bytes written, expected 128");
  }
  CHECK(std::filesystem::is_empty(dir.path()));
}

TEST_CASE("a writer refuses what it could not write", "[safetensors][writer]") {
  const TempDir dir;
  const auto refusal = [&](const std::vector<TensorSpec>& specs) {
    const auto writer = Writer::create(dir.path(), specs);
    return writer ? std::string() : writer.error().text();
  };
  CHECK(refusal({{"a", "U8", {1}}, {"a", "U8", {1}}}) ==
        "tensor `a`: its name is empty, reserved or used before");
  CHECK(refusal({{"a", "Q4", {1}}}) == "tensor `a`: `Q4` of shape [1] has no size in whole bytes");
  auto writer = Writer::create(dir.path(), kSpecs);
  REQUIRE(writer);
  const auto bytes = pattern(6, 1);
  CHECK(writer->write("z \"quoted\"\\\n", bytes).error().kind == Kind::caller);
  CHECK(writer->write("nothing", bytes).error().text() == "tensor `nothing` was not announced");
}
