#include <fmt/format.h>

#include "gen/emit.h"
#include "gen/target.h"

namespace k3 {

using m::Dtype;

namespace {

constexpr int64_t kMultiprocessors = 132;  // where a grid is free, it fills this many
constexpr int64_t kTileRowsFew = 8, kTileRowsMany = 64;

m::Literal i32_literal(int64_t value) {
  return {m::Literal::Type::i32, value, 0};
}

m::Launch on(const std::string& module, const std::string& entry, std::vector<int64_t> block,
             std::vector<m::Expr> grid, int64_t shared_bytes = 0) {
  m::Launch made = launch(module, entry, std::move(grid), shared_bytes);
  made.block = std::move(block);
  return made;
}

/// Threads of a block whose threads hold `each` elements of a row of `width`.
int64_t threads_for(int64_t width, int64_t each, int64_t most) {
  const int64_t warps = (width + 32 * each - 1) / (32 * each);
  return std::min(warps * 32, most);
}

m::Expr of(int64_t value) {
  return m::Expr::constant(value);
}

/// Cubins, one a variant of a kernel; geometry as the head of each kernel's source says.
class CudaTarget final : public Target {
 public:
  CudaTarget(const Config& config, const Layout& layout, bool plain)
      : c_(config), l_(layout), is_plain_(plain) {}

  m::Device device() const override { return m::Device::cuda; }
  std::vector<std::string> extensions() const override {
    return is_plain_ ? std::vector<std::string>{} : std::vector<std::string>{"meta", "sampling"};
  }
  Body body(Work work, int64_t sources) const override;
  std::string built_in(BuiltIn built_in) const override;
  bool has_mailboxes() const override { return !is_plain_; }
  bool has_sampling() const override { return !is_plain_; }
  int64_t row_elements() const override { return 8; }

 private:
  int64_t kda_heads() const { return c_.kda_heads / l_.ranks; }
  std::string kda(const char* name, bool taps = true) const;
  std::string mla(const char* name, std::initializer_list<const char*> defines) const;

  Body norm(const char* module, const char* entry, int64_t threads) const;
  m::Launch kda_prep() const;
  m::Launch kda_recurrence(bool snapshot) const;
  m::Launch kda_windows(bool snapshot) const;
  m::Launch kda_out() const;
  Body kda_rows(bool snapshot) const;
  Body kda_step() const;
  Body routed() const;
  m::Launch moe_plan(int64_t tile_rows) const;
  m::Launch moe_up(int64_t tile_rows) const;
  m::Launch moe_down(int64_t tile_rows) const;
  m::Launch only_for(m::Launch launch, int64_t tile_rows) const;
  Body attend(bool one_row) const;
  Body merge() const;

