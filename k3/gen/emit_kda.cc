#include <cmath>

#include "gen/emit.h"
#include "gen/names.h"

namespace k3 {

using m::Dtype;

namespace {

constexpr double kL2Eps = 1e-6;  // inside the root, on the sum of squares

/// Columns of the fused projection: q | k | v | z | f_a | b, this rank's heads.
struct Columns {
  int64_t heads, inner, z, f_a, b, width;
  Columns(const Config& c, int64_t ranks)
      : heads(c.kda_heads / ranks),
        inner(heads * c.kda_dim),
        z(3 * inner),
        f_a(4 * inner),
        b(f_a + c.kda_dim),
        width(b + heads) {}
};

}  // namespace

void Emitter::kda_weights(int64_t l) {
  const Columns columns(c_, l_.ranks);
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

namespace {

/// Places of the op's parameters.
enum KdaParam : int64_t {
  kX,
  kR,
  kConvQ,
  kConvK,
  kConvV,
  kALog,
  kDtBias,
  kONorm,
  kState,
  kLines,
  kCuSeqlens,
  kY,
  kHeads,
  kDim,
  kTaps,
  kStride,
  kBColumn,
  kZColumn,
  kLowerBound,
  kL2,
  kQScale,
  kEps,
  kRows,
  kSequences,
  kSnapshot,
  kSeqLen,
  kBoundary
};

m::LaunchArg p(int64_t index) {
  return m::ParamRef{index};
}
m::LaunchArg s(const char* name) {
  return m::ScratchRef{name};
}

m::Launch prep_launch() {
  m::Launch launch = k3::launch("kda", "kern_kda_prep", {blocks_of(kTokens, 4)});
  const m::ParamType f = in(Dtype::f32), o = out(Dtype::f32), i = p_i32();
  launch.params = {{in(Dtype::bf16),
                    in(Dtype::bf16),
                    f,
                    f,
                    f,
                    f,
                    f,
                    in_state(),
                    in(Dtype::i32),
                    in(Dtype::i32),
                    o,
                    o,
                    o,
                    o,
                    o,
                    i,
                    i,
                    i,
                    i,
                    i,
                    p_f32(),
                    p_f32(),
                    p_f32(),
                    i,
                    i}};
  launch.args = {{p(kX),          p(kR),      p(kConvQ),  p(kConvK),  p(kConvV),
                  p(kALog),       p(kDtBias), p(kState),  p(kLines),  p(kCuSeqlens),
                  s("q"),         s("k"),     s("v"),     s("alpha"), s("beta"),
                  p(kHeads),      p(kDim),    p(kTaps),   p(kStride), p(kBColumn),
                  p(kLowerBound), p(kL2),     p(kQScale), p(kRows),   p(kSequences)}};
  return launch;
}

void add_snapshot(m::Launch& launch) {
  launch.entry += "_snapshot";
  launch.params->insert(launch.params->end(), {in(Dtype::i32), in(Dtype::i32), p_i32()});
  launch.args->insert(launch.args->end(), {p(kSnapshot), p(kSeqLen), p(kBoundary)});
}

m::Launch recurrence_launch(int64_t heads, bool snapshot) {
  m::Launch launch =
      k3::launch("kda", "kern_kda_recurrence", {m::Expr::of_var(kSeqs), m::Expr::constant(heads)});
  const m::ParamType f = in(Dtype::f32), i = p_i32();
  launch.params = {
      {f, f, f, f, f, inout_state(), in(Dtype::i32), in(Dtype::i32), out(Dtype::f32), i, i, i}};
  launch.args = {{s("q"), s("k"), s("v"), s("alpha"), s("beta"), p(kState), p(kLines),
                  p(kCuSeqlens), s("o"), p(kHeads), p(kDim), p(kTaps)}};
  if (snapshot) add_snapshot(launch);
  return launch;
}

m::Launch windows_launch(bool snapshot) {
  m::Launch launch = k3::launch("kda", "kern_kda_windows", {m::Expr::of_var(kSeqs)});
  const m::ParamType i = p_i32();
  launch.params = {{in(Dtype::bf16), inout_state(), in(Dtype::i32), in(Dtype::i32), i, i, i, i}};
  launch.args = {
      {p(kX), p(kState), p(kLines), p(kCuSeqlens), p(kHeads), p(kDim), p(kTaps), p(kStride)}};
  if (snapshot) add_snapshot(launch);
  return launch;
}

m::Launch out_launch() {
  m::Launch launch = k3::launch("kda", "kern_kda_out", {blocks_of(kTokens, 4)});
  const m::ParamType i = p_i32();
  launch.params = {
      {in(Dtype::f32), in(Dtype::bf16), in(Dtype::f32), out(Dtype::bf16), i, i, i, i, p_f32(), i}};
  launch.args = {{s("o"), p(kX), p(kONorm), p(kY), p(kHeads), p(kDim), p(kStride), p(kZColumn),
                  p(kEps), p(kRows)}};
  return launch;
}

}  // namespace

void Emitter::kda_op(bool snapshot) {
  const Columns columns(c_, l_.ranks);
  m::Op op;
  op.name = snapshot ? "kda_snapshot" : "kda";
  if (!b_.is_new_op(op.name)) return;
  const m::ParamType f = in(Dtype::f32), i = p_i32();
  op.params = {in(Dtype::bf16), in(Dtype::bf16),  f, f, f, f, f, f, inout_state(), in(Dtype::i32),
               in(Dtype::i32),  out(Dtype::bf16), i, i, i, i, i, i, p_f32(),       p_f32(),
               p_f32(),         p_f32(),          i, i};
  if (snapshot) op.params.insert(op.params.end(), {in(Dtype::i32), in(Dtype::i32), i});
  const m::Dim rows = m::Dim::of_var(kTokens);
  for (const char* name : {"q", "k", "v", "alpha", "o"})
    op.scratch.push_back({name, Dtype::f32, {rows, m::Dim::of(columns.inner)}});
  op.scratch.push_back({"beta", Dtype::f32, {rows, m::Dim::of(columns.heads)}});
  op.launches = {prep_launch(), recurrence_launch(columns.heads, snapshot),
                 windows_launch(snapshot), out_launch()};
  b_.op(std::move(op));
}

void Emitter::kda(int64_t l, bool snapshot) {
  const Columns columns(c_, l_.ranks);
  kda_weights(l);
  kda_op(snapshot);
  b_.workspace("kda_in", Dtype::bf16, {kTokens, columns.width});
  b_.workspace("kda_r", Dtype::bf16, {kTokens, columns.inner});
  b_.workspace("kda_out", Dtype::bf16, {kTokens, columns.inner});
  b_.workspace("partial", Dtype::f32, {kTokens, c_.hidden});

  gemm("normed", at(l, "kda_in"), "kda_in", columns.width, c_.hidden);
  b_.extern_op("gemm_from",
               {in(Dtype::bf16), in(Dtype::bf16), out(Dtype::bf16), p_i32(), p_i32(), p_i32(),
                p_i32(), p_i32()},
               "gemm_bf16_tn");
  b_.call("gemm_from",
          {buf("kda_in", columns.f_a * 2), buf(at(l, "f_b")), buf("kda_r"), var(kTokens),
           i32(columns.inner), i32(c_.kda_dim), i32(columns.inner), i32(columns.width)});
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
                                  i32(columns.width),
                                  i32(columns.b),
                                  i32(columns.z),
                                  f32(c_.gate_lower_bound),
                                  f32(kL2Eps),
                                  f32(1.0 / std::sqrt(static_cast<double>(c_.kda_dim))),
                                  f32(c_.eps),
                                  var(kTokens),
                                  var(kSeqs)};
  if (snapshot) args.insert(args.end(), {buf("snapshot"), buf("seq_len"), i32(kPageTokens)});
  b_.call(snapshot ? "kda_snapshot" : "kda", std::move(args));
  gemm_f32("kda_out", at(l, "o_proj"), "partial", c_.hidden, columns.inner);
}

}  // namespace k3
