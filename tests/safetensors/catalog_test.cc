#include "kern/safetensors/catalog.h"

#include <catch2/catch.hpp>

#include "temp_dir.h"

using namespace kern;
using kern_test::shard_of;
using kern_test::TempDir;
using safetensors::Catalog;

namespace {
const std::string kOne = R"({"b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})";
const std::string kTwo = R"({"a":{"dtype":"BF16","shape":[2,1],"data_offsets":[0,4]}})";
}  // namespace

TEST_CASE("a catalog lists the tensors of every shard by name", "[safetensors][catalog]") {
  const TempDir dir;
  dir.put("x.safetensors", shard_of(kOne, 4));
  dir.put("y.safetensors", shard_of(kTwo, 4));
  dir.put(
      "model.safetensors.index.json",
      R"({"metadata":{"total_size":8},"weight_map":{"b":"x.safetensors","a":"y.safetensors"}})");
  const auto catalog = Catalog::open(dir.path());
  REQUIRE(catalog);
  REQUIRE(catalog->tensors().size() == 2);
  CHECK(catalog->tensors()[0]->name == "a");
  CHECK(catalog->tensors()[0]->dtype == "BF16");
  CHECK(catalog->tensors()[0]->shape == std::vector<int64_t>{2, 1});
  CHECK(catalog->find("b")->bytes[3] == std::byte{3});
  CHECK(catalog->find("c") == nullptr);
  const auto missing = catalog->get("c");
  REQUIRE_FALSE(missing);
  CHECK(missing.error().text() == "checkpoint `" + dir.path().string() + "` has no tensor `c`");
}

TEST_CASE("one file without an index is a checkpoint, by folder or by path",
          "[safetensors][catalog]") {
  const TempDir dir;
  dir.put("model.safetensors", shard_of(kOne, 4));
  CHECK(Catalog::open(dir.path()));
  CHECK(Catalog::open(dir / "model.safetensors"));
}

TEST_CASE("a folder without a checkpoint is refused by a sentence", "[safetensors][catalog]") {
  const TempDir dir;
  const auto catalog = Catalog::open(dir.path());
  REQUIRE_FALSE(catalog);
  CHECK(catalog.error().text() == "`" + dir.path().string() +
                                      "` holds neither `model.safetensors.index.json` nor "
                                      "`model.safetensors`");
  CHECK(Catalog::open(dir / "nowhere").error().kind == Kind::io);
}

TEST_CASE("views survive the move of their catalog", "[safetensors][catalog]") {
  const TempDir dir;
  dir.put("model.safetensors", shard_of(kOne, 4));
  auto first = Catalog::open(dir.path());
  REQUIRE(first);
  const auto* tensor = first->find("b");
  const Catalog second = std::move(*first);
  CHECK(second.find("b") == tensor);
  CHECK(tensor->bytes[2] == std::byte{2});
}
