#include "gen/target_cuda.h"

#include <fmt/format.h>

namespace k3 {

using m::Dtype;

m::Launch on(const std::string& module, const std::string& entry, std::vector<int64_t> block,
             std::vector<m::Expr> grid, int64_t shared_bytes) {
  m::Launch made = launch(module, entry, std::move(grid), shared_bytes);
  made.block = std::move(block);
  return made;
}

namespace {

constexpr int64_t kMultiprocessors = 132;  // where a grid is free, it fills this many
constexpr int64_t kSharedOfMultiprocessor = 228 * 1024;
constexpr int64_t kTileRowsFew = 8, kTileRowsMany = 80;

m::Literal i32_literal(int64_t value) {
  return {m::Literal::Type::i32, value, 0};
}

/// Threads of a block whose threads hold `each` elements of a row of `width`.
int64_t threads_for(int64_t width, int64_t each, int64_t most) {
  const int64_t warps = (width + 32 * each - 1) / (32 * each);
  return std::min(warps * 32, most);
}

}  // namespace

Body CudaTarget::norm(const char* module, const char* entry, int64_t threads) const {
  return {{}, {on(module, entry, {threads, 1, 1}, {m::Expr::of_var(kTokens)})}};
}

/// As many blocks as fit at once: each copies its next row in while it works on one.
Body CudaTarget::mix(const char* entry, int64_t sources) const {
  const int64_t threads = threads_for(c_.hidden, 16, 448), shared = (sources + 1) * threads * 32;
  const int64_t fit = std::clamp<int64_t>(kSharedOfMultiprocessor / (shared + 8192), 1, 4);
  return {{},
          {on(fmt::format("norm-mix_rms+BANK={}", sources), entry, {threads, 1, 1},
              {of(kMultiprocessors * fit)}, shared)}};
}

// ---- routed experts ----

/// Rows from which two small tiles an expert cost more than one large one: as measured before the
/// large one used wgmma, which wins from some 380 rows at one of eight ranks (kernels/README.md).
m::Launch CudaTarget::only_for(m::Launch launch, int64_t tile_rows) const {
  const int64_t few = std::max<int64_t>(2 * kTileRowsFew * c_.experts / c_.top_k, 1);
  if (l_.rows_max <= few) return launch;
  m::When when;
  when.var = kTokens;
  if (tile_rows == kTileRowsFew)
    when.max = few;
  else
    when.min = few + 1;
  launch.when = when;
  return launch;
}

m::Launch CudaTarget::moe_plan(int64_t tile_rows) const {
  const int64_t own = c_.experts / l_.ranks;
  const m::ParamType i = p_i32(), n = in(Dtype::i32), o = out(Dtype::i32);
  m::Launch made = with(on("moe-plan", "kern_moe_plan", {1024, 1, 1}, {of(8)}, (own * 34 + 2) * 4),
                        {n, o, o, o, o, o, i, i, i, i, i},
                        {param(kIds), scratch("first"), scratch("place"), scratch("row_of"),
                         scratch("tiles"), scratch("tile_count"), param(kExperts), param(kTopK),
                         param(kRank), param(kRows), i32_literal(tile_rows)});
  made.cluster = {8, 1, 1};
  return only_for(std::move(made), tile_rows);
}

/// As many blocks as are resident, and what each holds.
m::Launch experts(const char* entry, int64_t tile_rows) {
  const bool few = tile_rows == kTileRowsFew;
  return on(fmt::format("moe-experts+ROWS={}", tile_rows), entry, {few ? 128 : 256, 1, 1},
            {of(kMultiprocessors * (few ? 4 : 1))}, few ? 1536 : 221184);
}

m::Launch CudaTarget::moe_up(int64_t tile_rows) const {
  const m::ParamType i = p_i32(), n = in(Dtype::i32), h = in(Dtype::bf16), u = in(Dtype::u8),
                     e = in(Dtype::fp8e8m0), f = p_f32();
  return only_for(with(experts("kern_moe_up", tile_rows),
                       {h, n, n, n, u, e, u, e, out(Dtype::bf16), i, i, f, f},
                       {scratch("x"), scratch("row_of"), scratch("tiles"), scratch("tile_count"),
                        param(kW1), param(kS1), param(kW3), param(kS3), scratch("act"),
                        param(kWidth), param(kInter), param(kBeta), param(kLinearBeta)}),
                  tile_rows);
}

m::Launch CudaTarget::moe_down(int64_t tile_rows) const {
  const m::ParamType i = p_i32(), n = in(Dtype::i32), h = in(Dtype::bf16), u = in(Dtype::u8),
                     e = in(Dtype::fp8e8m0);
  return only_for(with(experts("kern_moe_down", tile_rows), {h, n, n, u, e, out(Dtype::bf16), i, i},
                       {scratch("act"), scratch("tiles"), scratch("tile_count"), param(kW2),
                        param(kS2), scratch("y"), param(kWidth), param(kInter)}),
                  tile_rows);
}

Body CudaTarget::routed() const {
  const int64_t own = c_.experts / l_.ranks, inter = c_.expert_inter, latent = c_.latent;
  const m::ParamType i = p_i32(), n = in(Dtype::i32), h = in(Dtype::bf16);
  const m::Dim rows = m::Dim::of_var(kTokens), picks = m::Dim::of(c_.top_k);
  Body body;
  body.scratch = {{"first", Dtype::i32, {m::Dim::of(own + 1)}},
                  {"place", Dtype::i32, {rows, picks}},
                  {"row_of", Dtype::i32, {rows, picks}},
                  {"tiles", Dtype::i32, {rows, picks, m::Dim::of(3)}},
                  {"tile_count", Dtype::i32, {m::Dim::of(1)}},
                  {"x", Dtype::bf16, {rows, m::Dim::of(latent)}},
                  {"act", Dtype::bf16, {rows, picks, m::Dim::of(inter)}},
                  {"y", Dtype::bf16, {rows, picks, m::Dim::of(latent)}}};
  const bool many =
      only_for({}, kTileRowsFew).when.has_value();  // whether a call can outgrow the small tile
  const auto each = [&](m::Launch (CudaTarget::*make)(int64_t) const) {
    body.launches.push_back((this->*make)(kTileRowsFew));
    if (many) body.launches.push_back((this->*make)(kTileRowsMany));
  };
  each(&CudaTarget::moe_plan);
  body.launches.push_back(with(on("moe-combine", "kern_moe_interleave",
                                  {threads_for(latent, 8, 512), 1, 1}, {m::Expr::of_var(kTokens)}),
                               {h, out(Dtype::bf16), i, i},
                               {param(kZ), scratch("x"), param(kWidth), param(kRows)}));
  each(&CudaTarget::moe_up);
  each(&CudaTarget::moe_down);
  body.launches.push_back(with(on("moe-combine", "kern_moe_combine",
                                  {threads_for(latent, 8, 512), 1, 1}, {m::Expr::of_var(kTokens)}),
                               {h, n, in(Dtype::f32), out(Dtype::f32), i, i, i, i},
                               {scratch("y"), scratch("place"), param(kWeights), param(kPartial),
                                param(kWidth), param(kTopK), param(kStride), param(kRows)}));
  return body;
}

// ---- all ----

Body CudaTarget::sample() const {
  m::Launch made = on("head-sample", "kern_sample", {512, 1, 1}, {of(8), m::Expr::of_var(kSeqs)},
                      (c_.vocab + 31) / 32 * 16);
  made.cluster = {8, 1, 1};
  return {{}, {std::move(made)}};
}

Body CudaTarget::body(Work work, int64_t sources) const {
  const int64_t row = threads_for(c_.hidden, 8, 1024);
  switch (work) {
    case Work::embed:
      return norm("norm-stream", "kern_embed", row);
    case Work::embed_fed:
      return norm("head-feed", "kern_embed_fed", row);
    case Work::keep_token:
      return {{}, {on("head-feed", "kern_keep", {256, 1, 1}, {of(1)})}};
    case Work::rms:
      return norm("norm-rms", "kern_rms", row);
    case Work::mix_rms:
      return mix("kern_mix_rms", sources);
    case Work::mix_rms_last:
      return mix("kern_mix_rms_last", sources);
    case Work::copy_rows:
      return norm("norm-stream", "kern_copy_rows", row);
    case Work::land:
      return norm("norm-stream", "kern_land", row);
    case Work::land_add:
      return norm("norm-stream", "kern_land_add", row);
    case Work::land_rms:
      return norm("norm-rms", "kern_land_rms", threads_for(c_.latent, 8, 1024));
    case Work::land_moe:
      return norm("norm-stream", "kern_land_moe", row);
    case Work::situ:
      return norm("act-situ", "kern_situ", 256);
    case Work::router:
      return {{}, {on("moe-router", "kern_router", {128, 1, 1}, {blocks_of(kTokens, 4)})}};
    case Work::routed_experts:
      return routed();
    case Work::kda_step:
      return kda_step();
    case Work::kda_rows:
      return kda_rows();
    case Work::kda_rows_snapshot:
      return kda_rows_snapshot();
    case Work::mla_prep:
      return {{},
              {on("mla-prep", "kern_mla_prep", {256, 1, 1}, {m::Expr::of_var(kTokens), of(2)})}};
    case Work::mla_absorb:
      return absorb();
    case Work::mla_attend_step:
      return attend(true);
    case Work::mla_attend_rows:
      return attend(false);
    case Work::mla_merge:
      return merge();
    case Work::join_columns:
      // One row is a vocabulary: enough to fill the machine by itself.
      return {
          {},
          {on("head-join_columns", "kern_join_columns", {256, 1, 1}, {of(4 * kMultiprocessors)})}};
    case Work::argmax:
      return {{}, {on("head-argmax", "kern_argmax", {1024, 1, 1}, {m::Expr::of_var(kSeqs)})}};
    case Work::sample:
      return sample();
  }
  return {};
}

std::string CudaTarget::built_in(BuiltIn built_in) const {
  switch (built_in) {
    case BuiltIn::gemm_bf16:
      return "cublaslt_bf16_tn";
    case BuiltIn::gemm_f32:
      return "cublas_bf16_tn_f32";
    case BuiltIn::allreduce_f32:
      return "nccl_allreduce_f32";
    case BuiltIn::alltoall_f32:
      return "nccl_alltoall_f32";
    case BuiltIn::allgather_f32:
      return "nccl_allgather_f32";
  }
  return {};
}

std::unique_ptr<Target> cuda_target(const Config& config, const Layout& layout, bool plain) {
  return std::make_unique<CudaTarget>(config, layout, plain);
}

}  // namespace k3
