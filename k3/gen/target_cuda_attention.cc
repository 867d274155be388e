#include <fmt/format.h>

#include "gen/target_cuda.h"

namespace k3 {

using m::Dtype;

namespace {

constexpr int64_t kSplitRowsMax = 256;  // rows that attend_split takes
constexpr int64_t kMergeFewMax = 64;    // rows up to which merge takes its small block

}  // namespace

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

}  // namespace k3
