#pragma once
/// The model's config.json, read and checked: every size and number that the generator and the
/// checkpoint writer need, under the names this project uses.
/// Thread safety: plain values.
/// Does not: accept a variant it would compute wrongly; what differs from the model is refused.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kern/base/result.h"

namespace k3 {

struct Config {
  int64_t hidden = 0, layers = 0, vocab = 0, context_max = 0;
  double eps = 0;         ///< every RMS norm but the two latent ones
  double latent_eps = 0;  ///< q_a_layernorm and kv_a_layernorm
  double situ_beta = 0, situ_linear_beta = 0;
  int64_t residual_block = 0;  ///< layers between two pushes to the bank

  // MLA
  int64_t heads = 0, q_lora = 0, kv_lora = 0, nope = 0, rope = 0, v_dim = 0;
  // KDA
  int64_t kda_heads = 0, kda_dim = 0, taps = 0;
  double gate_lower_bound = 0;
  std::vector<bool> is_mla;  ///< by zero-based layer

  // MLP
  int64_t dense_layers = 0, dense_inter = 0;
  int64_t experts = 0, top_k = 0, shared_inter = 0, expert_inter = 0, latent = 0;
  bool renormalize = true;
  double routed_scaling = 1;

  int64_t bos = 0, eos = 0, pad = 0;
  std::string sha256;  ///< of the file's bytes, lower-case hex

  bool is_dense(int64_t layer) const { return layer < dense_layers; }
  bool is_push(int64_t layer) const { return layer % residual_block == 0; }
  /// Bank rows that exist before layer `layer` pushes.
  int64_t bank_before(int64_t layer) const { return (layer + residual_block - 1) / residual_block; }
  /// Bank rows that the MLP of `layer` sees.
  int64_t bank_after(int64_t layer) const { return layer / residual_block + 1; }
  int64_t kda_inner() const { return kda_heads * kda_dim; }
  int64_t kv_width() const { return kv_lora + rope; }
  /// Length of the stored A_log: the next power of two above the heads; what follows them is zero.
  int64_t a_log_stored() const;
};

/// Reads config.json, with the text model nested in `text_config` or flat. Kind caller: names the
/// field, what was expected and what was got.
kern::Result<Config> read_config(std::string_view json);

/// The model without the layers behind the first `layers`. Kind caller when it has no so many.
kern::Result<void> keep_layers(Config& config, int64_t layers);

/// Checks that sizes agree with each other.
kern::Result<void> check_config(const Config& config);

}  // namespace k3
