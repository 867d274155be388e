#include <cmath>

#include "gen/emit.h"
#include "gen/names.h"

namespace k3 {

using m::Dtype;

namespace {

/// Columns of the fused projection: q_a | kv_a (latent, rope) | output gate of this rank's heads.
struct Columns {
  int64_t heads, inner, z, width;
  Columns(const Config& c, int64_t ranks)
      : heads(c.heads / ranks),
        inner(heads * c.v_dim),
        z(c.q_lora + c.kv_width()),
        width(z + inner) {}
};

}  // namespace

void Emitter::mla_weights(int64_t l) {
  const Columns columns(c_, l_.ranks);
  const auto t = [l](const char* name) {
    return layer_tensor(l, std::string("self_attn.") + name);
  };
  b_.weight(at(l, "mla_in"), Dtype::bf16, {columns.width, c_.hidden},
            {whole(t("q_a_proj.weight")), whole(t("kv_a_proj_with_mqa.weight")),
             rows_by_rank(t("g_proj.weight"), c_.heads * c_.v_dim, l_.ranks)});
  b_.weight(at(l, "q_b"), Dtype::bf16, {c_.heads * (c_.nope + c_.rope), c_.q_lora},
            {whole(t("q_b_proj.weight"))});
  b_.weight(at(l, "kv_b"), Dtype::bf16, {c_.heads * (c_.nope + c_.v_dim), c_.kv_lora},
            {whole(t("kv_b_proj.weight"))});
  norm_weight(at(l, "q_a_norm"), t("q_a_layernorm.weight"), c_.q_lora);
  norm_weight(at(l, "kv_a_norm"), t("kv_a_layernorm.weight"), c_.kv_lora);
  b_.weight(at(l, "o_proj"), Dtype::bf16, {c_.hidden, columns.inner},
            {cols_by_rank(t("o_proj.weight"), c_.heads * c_.v_dim, l_.ranks)});
}

std::string Emitter::mla_ops(Rows rows) {
  const bool one_row = rows == Rows::one;
  const std::string attend = one_row ? "mla_attend" : "mla_attend_rows";
  const m::ParamType w = in(Dtype::bf16), n = in(Dtype::i32), i = p_i32();
  b_.kernel_op("mla_prep",
               {w, w, w, n, n, n, inout_state(), out(Dtype::bf16), i, i, i, i, p_f32(), i, i, i, i},
               t_.body(Work::mla_prep));
  b_.kernel_op("mla_absorb", {w, w, out(Dtype::bf16), i, i, i, i, i, i}, t_.body(Work::mla_absorb));
  b_.kernel_op(attend,
               {w, in_state(), n, n, n, out(Dtype::f32), i, i, i, i, i, p_f32(), i, i, i, i},
               t_.body(one_row ? Work::mla_attend_step : Work::mla_attend_rows));
  b_.kernel_op("mla_merge", {in(Dtype::f32), w, w, out(Dtype::bf16), i, i, i, i, i, i, i, i, i},
               t_.body(Work::mla_merge));
  return attend;
}

/// Every rank attends with all heads over the positions it holds; the parts of a head then go to
/// the rank that owns the head, which merges them in rank order.
void Emitter::mla(int64_t l, Rows rows) {
  const Columns columns(c_, l_.ranks);
  const std::string kv = fmt::format("kv.{}", l);
  const int64_t q_width = c_.heads * (c_.nope + c_.rope), part_width = c_.kv_lora + 2;
  mla_weights(l);
  const std::string attend = mla_ops(rows);
  b_.workspace("mla_in", Dtype::bf16, {kTokens, columns.width});
  b_.workspace("mla_q_lat", Dtype::bf16, {kTokens, c_.q_lora});
  b_.workspace("mla_q", Dtype::bf16, {kTokens, q_width});
  b_.workspace("mla_q_abs", Dtype::bf16, {kTokens, c_.heads, c_.kv_width()});
  b_.workspace("mla_part", Dtype::f32, {c_.heads, kTokens, part_width});
  b_.workspace("mla_out", Dtype::bf16, {kTokens, columns.inner});
  b_.workspace("partial", Dtype::f32, {kTokens, c_.hidden});

  gemm("normed", at(l, "mla_in"), "mla_in", columns.width, c_.hidden);
  b_.call("mla_prep", {buf("mla_in"), buf(at(l, "q_a_norm")), buf(at(l, "kv_a_norm")), buf("slot"),
                       buf("cu_seqlens"), buf("seq_len"), state(kv), buf("mla_q_lat"),
                       i32(c_.q_lora), i32(c_.kv_lora), i32(c_.rope), i32(columns.width),
                       f32(c_.latent_eps), rank(), i32(l_.ranks), var(kTokens), var(kSeqs)});
  gemm("mla_q_lat", at(l, "q_b"), "mla_q", q_width, c_.q_lora);
  b_.call("mla_absorb", {buf("mla_q"), buf(at(l, "kv_b")), buf("mla_q_abs"), i32(c_.heads),
                         i32(c_.nope), i32(c_.rope), i32(c_.v_dim), i32(c_.kv_lora), var(kTokens)});
  const int64_t tokens_a_page = kPageTokens * l_.ranks;
  b_.call(attend, {buf("mla_q_abs"), state(kv), buf("pages"), buf("cu_seqlens"), buf("seq_len"),
                   buf("mla_part"), i32(c_.heads), i32(c_.kv_lora), i32(c_.rope), i32(kPageTokens),
                   i32((l_.ctx_max + tokens_a_page - 1) / tokens_a_page),
                   f32(1.0 / std::sqrt(static_cast<double>(c_.nope + c_.rope))), rank(),
                   i32(l_.ranks), var(kTokens), var(kSeqs)});
  std::string parts = "mla_part";
  if (l_.ranks > 1) {
    parts = "mla_parts";
    b_.workspace(parts, Dtype::f32, {l_.ranks, columns.heads, kTokens, part_width});
    alltoall("mla_part", parts, m::Expr::mul(m::Expr::of_var(kTokens), columns.heads * part_width));
  }
  b_.call("mla_merge", {buf(parts), buf(at(l, "kv_b")), buf("mla_in"), buf("mla_out"),
                        i32(columns.heads), i32(c_.nope), i32(c_.v_dim), i32(c_.kv_lora),
                        i32(columns.width), i32(columns.z), rank(), i32(l_.ranks), var(kTokens)});
  gemm_f32("mla_out", at(l, "o_proj"), "partial", c_.hidden, columns.inner);
}

}  // namespace k3
