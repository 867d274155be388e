#include <algorithm>

#include "gen/emit.h"
#include "gen/target.h"

namespace k3 {

using m::Dtype;

m::Launch with(m::Launch launch, std::vector<m::ParamType> params, std::vector<m::LaunchArg> args) {
  launch.params = std::move(params);
  launch.args = std::move(args);
  return launch;
}

namespace {

constexpr int64_t kHeadsABlock = 8;        // of the attend launch
constexpr int64_t kRowsABlock = 8;         // of absorb and merge, as their headers say
constexpr int64_t kTileBytesMax = 200000;  // of expanded weights in a block's shared memory
constexpr int64_t kTileRowsMax = 64;

/// Blocks into which the `rows` rows of a [rows, width] matrix are split so that one fits.
int64_t tiles_of(int64_t rows, int64_t width) {
  const int64_t fit = std::clamp<int64_t>(kTileBytesMax / (width * 2), 1, kTileRowsMax);
  return (rows + fit - 1) / fit;
}

int64_t tile_bytes(int64_t rows, int64_t width) {
  const int64_t tiles = tiles_of(rows, width);
  return (rows + tiles - 1) / tiles * width * 2;
}

/// CPU modules: one a family, blocks of rows as large as keeps a worker busy.
class HostTarget final : public Target {
 public:
  HostTarget(const Config& config, const Layout& layout) : c_(config), l_(layout) {}

  m::Device device() const override { return m::Device::host; }
  std::vector<std::string> extensions() const override { return {"host", "meta", "sampling"}; }
  Body body(Work work, int64_t sources) const override;
  std::string built_in(BuiltIn built_in) const override;

 private:
  int64_t kda_heads() const { return c_.kda_heads / l_.ranks; }
  m::Launch kda_prep() const;
  m::Launch kda_recurrence(bool snapshot) const;
  m::Launch kda_windows(bool snapshot) const;
  m::Launch kda_out() const;
  Body kda(bool snapshot) const;
  Body routed() const;
  m::Launch attend() const;

