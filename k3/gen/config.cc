#include "gen/config.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "gen/config_json.h"
#include "kern/base/sha256.h"

namespace k3 {

using namespace kern;

namespace {

constexpr int64_t kSizeMax = int64_t{1} << 24;  // of any one extent
constexpr int64_t kLayersMax = 4096;
constexpr int64_t kContextMax = int64_t{1} << 30;  // tokens
constexpr int64_t kBankMax = 32;                   // bank rows that a mix takes
constexpr int64_t kMxGroup = 32;                   // elements that share a scale

Result<void> read_sizes(const ConfigJson& json, Config& config) {
  const std::pair<const char*, int64_t*> fields[] = {
      {"hidden_size", &config.hidden},
      {"num_hidden_layers", &config.layers},
      {"vocab_size", &config.vocab},
      {"attn_res_block_size", &config.residual_block},
      {"num_attention_heads", &config.heads},
      {"q_lora_rank", &config.q_lora},
      {"kv_lora_rank", &config.kv_lora},
      {"qk_nope_head_dim", &config.nope},
      {"qk_rope_head_dim", &config.rope},
      {"v_head_dim", &config.v_dim},
      {"linear_attn_config.num_heads", &config.kda_heads},
      {"linear_attn_config.head_dim", &config.kda_dim},
      {"linear_attn_config.short_conv_kernel_size", &config.taps},
      {"intermediate_size", &config.dense_inter},
      {"num_experts", &config.experts},
      {"num_experts_per_token", &config.top_k},
      {"moe_intermediate_size", &config.expert_inter},
      {"routed_expert_hidden_size", &config.latent},
  };
  for (const auto& [name, value] : fields) {
    KERN_TRY(read, json.integer(name));
    if (read < 1 || read > kSizeMax)
      return fail(Kind::caller, "config: `{}`: expected 1 to {}, got {}", name, kSizeMax, read);
    *value = read;
  }
  KERN_TRY(context, json.integer("max_position_embeddings"));
  config.context_max = context;
  KERN_TRY(dense, json.integer("first_k_dense_replace"));
  config.dense_layers = dense;
  KERN_TRY(shared, json.integer("num_shared_experts"));
  config.shared_inter = shared * config.expert_inter;
  return {};
}

Result<void> read_numbers(const ConfigJson& json, Config& config) {
  const std::pair<const char*, double*> fields[] = {
      {"rms_norm_eps", &config.eps},
      {"activation_situ_beta", &config.situ_beta},
      {"activation_situ_linear_beta", &config.situ_linear_beta},
      {"linear_attn_config.gate_lower_bound", &config.gate_lower_bound},
      {"routed_scaling_factor", &config.routed_scaling},
  };
  for (const auto& [name, value] : fields) {
    KERN_TRY(read, json.number(name));
    *value = read;
  }
  config.latent_eps = 1e-6;
  if (json.has("latent_norm_eps")) {
    KERN_TRY(read, json.number("latent_norm_eps"));
    config.latent_eps = read;
  }
  KERN_TRY(renormalize, json.boolean("moe_renormalize"));
  config.renormalize = renormalize;
  const std::pair<const char*, int64_t*> ids[] = {
      {"bos_token_id", &config.bos}, {"eos_token_id", &config.eos}, {"pad_token_id", &config.pad}};
  for (const auto& [name, value] : ids) {
    KERN_TRY(read, json.integer(name));
    *value = read;
  }
  return {};
}

/// Fields that have one value in this model; another value would be another computation.
Result<void> check_fixed(const ConfigJson& json) {
  for (const char* name : {"mla_use_nope", "mla_use_output_gate", "latent_moe_use_norm",
                           "linear_attn_config.use_full_rank_gate"}) {
    KERN_TRY(read, json.boolean(name));
    if (!read) return fail(Kind::caller, "config: `{}`: expected true, got false", name);
  }
  const std::pair<const char*, const char*> words[] = {{"hidden_act", "situ"},
                                                       {"moe_router_activation_func", "sigmoid"}};
  for (const auto& [name, expected] : words) {
    KERN_TRY(read, json.text(name));
    if (read != expected)
      return fail(Kind::caller, "config: `{}`: expected {}, got {}", name, expected, read);
  }
  for (const char* name : {"num_expert_group", "topk_group", "moe_layer_freq"}) {
    KERN_TRY(read, json.integer(name));
    if (read != 1) return fail(Kind::caller, "config: `{}`: expected 1, got {}", name, read);
  }
  KERN_TRY(tied, json.boolean("tie_word_embeddings"));
  if (tied) return fail(Kind::caller, "config: `tie_word_embeddings`: expected false, got true");
  return {};
}

/// The two lists are one-based and together name every layer once.
Result<void> read_layers(const ConfigJson& json, Config& config) {
  if (config.layers > kLayersMax)
    return fail(Kind::caller, "config: `num_hidden_layers`: expected at most {}, got {}",
                kLayersMax, config.layers);
  std::vector<int> seen(config.layers, 0);
  config.is_mla.assign(config.layers, false);
  for (const bool mla : {true, false}) {
    const char* name =
        mla ? "linear_attn_config.full_attn_layers" : "linear_attn_config.kda_layers";
    KERN_TRY(list, json.integers(name));
    for (const int64_t layer : list) {
      if (layer < 1 || layer > config.layers)
        return fail(Kind::caller, "config: `{}`: expected layers 1 to {}, got {}", name,
                    config.layers, layer);
      if (seen[layer - 1]++ != 0)
        return fail(Kind::caller, "config: `{}`: layer {} is named twice", name, layer);
      config.is_mla[layer - 1] = mla;
    }
  }
  for (int64_t layer = 0; layer < config.layers; ++layer)
    if (seen[layer] == 0)
      return fail(Kind::caller,
                  "config: layer {} is in neither linear_attn_config.full_attn_layers nor "
                  "linear_attn_config.kda_layers",
                  layer + 1);
  return {};
}

}  // namespace

int64_t Config::a_log_stored() const {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(kda_heads) + 1));
}

