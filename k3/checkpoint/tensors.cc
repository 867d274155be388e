#include "checkpoint/tensors.h"

#include <cmath>

#include "gen/names.h"

namespace k3 {

namespace {

using How = Filling::How;

/// Collects plans under one layer's prefix.
class Plans {
 public:
  Plans(const Config& config, const Shape& shape) : c_(config), s_(shape) {}

  void layer(int64_t l);
  void globals();
  std::vector<TensorPlan> take() { return std::move(plans_); }

 private:
  void add(std::string name, const char* dtype, std::vector<int64_t> shape, Filling filling) {
    plans_.push_back({std::move(name), dtype, std::move(shape), filling, fresh_shard_});
    fresh_shard_ = false;
  }
  void in_layer(const std::string& name, const char* dtype, std::vector<int64_t> shape,
                Filling filling) {
    add(layer_tensor(l_, name), dtype, std::move(shape), filling);
  }
  /// [out, in] with unit-variance inputs in mind: outputs have deviation `gain`.
  void linear(const std::string& name, int64_t out, int64_t in, double gain = 1) {
    in_layer(name + ".weight", "BF16", {out, in},
             {How::normal, 0, gain / std::sqrt(static_cast<double>(in))});
  }
  void norm(const std::string& name, int64_t width, const char* dtype = "BF16") {
    in_layer(name + ".weight", dtype, {width}, {How::normal, 1, 0.1});
  }
  void residual_query(const std::string& name) {
    norm(name + "_norm", c_.hidden);
    linear(name + "_proj", 1, c_.hidden, s_.residual_query);
  }
  void kda();
  void mla();
  void mlp(const std::string& name, int64_t inter) {
    linear(name + ".gate_proj", inter, c_.hidden);
    linear(name + ".up_proj", inter, c_.hidden);
    linear(name + ".down_proj", c_.hidden, inter, s_.output_gain);
  }
  void moe();
  void expert_matrix(int64_t expert, const char* matrix, int64_t out, int64_t in, double gain);

  const Config& c_;
  const Shape& s_;
  std::vector<TensorPlan> plans_;
  int64_t l_ = 0;
  bool fresh_shard_ = false;
};

void Plans::kda() {
  const int64_t inner = c_.kda_inner();
  for (const char* name : {"q", "k", "v", "g"})
    linear(fmt::format("self_attn.{}_proj", name), inner, c_.hidden);
  for (const char* name : {"q", "k", "v"})
    in_layer(fmt::format("self_attn.{}_conv1d.weight", name), "F32", {inner, 1, c_.taps},
             {How::taps, 0.8, 0.2});
  linear("self_attn.f_a_proj", c_.kda_dim, c_.hidden);
  linear("self_attn.f_b_proj", inner, c_.kda_dim, 0.5);
  linear("self_attn.b_proj", c_.kda_heads, c_.hidden);
  in_layer("self_attn.A_log", "F32", {c_.a_log_stored()}, {How::decay, 0.2, 0.5, c_.kda_heads});
  in_layer("self_attn.dt_bias", "F32", {inner}, {How::step_bias, 0, 0.5, c_.kda_heads});
  norm("self_attn.o_norm", c_.kda_dim, "F32");
  linear("self_attn.o_proj", c_.hidden, inner, s_.output_gain);
}

void Plans::mla() {
  linear("self_attn.q_a_proj", c_.q_lora, c_.hidden);
  norm("self_attn.q_a_layernorm", c_.q_lora);
  linear("self_attn.q_b_proj", c_.heads * (c_.nope + c_.rope), c_.q_lora);
  linear("self_attn.kv_a_proj_with_mqa", c_.kv_width(), c_.hidden);
  norm("self_attn.kv_a_layernorm", c_.kv_lora);
  linear("self_attn.kv_b_proj", c_.heads * (c_.nope + c_.v_dim), c_.kv_lora);
  linear("self_attn.g_proj", c_.heads * c_.v_dim, c_.hidden);
  linear("self_attn.o_proj", c_.hidden, c_.heads * c_.v_dim, s_.output_gain);
}

/// Nibbles have deviation 2, so a scale of 2^e stands for weights of deviation 2^(e + 1).
void Plans::expert_matrix(int64_t expert, const char* matrix, int64_t out, int64_t in,
                          double gain) {
  const double exponent = std::round(std::log2(gain / std::sqrt(static_cast<double>(in)) / 2));
  add(expert_tensor(l_, expert, matrix, "weight_packed"), "U8", {out, in / 2},
      {How::nibbles, 0, 2});
  add(expert_tensor(l_, expert, matrix, "weight_scale"), "U8", {out, in / 32},
      {How::exponents, exponent, 0});
}

void Plans::moe() {
  const std::string moe = "block_sparse_moe.";
  linear(moe + "gate", c_.experts, c_.hidden, s_.router_gain);
  in_layer(moe + "gate.e_score_correction_bias", "F32", {c_.experts},
           {How::uniform, 0, s_.router_bias_spread});
  linear(moe + "routed_expert_down_proj", c_.latent, c_.hidden);
  norm(moe + "routed_expert_norm", c_.latent);
  linear(moe + "routed_expert_up_proj", c_.hidden, c_.latent, s_.output_gain);
  mlp(moe + "shared_experts", c_.shared_inter);
  for (int64_t expert = 0; expert < c_.experts; ++expert) {
    expert_matrix(expert, "w1", c_.expert_inter, c_.latent, 1);
    expert_matrix(expert, "w3", c_.expert_inter, c_.latent, 1);
    expert_matrix(expert, "w2", c_.latent, c_.expert_inter, 1);
  }
}

void Plans::layer(int64_t l) {
  l_ = l;
  fresh_shard_ = true;
  norm("input_layernorm", c_.hidden);
  norm("post_attention_layernorm", c_.hidden);
  residual_query("self_attention_res");
  residual_query("mlp_res");
  if (c_.is_mla[l])
    mla();
  else
    kda();
  if (c_.is_dense(l))
    mlp("mlp", c_.dense_inter);
  else
    moe();
}

void Plans::globals() {
  fresh_shard_ = true;
  const double root = std::sqrt(static_cast<double>(c_.hidden));
  add(global_tensor("model.embed_tokens.weight"), "BF16", {c_.vocab, c_.hidden},
      {How::normal, 0, 1});
  add(global_tensor("model.norm.weight"), "BF16", {c_.hidden}, {How::normal, 1, 0.1});
  add(global_tensor("lm_head.weight"), "BF16", {c_.vocab, c_.hidden},
      {How::normal, 0, s_.head_gain / root});
  add(global_tensor("model.output_attn_res_norm.weight"), "BF16", {c_.hidden},
      {How::normal, 1, 0.1});
  add(global_tensor("model.output_attn_res_proj.weight"), "BF16", {1, c_.hidden},
      {How::normal, 0, s_.residual_query / root});
}

}  // namespace

std::vector<TensorPlan> tensor_plans(const Config& config, const Shape& shape) {
  Plans plans(config, shape);
  for (int64_t l = 0; l < config.layers; ++l) plans.layer(l);
  plans.globals();
  return plans.take();
}

}  // namespace k3