  const Config& c_;
  const Layout l_;
};

m::Launch HostTarget::kda_prep() const {
  const m::ParamType f = in(Dtype::f32), o = out(Dtype::f32), i = p_i32(), w = in(Dtype::bf16),
                     n = in(Dtype::i32), g = p_f32();
  return with(
      launch("kda", "kern_kda_prep", {blocks_of(kTokens, 4)}),
      {w, w, f, f, f, f, f, in_state(), n, n, o, o, o, o, o, i, i, i, i, i, g, g, g, i, i},
      {param(kX),          param(kR),      param(kConvQ),  param(kConvK),    param(kConvV),
       param(kALog),       param(kDtBias), param(kState),  param(kLines),    param(kCuSeqlens),
       scratch("q"),       scratch("k"),   scratch("v"),   scratch("alpha"), scratch("beta"),
       param(kHeads),      param(kDim),    param(kTaps),   param(kXStride),  param(kBColumn),
       param(kLowerBound), param(kL2),     param(kQScale), param(kKdaRows),  param(kSequences)});
}

void add_snapshot(m::Launch& launch) {
  launch.entry += "_snapshot";
  launch.params->insert(launch.params->end(), {in(Dtype::i32), in(Dtype::i32), p_i32()});
  launch.args->insert(launch.args->end(), {param(kSnapshot), param(kSeqLen), param(kBoundary)});
}

m::Launch HostTarget::kda_recurrence(bool snapshot) const {
  const m::ParamType f = in(Dtype::f32), i = p_i32(), n = in(Dtype::i32);
  m::Launch out_ = with(
      launch("kda", "kern_kda_recurrence",
             {m::Expr::of_var(kSeqs), m::Expr::constant(kda_heads())}),
      {f, f, f, f, f, inout_state(), n, n, out(Dtype::f32), i, i, i},
      {scratch("q"), scratch("k"), scratch("v"), scratch("alpha"), scratch("beta"), param(kState),
       param(kLines), param(kCuSeqlens), scratch("o"), param(kHeads), param(kDim), param(kTaps)});
  if (snapshot) add_snapshot(out_);
  return out_;
}

m::Launch HostTarget::kda_windows(bool snapshot) const {
  const m::ParamType i = p_i32(), n = in(Dtype::i32);
  m::Launch out_ = with(launch("kda", "kern_kda_windows", {m::Expr::of_var(kSeqs)}),
                        {in(Dtype::bf16), inout_state(), n, n, i, i, i, i},
                        {param(kX), param(kState), param(kLines), param(kCuSeqlens), param(kHeads),
                         param(kDim), param(kTaps), param(kXStride)});
  if (snapshot) add_snapshot(out_);
  return out_;
}

m::Launch HostTarget::kda_out() const {
  const m::ParamType i = p_i32();
  return with(
      launch("kda", "kern_kda_out", {blocks_of(kTokens, 4)}),
      {in(Dtype::f32), in(Dtype::bf16), in(Dtype::f32), out(Dtype::bf16), i, i, i, i, p_f32(), i},
      {scratch("o"), param(kX), param(kONorm), param(kY), param(kHeads), param(kDim),
       param(kXStride), param(kZColumn), param(kEps), param(kKdaRows)});
}

Body HostTarget::kda(bool snapshot) const {
  Body body;
  const m::Dim rows = m::Dim::of_var(kTokens), inner = m::Dim::of(kda_heads() * c_.kda_dim);
  for (const char* name : {"q", "k", "v", "alpha", "o"})
    body.scratch.push_back({name, Dtype::f32, {rows, inner}});
  body.scratch.push_back({"beta", Dtype::f32, {rows, m::Dim::of(kda_heads())}});
  body.launches = {kda_prep(), kda_recurrence(snapshot), kda_windows(snapshot), kda_out()};
  return body;
}

Body HostTarget::routed() const {
  const int64_t own = c_.experts / l_.ranks, inter = c_.expert_inter, latent = c_.latent;
  const m::ParamType i = p_i32(), n = in(Dtype::i32), h = in(Dtype::bf16), u = in(Dtype::u8),
                     e = in(Dtype::fp8e8m0), f = p_f32(), place = out(Dtype::i32),
                     y = out(Dtype::bf16);
  const m::Dim rows = m::Dim::of_var(kTokens), picks = m::Dim::of(c_.top_k);
  const m::Expr experts = m::Expr::constant(own);
  Body body;
  body.scratch = {{"first", Dtype::i32, {m::Dim::of(own + 1)}},
                  {"place", Dtype::i32, {rows, picks}},
                  {"x", Dtype::bf16, {rows, picks, m::Dim::of(latent)}},
                  {"act", Dtype::bf16, {rows, picks, m::Dim::of(inter)}},
                  {"up", Dtype::bf16, {rows, picks, m::Dim::of(inter)}},
                  {"y", Dtype::bf16, {rows, picks, m::Dim::of(latent)}}};
  body.launches = {
      with(launch("moe", "kern_moe_plan", {}), {n, place, place, i, i, i, i},
           {param(kIds), scratch("first"), scratch("place"), param(kExperts), param(kTopK),
            param(kRank), param(kRows)}),
      with(launch("moe", "kern_moe_gather", {blocks_of(kTokens, 8)}), {h, n, y, i, i, i},
           {param(kZ), scratch("place"), scratch("x"), param(kWidth), param(kTopK), param(kRows)}),
      with(launch("moe", "kern_moe_up", {experts, m::Expr::constant(tiles_of(inter, latent))},
                  tile_bytes(inter, latent)),
           {h, n, u, e, u, e, y, y, i, i, f, f},
           {scratch("x"), scratch("first"), param(kW1), param(kS1), param(kW3), param(kS3),
            scratch("act"), scratch("up"), param(kWidth), param(kInter), param(kBeta),
            param(kLinearBeta)}),
      with(launch("moe", "kern_moe_down", {experts, m::Expr::constant(tiles_of(latent, inter))},
                  tile_bytes(latent, inter)),
           {h, n, u, e, y, i, i},
           {scratch("act"), scratch("first"), param(kW2), param(kS2), scratch("y"), param(kWidth),
            param(kInter)}),
      with(launch("moe", "kern_moe_combine", {blocks_of(kTokens, 8)}),
           {h, n, in(Dtype::f32), out(Dtype::f32), i, i, i, i},
           {scratch("y"), scratch("place"), param(kWeights), param(kPartial), param(kWidth),
            param(kTopK), param(kStride), param(kRows)})};
  return body;
}

m::Launch HostTarget::attend() const {
  const int64_t groups = (c_.heads + kHeadsABlock - 1) / kHeadsABlock;
  const int64_t group = (c_.heads + groups - 1) / groups;
  return launch("mla", "kern_mla_attend", {m::Expr::of_var(kTokens), m::Expr::constant(groups)},
                4 * (kPageTokens * c_.kv_lora + group * (kPageTokens + c_.kv_lora)));
}

Body HostTarget::body(Work work, int64_t /*sources*/) const {
  const auto of_rows = [](const char* family, const char* entry, int64_t rows,
                          int64_t shared_bytes = 0) {
    return Body{{}, {launch(family, entry, {blocks_of(kTokens, rows)}, shared_bytes)}};
  };
  const auto of_seqs = [](const char* family, const char* entry, int64_t shared_bytes = 0) {
    return Body{{}, {launch(family, entry, {blocks_of(kSeqs, 1)}, shared_bytes)}};
  };
  const m::Expr row_blocks = blocks_of(kTokens, kRowsABlock);
  switch (work) {
    case Work::embed:
      return of_rows("norm", "kern_embed", 8);
    case Work::embed_fed:
      return of_rows("head", "kern_embed_fed", 8);
    case Work::keep_token:
      return {{}, {launch("head", "kern_keep", {})}};
    case Work::rms:
      return of_rows("norm", "kern_rms", 8);
    case Work::mix_rms:
      return of_rows("norm", "kern_mix_rms", 4, c_.hidden * 4);
    case Work::mix_rms_last:
      return of_seqs("norm", "kern_mix_rms_last", c_.hidden * 4);
    case Work::copy_rows:
      return of_rows("norm", "kern_copy_rows", 16);
    case Work::land:
      return of_rows("norm", "kern_land", 16);
    case Work::land_add:
      return of_rows("norm", "kern_land_add", 16);
    case Work::land_rms:
      return of_rows("norm", "kern_land_rms", 8);
    case Work::land_moe:
      return of_rows("norm", "kern_land_moe", 8);
    case Work::situ:
      return of_rows("act", "kern_situ", 4);
    case Work::router:
      return of_rows("moe", "kern_router", 8, c_.experts * 4);
    case Work::routed_experts:
      return routed();
    case Work::kda_step:
    case Work::kda_rows:
      return kda(false);
    case Work::kda_rows_snapshot:
      return kda(true);
    case Work::mla_prep:
      return of_rows("mla", "kern_mla_prep", 8);
    case Work::mla_absorb:
      return {{},
              {launch("mla", "kern_mla_absorb", {m::Expr::constant(c_.heads), row_blocks},
                      kRowsABlock * c_.kv_lora * 4)}};
    case Work::mla_attend_step:
    case Work::mla_attend_rows:
      return {{}, {attend()}};
    case Work::mla_merge:
      return {{},
              {launch("mla", "kern_mla_merge", {m::Expr::constant(c_.heads / l_.ranks), row_blocks},
                      kRowsABlock * c_.kv_lora * 2)}};
    case Work::join_columns:
      return of_seqs("head", "kern_join_columns");
    case Work::argmax:
      break;
    case Work::sample:
      return of_seqs("head", "kern_sample");
  }
  return {};
}

std::string HostTarget::built_in(BuiltIn built_in) const {
  switch (built_in) {
    case BuiltIn::gemm_bf16:
      return "gemm_bf16_tn";
    case BuiltIn::gemm_f32:
      return "gemm_bf16_tn_f32";
    case BuiltIn::allreduce_f32:
      return "allreduce_f32";
    case BuiltIn::alltoall_f32:
      return "alltoall_f32";
    case BuiltIn::allgather_f32:
      return "allgather_f32";
  }
  return {};
}

}  // namespace

std::unique_ptr<Target> host_target(const Config& config, const Layout& layout) {
  return std::make_unique<HostTarget>(config, layout);
}

}  // namespace k3