Result<void> check_config(const Config& config) {
  const std::pair<const char*, int64_t> grouped[] = {
      {"routed_expert_hidden_size", config.latent}, {"moe_intermediate_size", config.expert_inter}};
  for (const auto& [name, value] : grouped)
    if (value % kMxGroup != 0)
      return fail(Kind::caller, "config: `{}`: expected a multiple of {}, got {}", name, kMxGroup,
                  value);
  if (config.top_k > config.experts)
    return fail(Kind::caller, "config: `num_experts_per_token`: expected at most {}, got {}",
                config.experts, config.top_k);
  if (config.top_k > 64)
    return fail(Kind::caller, "config: `num_experts_per_token`: expected at most 64, got {}",
                config.top_k);
  if (config.taps < 2 || config.taps > 16)
    return fail(Kind::caller,
                "config: `linear_attn_config.short_conv_kernel_size`: expected 2 to 16, got {}",
                config.taps);
  if (config.kda_dim % 2 != 0)  // a line's windows then end on a word, where the next line begins
    return fail(Kind::caller,
                "config: `linear_attn_config.head_dim`: expected an even number, got {}",
                config.kda_dim);
  if (config.dense_layers < 0 || config.dense_layers > config.layers)
    return fail(Kind::caller, "config: `first_k_dense_replace`: expected 0 to {}, got {}",
                config.layers, config.dense_layers);
  if (config.shared_inter < 1)
    return fail(Kind::caller, "config: `num_shared_experts`: expected at least 1, got {}",
                config.shared_inter / config.expert_inter);
  if (config.context_max < 1 || config.context_max > kContextMax)
    return fail(Kind::caller, "config: `max_position_embeddings`: expected 1 to {}, got {}",
                kContextMax, config.context_max);
  if (config.kv_lora > 800)
    return fail(Kind::caller, "config: `kv_lora_rank`: expected at most 800, got {}",
                config.kv_lora);
  if (config.bank_after(config.layers - 1) > kBankMax)
    return fail(Kind::caller, "config: `attn_res_block_size`: {} layers push {} rows, at most {}",
                config.layers, config.bank_after(config.layers - 1), kBankMax);
  if (config.eos < 0 || config.eos >= config.vocab)
    return fail(Kind::caller, "config: `eos_token_id`: expected 0 to {}, got {}", config.vocab - 1,
                config.eos);
  return {};
}

Result<void> keep_layers(Config& config, int64_t layers) {
  if (layers < 1 || layers > config.layers)
    return fail(Kind::caller, "expected 1 to {}, got {}", config.layers, layers);
  config.layers = layers;
  config.dense_layers = std::min(config.dense_layers, layers);
  config.is_mla.resize(static_cast<size_t>(layers));
  return {};
}

Result<Config> read_config(std::string_view json) {
  KERN_TRY(fields, ConfigJson::parse(json));
  Config config;
  config.sha256 = to_hex(sha256(as_bytes(json)));
  KERN_TRY_VOID(check_fixed(fields));
  KERN_TRY_VOID(read_sizes(fields, config));
  KERN_TRY_VOID(read_numbers(fields, config));
  KERN_TRY_VOID(read_layers(fields, config));
  KERN_TRY_VOID(check_config(config));
  return config;
}

}  // namespace k3
