#include "gen/config.h"

#include <catch2/catch.hpp>

#include "kern/base/file.h"
#include "machine.h"

using namespace k3_test;

namespace {

std::string nano() {
  auto text = kern::read_file(std::string(KERN_SOURCE_DIR) + "/k3/configs/k3-nano.json", 1 << 20);
  return text ? *text : "";
}

/// What is said about the nano config with one text replaced.
std::string refusal(const std::string& from, const std::string& to) {
  std::string text = nano();
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  text.replace(at, from.size(), to);
  const auto config = k3::read_config(text);
  return config ? "accepted" : config.error().message;
}

}  // namespace

TEST_CASE("the first layers of a model are a model", "[k3][config]") {
  k3::Config config = config_of("k3");
  REQUIRE(k3::keep_layers(config, 4));
  CHECK(config.layers == 4);
  CHECK(config.is_mla == std::vector<bool>{false, false, false, true});
  CHECK(config.dense_layers == 1);
  CHECK(config.experts == 896);
  CHECK(k3::check_config(config));
  CHECK(!k3::keep_layers(config, 5));
  CHECK(!k3::keep_layers(config, 0));
}

TEST_CASE("layer lists count from one and the last two attend over pages", "[k3][config]") {
  const k3::Config config = config_of("k3");
  for (int64_t layer = 0; layer < 93; ++layer)
    CHECK(config.is_mla[layer] == (layer % 4 == 3 || layer == 92));
  CHECK(config.a_log_stored() == 128);
  CHECK(config.shared_inter == 6144);
  CHECK(config.latent_eps == 1e-6);
  CHECK(config.bank_before(0) == 0);
  CHECK(config.bank_before(12) == 1);
  CHECK(config.bank_before(13) == 2);
  CHECK(config.bank_after(0) == 1);
  CHECK(config.bank_after(92) == 8);
}

TEST_CASE("a flat config reads as the nested one does", "[k3][config]") {
  const std::string text = nano();
  const size_t from = text.find("\"text_config\": ") + 15;
  const auto flat = k3::read_config(text.substr(from, text.rfind('}') - from));
  REQUIRE(flat.has_value());
  CHECK(flat->hidden == 128);
  CHECK(flat->is_mla == config_of("k3-nano").is_mla);
  CHECK(flat->eos == 1026);
}

TEST_CASE("a config that would be computed wrongly is refused with the field's name",
          "[k3][config]") {
  CHECK(refusal("\"hidden_size\": 128", "\"hidden_size\": \"wide\"") ==
        "config: `hidden_size`: expected an integer, got \"wide\"");
  CHECK(refusal("\"hidden_size\": 128,", "") == "config: `hidden_size` is missing");
  CHECK(refusal("\"hidden_act\": \"situ\"", "\"hidden_act\": \"silu\"") ==
        "config: `hidden_act`: expected situ, got silu");
  CHECK(refusal("\"latent_moe_use_norm\": true", "\"latent_moe_use_norm\": false") ==
        "config: `latent_moe_use_norm`: expected true, got false");
  CHECK(refusal("\"num_expert_group\": 1", "\"num_expert_group\": 8") ==
        "config: `num_expert_group`: expected 1, got 8");
  CHECK(refusal("4, 8, 12, 16, 17", "0, 8, 12, 16, 17") ==
        "config: `linear_attn_config.full_attn_layers`: expected layers 1 to 17, got 0");
  CHECK(refusal("4, 8, 12, 16, 17", "4, 8, 12, 16") ==
        "config: layer 17 is in neither linear_attn_config.full_attn_layers nor "
        "linear_attn_config.kda_layers");
  CHECK(refusal("4, 8, 12, 16, 17", "4, 8, 12, 13, 16, 17") ==
        "config: `linear_attn_config.kda_layers`: layer 13 is named twice");
  CHECK(refusal("\"num_experts_per_token\": 4", "\"num_experts_per_token\": 17") ==
        "config: `num_experts_per_token`: expected at most 16, got 17");
  CHECK(refusal("\"routed_expert_hidden_size\": 64", "\"routed_expert_hidden_size\": 60") ==
        "config: `routed_expert_hidden_size`: expected a multiple of 32, got 60");
  CHECK(refusal("{", "[").starts_with("config: not JSON"));
}
