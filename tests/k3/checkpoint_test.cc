#include "checkpoint/checkpoint.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "kern/base/file.h"
#include "machine.h"
#include "tokenizer/k3_tokenizer.h"

using namespace k3_test;

namespace {

std::map<std::string, std::string> files_of(const std::filesystem::path& dir) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(dir)) {
    auto bytes = kern::read_file(entry.path(), size_t{1} << 30);
    REQUIRE(bytes.has_value());
    files[entry.path().filename().string()] = *bytes;
  }
  return files;
}

template <class T>
std::vector<T> values_of(const kern::safetensors::Catalog& catalog, const std::string& name) {
  const auto* tensor = catalog.find("language_model." + name);
  INFO(name);
  REQUIRE(tensor != nullptr);
  std::vector<T> values(tensor->bytes.size() / sizeof(T));
  std::memcpy(values.data(), tensor->bytes.data(), tensor->bytes.size());
  return values;
}

}  // namespace

TEST_CASE("the same seed writes the same files and another seed other weights",
          "[k3][checkpoint]") {
  const auto config =
      kern::read_file(std::string(KERN_SOURCE_DIR) + "/k3/configs/k3-nano.json", 1 << 20);
  REQUIRE(config.has_value());
  const auto root = checkpoint_of("k3-nano").path().parent_path() / "twice";
  for (const auto& [name, seed] : {std::pair{"a", 7}, {"b", 7}, {"c", 8}}) {
    const auto done = k3::write_checkpoint(*config, seed, {}, root / name);
    if (!done) FAIL(done.error().text());
  }
  const auto a = files_of(root / "a"), c = files_of(root / "c");
  CHECK(a == files_of(root / "b"));
  CHECK(a.at("config.json") == *config);
  CHECK(a.at("tiktoken.model") == c.at("tiktoken.model"));
  CHECK(a.at("model-00002-of-00018.safetensors") != c.at("model-00002-of-00018.safetensors"));
}

TEST_CASE("a checkpoint's tokenizer covers exactly its vocabulary", "[k3][checkpoint]") {
  const auto tokenizer = k3::load_tokenizer(checkpoint_of("k3-nano").path());
  if (!tokenizer) FAIL(tokenizer.error().text());
  const auto ids = tokenizer->encode("The quick brown fox, 123 times.");
  CHECK(!ids.empty());
  for (const auto id : ids) CHECK((id >= 0 && id < 1280 - k3::kSpecialSlots));
  CHECK(tokenizer->decode(ids, kern::text::Specials::keep) == "The quick brown fox, 123 times.");
}

TEST_CASE("stored gates are padded with zeros and range from slow to fast", "[k3][checkpoint]") {
  const auto& catalog = checkpoint_of("k3-nano");
  const auto a_log = values_of<float>(catalog, "model.layers.0.self_attn.A_log");
  REQUIRE(a_log.size() == 16);
  for (size_t h = 8; h < 16; ++h) CHECK(a_log[h] == 0);
  for (size_t h = 0; h < 8; ++h) CHECK(a_log[h] != 0);
  const auto dt_bias = values_of<float>(catalog, "model.layers.0.self_attn.dt_bias");
  double slow = 0, fast = 0;
  for (size_t d = 0; d < 32; ++d) slow += dt_bias[d] / 32, fast += dt_bias[7 * 32 + d] / 32;
  CHECK(slow < -4);
  CHECK(fast > 0.5);
}

TEST_CASE("router biases spread over the given range", "[k3][checkpoint]") {
  std::set<float> seen;
  for (int layer = 1; layer < 17; ++layer) {
    const auto bias = values_of<float>(
        checkpoint_of("k3-nano"),
        "model.layers." + std::to_string(layer) + ".block_sparse_moe.gate.e_score_correction_bias");
    seen.insert(bias.begin(), bias.end());
  }
  CHECK(*seen.begin() < -1.8F);
  CHECK(*seen.begin() >= -2);
  CHECK(*seen.rbegin() > 1.8F);
  CHECK(*seen.rbegin() <= 2);
}

TEST_CASE("a vocabulary that no tokenizer can be trained for is refused", "[k3][checkpoint]") {
  const auto config =
      kern::read_file(std::string(KERN_SOURCE_DIR) + "/k3/configs/k3.json", 1 << 20);
  REQUIRE(config.has_value());
  const auto dir = checkpoint_of("k3-nano").path().parent_path() / "full";
  const auto done = k3::write_checkpoint(*config, 1, {}, dir);
  REQUIRE(!done.has_value());
  CHECK(done.error().message ==
        "config: `vocab_size`: a trained tokenizer has 512 to 65792 tokens, got 163840");
}
