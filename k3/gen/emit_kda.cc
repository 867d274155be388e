#include <cmath>

#include "gen/emit.h"
#include "gen/names.h"

namespace k3 {

using m::Dtype;

namespace {

constexpr double kL2Eps = 1e-6;  // inside the root, on the sum of squares

/// Columns of the fused projection: q | k | v | z | f_a | b, this rank's heads.
struct Columns {
  int64_t heads, inner, z, f_a, b, width, stride;
  Columns(const Config& c, int64_t ranks, int64_t row_elements)
      : heads(c.kda_heads / ranks),
        inner(heads * c.kda_dim),
        z(3 * inner),
        f_a(4 * inner),
        b(f_a + c.kda_dim),
        width(b + heads),
        stride((width + row_elements - 1) / row_elements * row_elements) {}
};

}  // namespace

void Emitter::kda_weights(int64_t l) {
  const Columns columns(c_, l_.ranks, t_.row_elements());
  const int64_t inner = c_.kda_inner(), heads = c_.kda_heads, dim = c_.kda_dim;
  const auto t = [l](const char* name) {
    return layer_tensor(l, std::string("self_attn.") + name);
  };
  b_.weight(at(l, "kda_in"), Dtype::bf16, {columns.width, c_.hidden},
            {rows_by_rank(t("q_proj.weight"), inner, l_.ranks),
             rows_by_rank(t("k_proj.weight"), inner, l_.ranks),
             rows_by_rank(t("v_proj.weight"), inner, l_.ranks),
             rows_by_rank(t("g_proj.weight"), inner, l_.ranks), whole(t("f_a_proj.weight")),
             rows_by_rank(t("b_proj.weight"), heads, l_.ranks)});
  b_.weight(at(l, "f_b"), Dtype::bf16, {columns.inner, dim},
            {rows_by_rank(t("f_b_proj.weight"), inner, l_.ranks)});
  for (const std::string stream : {"q", "k", "v"})
    b_.weight(at(l, stream + "_conv"), Dtype::f32, {columns.inner, c_.taps},
              {rows_by_rank(t((stream + "_conv1d.weight").c_str()), inner, l_.ranks)});
  // Stored longer than it has heads: the rest is padding.
  b_.weight(
      at(l, "a_log"), Dtype::f32, {columns.heads},
      {l_.ranks > 1 ? rows_by_rank(t("A_log"), heads, l_.ranks) : rows(t("A_log"), 0, heads)});
  b_.weight(at(l, "dt_bias"), Dtype::f32, {columns.inner},
            {rows_by_rank(t("dt_bias"), inner, l_.ranks)});
  b_.weight(at(l, "o_norm"), Dtype::f32, {dim}, {whole(t("o_norm.weight"))});
  b_.weight(at(l, "o_proj"), Dtype::bf16, {c_.hidden, columns.inner},
            {cols_by_rank(t("o_proj.weight"), inner, l_.ranks)});
}

/// Declares the op that serves such rows; its name.
std::string Emitter::kda_op(Rows rows) {
  const bool snapshot = rows == Rows::any_with_snapshots;
  const Work work = rows == Rows::one ? Work::kda_step
                    : snapshot        ? Work::kda_rows_snapshot
                                      : Work::kda_rows;
  const std::string name = snapshot ? "kda_snapshot" : rows == Rows::one ? "kda" : "kda_rows";
  const m::ParamType f = in(Dtype::f32), i = p_i32(), g = p_f32(), n = in(Dtype::i32);
  std::vector<m::ParamType> params = {in(Dtype::bf16),
                                      in(Dtype::bf16),
                                      f,
                                      f,
                                      f,
                                      f,
                                      f,
                                      f,
                                      inout_state(),
                                      n,
                                      n,
                                      out(Dtype::bf16),
                                      i,
                                      i,
                                      i,
                                      i,
                                      i,
                                      i,
                                      g,
                                      g,
                                      g,
                                      g,
                                      i,
                                      i};
  if (snapshot) params.insert(params.end(), {n, n, i});
  b_.kernel_op(name, std::move(params), t_.body(work));
  return name;
}

void Emitter::kda(int64_t l, Rows rows) {
  const Columns columns(c_, l_.ranks, t_.row_elements());
  kda_weights(l);
  const std::string op = kda_op(rows);
  b_.workspace("kda_in", Dtype::bf16, {kTokens, columns.stride});
  b_.workspace("kda_r", Dtype::bf16, {kTokens, columns.inner});
  b_.workspace("kda_out", Dtype::bf16, {kTokens, columns.inner});
  b_.workspace("partial", Dtype::f32, {kTokens, c_.hidden});

  b_.extern_op("gemm_from",
               {in(Dtype::bf16), in(Dtype::bf16), out(Dtype::bf16), p_i32(), p_i32(), p_i32(),
                p_i32(), p_i32()},
               t_.built_in(BuiltIn::gemm_bf16));
  if (columns.stride == columns.width)
    gemm("normed", at(l, "kda_in"), "kda_in", columns.width, c_.hidden);
  else
    b_.call("gemm_from", {buf("normed"), buf(at(l, "kda_in")), buf("kda_in"), var(kTokens),
                          i32(columns.width), i32(c_.hidden), i32(columns.stride), i32(c_.hidden)});
  b_.call("gemm_from",
          {buf("kda_in", columns.f_a * 2), buf(at(l, "f_b")), buf("kda_r"), var(kTokens),
           i32(columns.inner), i32(c_.kda_dim), i32(columns.inner), i32(columns.stride)});
  std::vector<m::CallArg> args = {buf("kda_in"),
                                  buf("kda_r"),
                                  buf(at(l, "q_conv")),
                                  buf(at(l, "k_conv")),
                                  buf(at(l, "v_conv")),
                                  buf(at(l, "a_log")),
                                  buf(at(l, "dt_bias")),
                                  buf(at(l, "o_norm")),
                                  state(fmt::format("kda.{}", l)),
                                  buf("lines"),
                                  buf("cu_seqlens"),
                                  buf("kda_out"),
                                  i32(columns.heads),
                                  i32(c_.kda_dim),
                                  i32(c_.taps),
                                  i32(columns.stride),
                                  i32(columns.b),
                                  i32(columns.z),
                                  f32(c_.gate_lower_bound),
                                  f32(kL2Eps),
                                  f32(1.0 / std::sqrt(static_cast<double>(c_.kda_dim))),
                                  f32(c_.eps),
                                  var(kTokens),
                                  var(kSeqs)};
  if (rows == Rows::any_with_snapshots)
    args.insert(args.end(), {buf("snapshot"), buf("seq_len"), i32(kPageTokens)});
  b_.call(op, std::move(args));
  gemm_f32("kda_out", at(l, "o_proj"), "partial", c_.hidden, columns.inner);
}

}  // namespace k3