  const Config& c_;
  const Layout l_;
  const bool is_plain_;
};

std::string CudaTarget::kda(const char* name, bool taps) const {
  std::string key = fmt::format("kda-{}+KDA_DIM={}", name, c_.kda_dim);
  if (taps) key += fmt::format("+KDA_TAPS={}", c_.taps);
  return key;
}

std::string CudaTarget::mla(const char* name, std::initializer_list<const char*> defines) const {
  std::string key = fmt::format("mla-{}", name);
  for (const std::string_view define : defines) {
    const int64_t value = define == "MLA_LORA"    ? c_.kv_lora
                          : define == "MLA_ROPE"  ? c_.rope
                          : define == "MLA_NOPE"  ? c_.nope
                          : define == "MLA_HEADS" ? c_.heads
                                                  : c_.v_dim;
    key += fmt::format("+{}={}", define, value);
  }
  return key;
}

Body CudaTarget::norm(const char* module, const char* entry, int64_t threads) const {
  return {{}, {on(module, entry, {threads, 1, 1}, {m::Expr::of_var(kTokens)})}};
}

// ---- KDA ----

m::Launch CudaTarget::kda_prep() const {
  const m::ParamType f = in(Dtype::f32), o = out(Dtype::f32), i = p_i32(), w = in(Dtype::bf16),
                     n = in(Dtype::i32), g = p_f32();
  return with(
      on(kda("prep"), "kern_kda_prep", {c_.kda_dim, 1, 1},
         {blocks_of(kTokens, 32), of(kda_heads())}),
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

m::Launch CudaTarget::kda_recurrence(bool snapshot) const {
  const m::ParamType f = in(Dtype::f32), i = p_i32(), n = in(Dtype::i32);
  m::Launch made = with(
      on(kda("recurrence"), "kern_kda_recurrence", {256, 1, 1},
         {m::Expr::of_var(kSeqs), of(kda_heads()), of(c_.kda_dim / 32)}),
      {f, f, f, f, f, inout_state(), n, n, out(Dtype::f32), i, i, i},
      {scratch("q"), scratch("k"), scratch("v"), scratch("alpha"), scratch("beta"), param(kState),
       param(kLines), param(kCuSeqlens), scratch("o"), param(kHeads), param(kDim), param(kTaps)});
  if (snapshot) add_snapshot(made);
  return made;
}

m::Launch CudaTarget::kda_windows(bool snapshot) const {
  const m::ParamType i = p_i32(), n = in(Dtype::i32);
  m::Launch made = with(on(kda("windows"), "kern_kda_windows", {c_.kda_dim, 1, 1},
                           {m::Expr::of_var(kSeqs), of(kda_heads())}),
                        {in(Dtype::bf16), inout_state(), n, n, i, i, i, i},
                        {param(kX), param(kState), param(kLines), param(kCuSeqlens), param(kHeads),
                         param(kDim), param(kTaps), param(kXStride)});
  if (snapshot) add_snapshot(made);
  return made;
}

m::Launch CudaTarget::kda_out() const {
  const m::ParamType i = p_i32();
  return with(
      on(kda("out", false), "kern_kda_out", {256, 1, 1},
         {m::Expr::of_var(kTokens), of((kda_heads() + 7) / 8)}),
      {in(Dtype::f32), in(Dtype::bf16), in(Dtype::f32), out(Dtype::bf16), i, i, i, i, p_f32(), i},
      {scratch("o"), param(kX), param(kONorm), param(kY), param(kHeads), param(kDim),
       param(kXStride), param(kZColumn), param(kEps), param(kKdaRows)});
}

Body CudaTarget::kda_rows(bool snapshot) const {
  Body body;
  const m::Dim rows = m::Dim::of_var(kTokens), inner = m::Dim::of(kda_heads() * c_.kda_dim);
  for (const char* name : {"q", "k", "v", "alpha", "o"})
    body.scratch.push_back({name, Dtype::f32, {rows, inner}});
  body.scratch.push_back({"beta", Dtype::f32, {rows, m::Dim::of(kda_heads())}});
  body.launches = {kda_prep(), kda_recurrence(snapshot), kda_windows(snapshot), kda_out()};
  return body;
}

/// One launch: the step's rows are few and each one's state is read and written once.
Body CudaTarget::kda_step() const {
  return {{},
          {on(kda("decode"), "kern_kda_decode", {std::min<int64_t>(8 * c_.kda_dim, 512), 1, 1},
              {m::Expr::of_var(kSeqs), of(kda_heads())})}};
}

// ---- routed experts ----

/// Rows from which an expert's share outgrows the small tile: the two kinds of tile take turns.
m::Launch CudaTarget::only_for(m::Launch launch, int64_t tile_rows) const {
  const int64_t few = std::max<int64_t>(kTileRowsFew * c_.experts / c_.top_k / 2, 1);
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

m::Launch CudaTarget::moe_up(int64_t tile_rows) const {
  const m::ParamType i = p_i32(), n = in(Dtype::i32), h = in(Dtype::bf16), u = in(Dtype::u8),
                     e = in(Dtype::fp8e8m0), f = p_f32();
  const bool few = tile_rows == kTileRowsFew;
  return only_for(
      with(on(fmt::format("moe-experts+ROWS={}", tile_rows), "kern_moe_up", {128, 1, 1},
              {of(kMultiprocessors * (few ? 4 : 3))}, few ? 2560 : 65536),
           {h, n, n, n, n, u, e, u, e, out(Dtype::bf16), i, i, f, f},
           {scratch("x"), scratch("row_of"), scratch("first"), scratch("tiles"),
            scratch("tile_count"), param(kW1), param(kS1), param(kW3), param(kS3), scratch("act"),
            param(kWidth), param(kInter), param(kBeta), param(kLinearBeta)}),
      tile_rows);
}

m::Launch CudaTarget::moe_down(int64_t tile_rows) const {
  const m::ParamType i = p_i32(), n = in(Dtype::i32), h = in(Dtype::bf16), u = in(Dtype::u8),
                     e = in(Dtype::fp8e8m0);
  const bool few = tile_rows == kTileRowsFew;
  return only_for(with(on(fmt::format("moe-experts+ROWS={}", tile_rows), "kern_moe_down",
                          {128, 1, 1}, {of(kMultiprocessors * (few ? 4 : 3))}, few ? 2560 : 65536),
                       {h, n, n, n, u, e, out(Dtype::bf16), i, i},
                       {scratch("act"), scratch("first"), scratch("tiles"), scratch("tile_count"),
                        param(kW2), param(kS2), scratch("y"), param(kWidth), param(kInter)}),
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
                  {"tiles", Dtype::i32, {rows, picks, m::Dim::of(2)}},
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

// ---- MLA ----

Body CudaTarget::attend(bool one_row) const {
  (void)one_row;
  return {{},
          {on("mla-attend_any", "kern_mla_attend_any", {128, 1, 1},
              {m::Expr::of_var(kTokens), of(c_.heads)})}};
}

Body CudaTarget::merge() const {
  Body body;
  for (const int64_t rows : {int64_t{16}, int64_t{64}}) {
    m::Launch made =
        on(mla("merge", {"MLA_LORA", "MLA_NOPE", "MLA_V"}) + fmt::format("+MLA_ROWS={}", rows),
           "kern_mla_merge", {256, 1, 1}, {of(c_.heads / l_.ranks), blocks_of(kTokens, rows)},
           rows * c_.kv_lora * 2 + 256 * c_.v_dim);
    m::When when;
    when.var = kTokens;
    if (rows == 16)
      when.max = 64;
    else
      when.min = 65;
    if (l_.rows_max > 64) made.when = when;
    if (rows == 16 || l_.rows_max > 64) body.launches.push_back(std::move(made));
  }
  return body;
}

// ---- all ----

Body CudaTarget::body(Work work, int64_t sources) const {
  const int64_t row = threads_for(c_.hidden, 8, 1024), half_row = threads_for(c_.hidden, 16, 448);
  const std::string mix = fmt::format("norm-mix_rms+BANK={}", sources);
  switch (work) {
    case Work::embed:
      return norm("norm-stream", "kern_embed", row);
    case Work::rms:
      return norm("norm-rms", "kern_rms", row);
    case Work::mix_rms:
      return norm(mix.c_str(), "kern_mix_rms", half_row);
    case Work::mix_rms_last:
      return {{}, {on(mix, "kern_mix_rms_last", {half_row, 1, 1}, {m::Expr::of_var(kSeqs)})}};
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
      return kda_rows(false);
    case Work::kda_rows_snapshot:
      return kda_rows(true);
    case Work::mla_prep:
      return {{},
              {on("mla-prep", "kern_mla_prep", {256, 1, 1}, {m::Expr::of_var(kTokens), of(2)})}};
    case Work::mla_absorb:
      return {{},
              {on(mla("absorb", {"MLA_LORA", "MLA_ROPE", "MLA_NOPE", "MLA_V"}), "kern_mla_absorb",
                  {256, 1, 1},
                  {of(c_.heads), blocks_of(kTokens, 64),
                   of(c_.kv_lora / std::min<int64_t>(c_.kv_lora, 128))})}};
    case Work::mla_attend_step:
      return attend(true);
    case Work::mla_attend_rows:
      return attend(false);
    case Work::mla_merge:
      return merge();
    case Work::join_columns:
      return {
          {},
          {on("head-join_columns", "kern_join_columns", {256, 1, 1}, {m::Expr::of_var(kSeqs)})}};
    case Work::argmax:
      return {{}, {on("head-argmax", "kern_argmax", {1024, 1, 1}, {m::Expr::of_var(kSeqs)})}};
    case Work::sample:
      return {{}, {on("head-sample", "kern_sample", {1024, 1, 1}, {m::Expr::of_var(kSeqs)})}};
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

}  // namespace

std::unique_ptr<Target> cuda_target(const Config& config, const Layout& layout, bool plain) {
  return std::make_unique<CudaTarget>(config, layout, plain);
}

}  // namespace k3
