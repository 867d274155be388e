#include <fmt/format.h>

#include "gen/emit.h"
#include "gen/target.h"

namespace k3 {

using m::Dtype;

namespace {

constexpr int64_t kMultiprocessors = 132;  // where a grid is free, it fills this many
constexpr int64_t kSharedOfMultiprocessor = 228 * 1024;
constexpr int64_t kTileRowsFew = 8, kTileRowsMany = 64;
constexpr int64_t kSplitRowsMax = 256;  // rows that attend_split takes
constexpr int64_t kMergeFewMax = 64;    // rows up to which merge takes its small block

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
  std::string kda(const char* name) const;
  /// A size that a variant is built for, and the one it has unless a key says otherwise.
  struct Define {
    const char* name;
    int64_t value, usual;
  };
  std::string mla(const char* name, std::initializer_list<Define> defines) const;
  Define lora() const { return {"MLA_LORA", c_.kv_lora, 512}; }
  Define rope() const { return {"MLA_ROPE", c_.rope, 64}; }
  Define nope() const { return {"MLA_NOPE", c_.nope, 128}; }
  Define v() const { return {"MLA_V", c_.v_dim, 128}; }

  Body mix(const char* entry, int64_t sources) const;
  Body norm(const char* module, const char* entry, int64_t threads) const;
  m::Launch kda_prep() const;
  int64_t kda_record_bytes() const { return 132 * c_.kda_dim + 1024; }
  m::Expr kda_slots() const;
  m::Launch kda_chunk() const;
  m::Launch kda_scan() const;
  m::Launch kda_recurrence() const;
  m::Launch kda_windows(bool snapshot) const;
  m::Launch kda_out() const;
  Body kda_rows() const;
  Body kda_rows_snapshot() const;
  Body kda_step() const;
  Body routed() const;
  m::Launch moe_plan(int64_t tile_rows) const;
  m::Launch moe_up(int64_t tile_rows) const;
  m::Launch moe_down(int64_t tile_rows) const;
  m::Launch only_for(m::Launch launch, int64_t tile_rows) const;
  Body attend(bool one_row) const;
  Body attend_rows() const;
  Body attend_split() const;
  m::Pack cache_map() const;
  Body absorb() const;
  Body merge() const;
  Body sample() const;

