#include "gen/emit.h"
#include "gen/names.h"

namespace k3 {

using m::Dtype;

/// Only each sequence's last row gets logits; ranks share the vocabulary's rows.
void Emitter::head() {
  const int64_t width = c_.hidden, sources = c_.bank_after(c_.layers - 1);
  const int64_t own = c_.vocab / l_.ranks;
  b_.workspace("head_in", Dtype::bf16, {kSeqs, width});
  std::vector<m::ParamType> params(4, in(Dtype::bf16));
  params.insert(params.end(),
                {in(Dtype::i32), out(Dtype::bf16), p_f32(), p_i32(), p_i32(), p_i32()});
  params.insert(params.end(), sources, in(Dtype::bf16));
  b_.kernel_op("mix_rms_last", params, t_.body(Work::mix_rms_last, sources));
  const std::string norm = norm_weight("norm", global_tensor("model.norm.weight"), width);
  const std::string score_norm = norm_weight(
      "output_attn_res_norm", global_tensor("model.output_attn_res_norm.weight"), width);
  const std::string score_proj = norm_weight(
      "output_attn_res_proj", global_tensor("model.output_attn_res_proj.weight"), width);
  std::vector<m::CallArg> args = {buf("hidden"),     buf(score_norm), buf(score_proj), buf(norm),
                                  buf("cu_seqlens"), buf("head_in"),  f32(c_.eps),     i32(width),
                                  var(kSeqs),        i32(sources)};
  for (int64_t j = 0; j < sources; ++j) args.push_back(buf(fmt::format("bank.{}", j)));
  b_.label("head");
  b_.call("mix_rms_last", std::move(args));

  b_.weight("lm_head", Dtype::bf16, {own, width},
            {rows_by_rank(global_tensor("lm_head.weight"), c_.vocab, l_.ranks)});
  m::Buffer logits;
  logits.name = "logits";
  logits.dtype = Dtype::f32;
  logits.shape = {m::Dim::of_var(kSeqs), m::Dim::of(c_.vocab)};
  logits.kind = l_.logits_output ? m::BufferKind::output : m::BufferKind::workspace;
  b_.buffer(std::move(logits));
  b_.extern_op("gemm_f32",
               {in(Dtype::bf16), in(Dtype::bf16), out(Dtype::f32), p_i32(), p_i32(), p_i32()},
               t_.built_in(BuiltIn::gemm_f32));
  const std::string own_logits = l_.ranks > 1 ? "own_logits" : "logits";
  if (l_.ranks > 1) b_.workspace(own_logits, Dtype::f32, {kSeqs, own});
  b_.call("gemm_f32",
          {buf("head_in"), buf("lm_head"), buf(own_logits), var(kSeqs), i32(own), i32(width)});
  if (l_.ranks > 1) {
    b_.workspace("logit_parts", Dtype::f32, {l_.ranks, kSeqs, own});
    allgather(own_logits, "logit_parts", m::Expr::mul(m::Expr::of_var(kSeqs), own));
    b_.kernel_op("join_columns", {in(Dtype::f32), out(Dtype::f32), p_i32(), p_i32(), p_i32()},
                 t_.body(Work::join_columns));
    b_.call("join_columns",
            {buf("logit_parts"), buf("logits"), i32(l_.ranks), i32(own), var(kSeqs)});
  }
  output("next_token", Dtype::i32, m::Fill::tokens, 0);
  if (t_.has_sampling()) return sample();
  b_.kernel_op("argmax", {in(Dtype::f32), out(Dtype::i32), p_i32(), p_i32()},
               t_.body(Work::argmax));
  b_.call("argmax", {buf("logits"), buf("next_token"), i32(c_.vocab), var(kSeqs)});
}

void Emitter::output(const char* name, m::Dtype dtype, m::Fill fill, int64_t width) {
  m::Buffer buffer;
  buffer.name = name;
  buffer.dtype = dtype;
  buffer.shape = {m::Dim::of_var(kSeqs)};
  if (width > 0) buffer.shape.push_back(m::Dim::of(width));
  buffer.kind = m::BufferKind::output;
  buffer.fill = fill;
  b_.buffer(std::move(buffer));
}

void Emitter::sample() {
  const int64_t top = std::min(kTopLogprobs, c_.vocab);
  output("logprob", Dtype::f32, m::Fill::logprob, 0);
  output("top_tokens", Dtype::i32, m::Fill::top_tokens, top);
  output("top_logprobs", Dtype::f32, m::Fill::top_logprobs, top);
  b_.workspace("order", Dtype::i32, {kSeqs, c_.vocab});
  const m::ParamType f = in(Dtype::f32), n = in(Dtype::i32), i = p_i32();
  b_.kernel_op("sample",
               {f, f, f, n, f, in(Dtype::i64), n, out(Dtype::i32), out(Dtype::f32), out(Dtype::i32),
                out(Dtype::f32), out(Dtype::i32), i, i, i},
               t_.body(Work::sample));
  b_.call("sample", {buf("logits"), buf("temperature"), buf("top_p"), buf("top_k"), buf("min_p"),
                     buf("seed"), buf("draw"), buf("next_token"), buf("logprob"), buf("top_tokens"),
                     buf("top_logprobs"), buf("order"), i32(c_.vocab), i32(top), var(kSeqs)});
}

}  // namespace k3
