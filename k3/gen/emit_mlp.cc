#include <algorithm>

#include "gen/emit.h"
#include "gen/names.h"

namespace k3 {

using m::Dtype;

/// gate and up in one product, SiTU: leaves `name`_act [tokens, inter of this rank].
void Emitter::situ_mlp(int64_t l, const std::string& tensors, int64_t inter,
                       const std::string& name) {
  const int64_t own = inter / l_.ranks;
  b_.weight(at(l, name + "_in"), Dtype::bf16, {2 * own, c_.hidden},
            {rows_by_rank(layer_tensor(l, tensors + ".gate_proj.weight"), inter, l_.ranks),
             rows_by_rank(layer_tensor(l, tensors + ".up_proj.weight"), inter, l_.ranks)});
  b_.weight(at(l, name + "_down"), Dtype::bf16, {c_.hidden, own},
            {cols_by_rank(layer_tensor(l, tensors + ".down_proj.weight"), inter, l_.ranks)});
  b_.workspace(name + "_in", Dtype::bf16, {kTokens, 2 * own});
  b_.workspace(name + "_act", Dtype::bf16, {kTokens, own});
  b_.kernel_op("situ", {in(Dtype::bf16), out(Dtype::bf16), p_f32(), p_f32(), p_i32(), p_i32()},
               t_.body(Work::situ));
  gemm("normed", at(l, name + "_in"), name + "_in", 2 * own, c_.hidden);
  b_.call("situ", {buf(name + "_in"), buf(name + "_act"), f32(c_.situ_beta),
                   f32(c_.situ_linear_beta), i32(own), var(kTokens)});
}

void Emitter::dense(int64_t l) {
  situ_mlp(l, "mlp", c_.dense_inter, "dense");
  gemm_f32("dense_act", at(l, "dense_down"), "partial", c_.hidden, c_.dense_inter / l_.ranks);
  land_add("mid", "hidden");
}

void Emitter::moe_weights(int64_t l) {
  const int64_t own = c_.experts / l_.ranks, inter = c_.expert_inter, latent = c_.latent;
  const auto t = [l](const char* name) {
    return layer_tensor(l, std::string("block_sparse_moe.") + name);
  };
  b_.weight(at(l, "router"), Dtype::bf16, {c_.experts, c_.hidden}, {whole(t("gate.weight"))});
  b_.weight(at(l, "router_bias"), Dtype::f32, {c_.experts},
            {whole(t("gate.e_score_correction_bias"))});
  b_.weight(at(l, "latent_down"), Dtype::bf16, {latent, c_.hidden},
            {whole(t("routed_expert_down_proj.weight"))});
  norm_weight(at(l, "latent_norm"), t("routed_expert_norm.weight"), latent);
  b_.weight(at(l, "latent_up"), Dtype::bf16, {c_.hidden, latent},
            {whole(t("routed_expert_up_proj.weight"))});
  // Rank r owns experts r * own … r * own + own - 1, stacked in that order.
  const auto stacked = [&](const std::string& matrix, const char* part) {
    return std::vector<m::BindSegment>{
        series_by_rank(expert_tensor(l, m::kNumber, matrix, part), own, l_.ranks, l_.spelled_out)};
  };
  for (const std::string matrix : {"w1", "w3", "w2"}) {
    const int64_t rows = matrix == "w2" ? latent : inter, width = matrix == "w2" ? inter : latent;
    b_.weight(at(l, matrix), Dtype::u8, {own, rows, width / 2}, stacked(matrix, "weight_packed"));
    b_.weight(at(l, matrix + "_scale"), Dtype::fp8e8m0, {own, rows, width / 32},
              stacked(matrix, "weight_scale"));
  }
}

void Emitter::routed_op() {
  const m::ParamType i = p_i32(), n = in(Dtype::i32), h = in(Dtype::bf16), u = in(Dtype::u8),
                     e = in(Dtype::fp8e8m0), f = p_f32();
  b_.kernel_op("routed_experts",
               {n, in(Dtype::f32), h, u, e, u, e, u, e, out(Dtype::f32), i, i, i, i, i, i, f, f, i},
               t_.body(Work::routed_experts));
}

/// `back` [tokens, latent + hidden] holds the routed sum in latent space beside the shared experts'
/// output, so that one reduction serves both, before the norm that is not linear.
void Emitter::moe(int64_t l) {
  const int64_t shared = c_.shared_inter / l_.ranks, back = c_.latent + c_.hidden;
  moe_weights(l);
  routed_op();
  b_.workspace("router_logits", Dtype::f32, {kTokens, c_.experts});
  b_.workspace("expert_ids", Dtype::i32, {kTokens, c_.top_k});
  b_.workspace("expert_weights", Dtype::f32, {kTokens, c_.top_k});
  b_.workspace("latent", Dtype::bf16, {kTokens, c_.latent});
  b_.workspace("back", Dtype::f32, {kTokens, back});
  b_.workspace("routed_latent", Dtype::bf16, {kTokens, c_.latent});
  b_.workspace("routed", Dtype::bf16, {kTokens, c_.hidden});

  gemm_f32("normed", at(l, "router"), "router_logits", c_.experts, c_.hidden);
  const m::ParamType f = p_f32(), i = p_i32();
  b_.kernel_op("router",
               {in(Dtype::f32), in(Dtype::f32), out(Dtype::i32), out(Dtype::f32), i, i, i, f, i},
               t_.body(Work::router));
  b_.call("router", {buf("router_logits"), buf(at(l, "router_bias")), buf("expert_ids"),
                     buf("expert_weights"), i32(c_.experts), i32(c_.top_k),
                     i32(c_.renormalize ? 1 : 0), f32(c_.routed_scaling), var(kTokens)});
  gemm("normed", at(l, "latent_down"), "latent", c_.latent, c_.hidden);
  b_.call("routed_experts",
          {buf("expert_ids"), buf("expert_weights"), buf("latent"), buf(at(l, "w1")),
           buf(at(l, "w1_scale")), buf(at(l, "w3")), buf(at(l, "w3_scale")), buf(at(l, "w2")),
           buf(at(l, "w2_scale")), buf("back"), i32(c_.experts / l_.ranks), i32(c_.top_k), rank(),
           i32(c_.latent), i32(c_.expert_inter), i32(back), f32(c_.situ_beta),
           f32(c_.situ_linear_beta), var(kTokens)});
  situ_mlp(l, "block_sparse_moe.shared_experts", c_.shared_inter, "shared");
  b_.extern_op("gemm_f32_into", {in(Dtype::bf16), in(Dtype::bf16), out(Dtype::f32), i, i, i, i},
               t_.built_in(BuiltIn::gemm_f32));
  b_.call("gemm_f32_into",
          {buf("shared_act"), buf(at(l, "shared_down")), buf("back", c_.latent * 4), var(kTokens),
           i32(c_.hidden), i32(shared), i32(back)});
  allreduce("back", back);
  b_.kernel_op("land_rms", {in(Dtype::f32), in(Dtype::bf16), out(Dtype::bf16), f, i, i, i},
               t_.body(Work::land_rms));
  b_.call("land_rms", {buf("back"), buf(at(l, "latent_norm")), buf("routed_latent"), f32(c_.eps),
                       i32(back), i32(c_.latent), var(kTokens)});
  gemm("routed_latent", at(l, "latent_up"), "routed", c_.hidden, c_.latent);
  b_.kernel_op("land_moe",
               {in(Dtype::bf16), in(Dtype::f32), in(Dtype::bf16), out(Dtype::bf16), i, i, i},
               t_.body(Work::land_moe));
  b_.call("land_moe", {buf("routed"), buf("back", c_.latent * 4), buf("mid"), buf("hidden"),
                       i32(back), i32(c_.hidden), var(kTokens)});
}

}  // namespace k3