  const Config& c_;
  const Layout l_;
  const bool is_plain_;
};

/// Defines that have the released model's value are left out of a key.
std::string CudaTarget::kda(const char* name) const {
  std::string key = fmt::format("kda-{}", name);
  if (c_.kda_dim != 128) key += fmt::format("+KDA_DIM={}", c_.kda_dim);
  if (c_.taps != 4) key += fmt::format("+KDA_TAPS={}", c_.taps);
  return key;
}

std::string CudaTarget::mla(const char* name, std::initializer_list<Define> defines) const {
  std::string key = fmt::format("mla-{}", name);
  for (const Define& define : defines)
    if (define.value != define.usual) key += fmt::format("+{}={}", define.name, define.value);
  return key;
}

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

m::Launch CudaTarget::kda_recurrence() const {
  const m::ParamType f = in(Dtype::f32), i = p_i32(), n = in(Dtype::i32);
  return with(
      on(kda("recurrence"), "kern_kda_recurrence", {256, 1, 1},
         {m::Expr::of_var(kSeqs), of(kda_heads()), of(c_.kda_dim / 32)}),
      {f, f, f, f, f, inout_state(), n, n, out(Dtype::f32), i, i, i},
      {scratch("q"), scratch("k"), scratch("v"), scratch("alpha"), scratch("beta"), param(kState),
       param(kLines), param(kCuSeqlens), scratch("o"), param(kHeads), param(kDim), param(kTaps)});
}

/// Chunks of 16 tokens that calls of these bounds have at most.
m::Expr CudaTarget::kda_slots() const {
  return m::Expr::add(blocks_of(kTokens, 16), m::Expr::mul(m::Expr::of_var(kSeqs), 2));
}

m::Launch CudaTarget::kda_chunk() const {
  const m::ParamType f = in(Dtype::f32), i = p_i32(), w = in(Dtype::bf16), n = in(Dtype::i32),
                     g = p_f32();
  return with(
      on(kda("chunk"), "kern_kda_chunk", {c_.kda_dim, 1, 1}, {kda_slots(), of(kda_heads())}),
      {w, w, f, f, f, f, f, in_state(), n, n, n, out(Dtype::u8), i, i, i, i, i, g, g, g, i, i},
      {param(kX),       param(kR),          param(kConvQ),      param(kConvK), param(kConvV),
       param(kALog),    param(kDtBias),     param(kState),      param(kLines), param(kCuSeqlens),
       param(kSeqLen),  scratch("records"), param(kHeads),      param(kDim),   param(kTaps),
       param(kXStride), param(kBColumn),    param(kLowerBound), param(kL2),    param(kQScale),
       param(kKdaRows), param(kSequences)});
}

m::Launch CudaTarget::kda_scan() const {
  const m::ParamType i = p_i32(), n = in(Dtype::i32);
  const int64_t warps = c_.kda_dim == 128 ? 4 : 2;
  return with(on(fmt::format("{}+KDA_WARPS={}", kda("scan"), warps), "kern_kda_scan_snapshot",
                 {32 * warps + 32, 1, 1},
                 {m::Expr::of_var(kSeqs), of(kda_heads()), of(c_.kda_dim / (16 * warps))},
                 4 * kda_record_bytes() + 128),
              {in(Dtype::u8), inout_state(), n, n, out(Dtype::f32), i, i, i, n, n, i},
              {scratch("records"), param(kState), param(kLines), param(kCuSeqlens), scratch("o"),
               param(kHeads), param(kDim), param(kTaps), param(kSnapshot), param(kSeqLen),
               param(kBoundary)});
}

m::Launch CudaTarget::kda_windows(bool snapshot) const {
  const m::ParamType i = p_i32(), n = in(Dtype::i32);
  m::Launch made = with(on(kda("windows"), "kern_kda_windows", {c_.kda_dim, 1, 1},
                           {m::Expr::of_var(kSeqs), of(kda_heads())}),
                        {in(Dtype::bf16), inout_state(), n, n, i, i, i, i},
                        {param(kX), param(kState), param(kLines), param(kCuSeqlens), param(kHeads),
                         param(kDim), param(kTaps), param(kXStride)});
  if (!snapshot) return made;
  made.entry += "_snapshot";
  made.params->insert(made.params->end(), {in(Dtype::i32), in(Dtype::i32), p_i32()});
  made.args->insert(made.args->end(), {param(kSnapshot), param(kSeqLen), param(kBoundary)});
  return made;
}

m::Launch CudaTarget::kda_out() const {
  const m::ParamType i = p_i32();
  return with(
      on(kda("out"), "kern_kda_out", {256, 1, 1},
         {m::Expr::of_var(kTokens), of((kda_heads() + 7) / 8)}),
      {in(Dtype::f32), in(Dtype::bf16), in(Dtype::f32), out(Dtype::bf16), i, i, i, i, p_f32(), i},
      {scratch("o"), param(kX), param(kONorm), param(kY), param(kHeads), param(kDim),
       param(kXStride), param(kZColumn), param(kEps), param(kKdaRows)});
}

/// Token by token: for a manifest without snapshots, whose op lacks the sequences' lengths.
Body CudaTarget::kda_rows() const {
  Body body;
  const m::Dim rows = m::Dim::of_var(kTokens), inner = m::Dim::of(kda_heads() * c_.kda_dim);
  for (const char* name : {"q", "k", "v", "alpha", "o"})
    body.scratch.push_back({name, Dtype::f32, {rows, inner}});
  body.scratch.push_back({"beta", Dtype::f32, {rows, m::Dim::of(kda_heads())}});
  body.launches = {kda_prep(), kda_recurrence(), kda_windows(false), kda_out()};
  return body;
}

/// In chunks of 16 tokens.
Body CudaTarget::kda_rows_snapshot() const {
  const int64_t slots = (l_.rows_max + 15) / 16 + 2 * l_.seqs_max;
  Body body;
  body.scratch = {
      {"records",
       Dtype::u8,
       {m::Dim::of(slots), m::Dim::of(kda_heads()), m::Dim::of(kda_record_bytes())}},
      {"o", Dtype::f32, {m::Dim::of_var(kTokens), m::Dim::of(kda_heads() * c_.kda_dim)}}};
  body.launches = {kda_chunk(), kda_scan(), kda_windows(true), kda_out()};
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

/// Where a variant is pinned for the sizes, tensor cores; the plain form serves any.
Body CudaTarget::attend(bool one_row) const {
  const bool tensor_cores = c_.kv_lora == 512 && c_.rope == 64 && (c_.heads == 96 || c_.heads == 8);
  if (!tensor_cores)
    return {{},
            {on("mla-attend_any", "kern_mla_attend_any", {128, 1, 1},
                {m::Expr::of_var(kTokens), of(c_.heads)})}};
  return one_row && l_.rows_max <= kSplitRowsMax ? attend_split() : attend_rows();
}

namespace {

enum AttendParam : int64_t { kCache = 1, kCu = 3, kSeqLens = 4, kPart = 5, kHeadCount = 6 };
enum AttendRank : int64_t { kOwnRank = 12, kRankCount, kRowCount, kSeqCount, kAttendParams };

/// The op's own parameters in order.
std::vector<m::LaunchArg> attend_args() {
  std::vector<m::LaunchArg> args;
  for (int64_t i = 0; i < kAttendParams; ++i) args.push_back(param(i));
  return args;
}

std::vector<m::ParamType> attend_params() {
  const m::ParamType w = in(Dtype::bf16), n = in(Dtype::i32), i = p_i32();
  return {w, in_state(), n, n, n, out(Dtype::f32), i, i, i, i, i, p_f32(), i, i, i, i};
}

}  // namespace

/// The latent rows of every page as TMA sees them.
m::Pack CudaTarget::cache_map() const {
  m::Tensormap map;
  map.param = kCache;
  map.dtype = "bf16";
  map.dims = {c_.kv_width(), 0};
  map.strides = {c_.kv_width() * 2};
  map.box = {64, 64};
  map.swizzle = 128;
  m::Pack pack;
  pack.size = 128;
  pack.fields.push_back({0, {}, map});
  return pack;
}

Body CudaTarget::attend_rows() const {
  std::vector<m::ParamType> params = attend_params();
  std::vector<m::LaunchArg> args = attend_args();
  params.push_back(p_bytes(128));
  args.push_back(cache_map());
  return {{},
          {with(on(fmt::format("mla-attend+MLA_HEADS={}", c_.heads), "kern_mla_attend", {384, 1, 1},
                   {m::Expr::of_var(kTokens)}, c_.heads == 96 ? 228544 : 121024),
                std::move(params), std::move(args))}};
}

Body CudaTarget::attend_split() const {
  std::vector<m::ParamType> params = attend_params();
  std::vector<m::LaunchArg> args = attend_args();
  params.insert(params.end(), {out(Dtype::f32), p_bytes(128)});
  args.insert(args.end(), {scratch("segments"), cache_map()});
  const std::string module = fmt::format("mla-attend_split+MLA_HEADS={}", c_.heads);
  m::Launch split = with(
      on(module, "kern_mla_attend_split", {384, 1, 1}, {of(120)}, c_.heads == 96 ? 231616 : 124096),
      std::move(params), std::move(args));
  split.cluster = {4, 1, 1};
  const m::ParamType n = in(Dtype::i32), i = p_i32();
  m::Launch join = with(
      on(module, "kern_mla_attend_join", {128, 1, 1}, {m::Expr::of_var(kTokens), of(c_.heads)}),
      {in(Dtype::f32), n, n, inout(Dtype::f32), i, i, i, i, i},
      {scratch("segments"), param(kCu), param(kSeqLens), param(kPart), param(kHeadCount),
       param(kOwnRank), param(kRankCount), param(kRowCount), param(kSeqCount)});
  return {{{"segments",
            Dtype::f32,
            {m::Dim::of_var(kTokens), m::Dim::of(30), m::Dim::of(c_.heads),
             m::Dim::of(c_.kv_lora + 2)}}},
          {std::move(split), std::move(join)}};
}

Body CudaTarget::absorb() const {
  const int64_t columns = std::min<int64_t>(c_.kv_lora, 128);
  return {{},
          {on(mla("absorb", {lora(), rope(), nope(), v()}), "kern_mla_absorb", {256, 1, 1},
              {of(c_.heads), blocks_of(kTokens, 256), of(c_.kv_lora / columns)},
              256 * std::max(c_.nope, columns) + 2 * c_.nope * columns)}};
}

Body CudaTarget::merge() const {
  Body body;
  for (const int64_t rows : {int64_t{16}, int64_t{64}}) {
    const bool few = rows == 16;
    if (!few && l_.rows_max <= kMergeFewMax) break;
    const int64_t z = few && c_.v_dim > 64 ? 2 : 1;
    const int64_t steps = few ? c_.kv_lora / 64 : std::min<int64_t>(c_.kv_lora / 64, 3);
    m::Launch made = on(
        mla("merge", {lora(), rope(), nope(), v()}) + fmt::format("+MLA_ROWS={}", rows),
        "kern_mla_merge", {256, 1, 1}, {of(c_.heads / l_.ranks), blocks_of(kTokens, rows), of(z)},
        rows * c_.kv_lora * 2 + 128 * steps * (c_.v_dim / z));
    if (l_.rows_max > kMergeFewMax) {
      m::When when;
      when.var = kTokens;
      if (few)
        when.max = kMergeFewMax;
      else
        when.min = kMergeFewMax + 1;
      made.when = when;
    }
    body.launches.push_back(std::move(made));
  }
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
      return {
          {},
          {on("head-join_columns", "kern_join_columns", {256, 1, 1}, {m::Expr::of_var(kSeqs)})}};
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

}  // namespace

std::unique_ptr<Target> cuda_target(const Config& config, const Layout& layout, bool plain) {
  return std::make_unique<CudaTarget>(config, layout, plain);
}

}  // namespace k3
