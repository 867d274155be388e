#include "gen/emit.h"

#include <fmt/format.h>

#include "gen/names.h"

namespace k3 {

using m::Dtype;

m::CallArg Emitter::rank() const {
  if (l_.ranks == 1) return i32(0);
  return m::RankRef{kGroup};
}

std::string Emitter::at(int64_t layer, const std::string& name) const {
  return fmt::format("l{}.{}", layer, name);
}

// ---- what a manifest declares ----

void Emitter::declare(bool snapshot, bool feedback) {
  m::Manifest& manifest = b_.manifest();
  manifest.vars.push_back({kTokens, l_.rows_max, m::Axis::rows});
  manifest.vars.push_back({kSeqs, l_.seqs_max, m::Axis::groups});
  if (l_.ranks > 1) manifest.groups.push_back({kGroup, l_.ranks});
  states();
  inputs(snapshot);
  if (feedback) fed_inputs();
  if (t_.has_sampling()) sampling_inputs();
}

void Emitter::states() {
  const int64_t heads = c_.kda_heads, dim = c_.kda_dim, windows = 3 * (c_.taps - 1);
  for (int64_t layer = 0; layer < c_.layers; ++layer) {
    m::State state;
    m::Shard shard;
    shard.group = kGroup;
    if (c_.is_mla[layer]) {
      state.name = fmt::format("kv.{}", layer);
      state.size = m::State::Size::per_token;
      state.bytes = c_.kv_width() * 2;
      shard.by = m::Shard::By::position;
    } else {
      state.name = fmt::format("kda.{}", layer);
      state.size = m::State::Size::per_seq;
      shard.by = m::Shard::By::heads;
      shard.segments = {{1, heads * dim * dim * 4}, {windows, heads * dim * 2}};
      state.bytes = (heads * dim * dim * 4 + windows * heads * dim * 2) / l_.ranks;
    }
    if (l_.ranks > 1) state.shard = shard;
    b_.manifest().states.push_back(state);
  }
}

namespace {

m::Buffer input(const std::string& name, Dtype dtype, std::vector<m::Dim> shape,
                std::optional<m::Fill> fill) {
  m::Buffer buffer;
  buffer.name = name;
  buffer.dtype = dtype;
  buffer.shape = std::move(shape);
  buffer.kind = m::BufferKind::input;
  buffer.fill = fill;
  return buffer;
}

m::Domain bounds(int64_t min, int64_t max) {
  m::Domain domain;
  domain.min = m::Bound(min);
  domain.max = m::Bound(max);
  return domain;
}

m::Domain index_into(const m::State& state, std::optional<int64_t> stride) {
  m::Domain domain;
  domain.index_into = state.name;
  domain.stride = stride;
  return domain;
}

const m::State* first_state(const m::Manifest& manifest, m::State::Size size) {
  for (const m::State& state : manifest.states)
    if (state.size == size) return &state;
  return nullptr;
}

}  // namespace

void Emitter::inputs(bool snapshot) {
  const m::Dim rows = m::Dim::of_var(kTokens), seqs = m::Dim::of_var(kSeqs);
  const auto add = [this](m::Buffer buffer, m::Domain domain) {
    buffer.domain = std::move(domain);
    b_.buffer(std::move(buffer));
  };
  add(input("token", Dtype::i32, {rows}, m::Fill::token), bounds(0, c_.vocab - 1));
  m::Domain sums = bounds(0, l_.rows_max);
  sums.monotone = true;
  add(input("cu_seqlens", Dtype::i32, {m::Dim::of(l_.seqs_max + 1)}, m::Fill::cu_seqlens), sums);

  const m::State* kv = first_state(b_.manifest(), m::State::Size::per_token);
  const m::State* line = first_state(b_.manifest(), m::State::Size::per_seq);
  if (kv != nullptr || (snapshot && line != nullptr))
    add(input("seq_len", Dtype::i32, {seqs}, m::Fill::seq_len), bounds(1, l_.ctx_max));
  if (kv != nullptr) {
    const int64_t tokens_a_page = kPageTokens * l_.ranks;
    const int64_t width = (l_.ctx_max + tokens_a_page - 1) / tokens_a_page;
    add(input("slot", Dtype::i32, {rows}, m::Fill::slot), index_into(*kv, {}));
    add(input("pages", Dtype::i32, {seqs, m::Dim::of(width)}, {}), index_into(*kv, kPageTokens));
  }
  if (line != nullptr) {
    add(input("lines", Dtype::i32, {m::Dim::of(1), seqs}, {}), index_into(*line, line->bytes));
    if (snapshot)
      add(input("snapshot", Dtype::i32, {seqs}, m::Fill::snapshot), index_into(*line, line->bytes));
  }
}

/// A step's rows take their tokens from the caller, or from the rows of the step before.
void Emitter::fed_inputs() {
  m::Buffer from = input("fed_from", Dtype::i32, {m::Dim::of_var(kTokens)}, m::Fill::fed_from);
  from.domain = bounds(-1, l_.seqs_max - 1);
  b_.buffer(std::move(from));
  m::Buffer kept;
  kept.name = "kept_token";
  kept.dtype = Dtype::i32;
  kept.shape = {m::Dim::of(l_.seqs_max)};
  kept.kind = m::BufferKind::carry;
  b_.buffer(std::move(kept));
  feeds_ = true;
}

void Emitter::sampling_inputs() {
  const m::Dim seqs = m::Dim::of_var(kSeqs);
  b_.buffer(input("temperature", Dtype::f32, {seqs}, m::Fill::temperature));
  b_.buffer(input("top_p", Dtype::f32, {seqs}, m::Fill::top_p));
  b_.buffer(input("top_k", Dtype::i32, {seqs}, m::Fill::top_k));
  b_.buffer(input("min_p", Dtype::f32, {seqs}, m::Fill::min_p));
  b_.buffer(input("seed", Dtype::i64, {seqs}, m::Fill::seed));
  b_.buffer(input("draw", Dtype::i32, {seqs}, m::Fill::draw));
}

// ---- the skeleton ----

void Emitter::program(Rows rows) {
  const bool fed = feeds_ && rows == Rows::one;
  embed(fed);
  for (int64_t l = 0; l < c_.layers; ++l) layer(l, rows);
  head();
  if (!fed) return;
  b_.kernel_op("keep_token", {in(Dtype::i32), out(Dtype::i32), p_i32()}, t_.body(Work::keep_token));
  b_.call("keep_token", {buf("next_token"), buf("kept_token"), var(kSeqs)});
}

/// P is `hidden` at a layer's first call and `mid` after its attention, never changed in place; the
/// bank's rows are `bank.0` …. All ranks' parts are summed before an add, so nothing is pending.
void Emitter::layer(int64_t l, Rows rows) {
  b_.label(fmt::format("layer.{}", l));
  mix(l, {"hidden", "self_attention_res", "input_layernorm"}, c_.bank_before(l));
  if (c_.is_push(l)) push(c_.bank_before(l));
  if (c_.is_mla[l])
    mla(l, rows);
  else
    kda(l, rows);
  if (c_.is_push(l))
    land();
  else
    land_add("hidden", "mid");
  b_.label(fmt::format("layer.{}.mlp", l));
  mix(l, {"mid", "mlp_res", "post_attention_layernorm"}, c_.bank_after(l));
  if (c_.is_dense(l))
    dense(l);
  else
    moe(l);
}

void Emitter::embed(bool fed) {
  b_.weight("embed", Dtype::bf16, {c_.vocab, c_.hidden},
            {whole(global_tensor("model.embed_tokens.weight"))});
  b_.workspace("hidden", Dtype::bf16, {kTokens, c_.hidden});
  b_.label("embed");
  if (fed) {
    const m::ParamType n = in(Dtype::i32);
    b_.kernel_op("embed_fed", {n, n, n, in(Dtype::bf16), out(Dtype::bf16), p_i32(), p_i32()},
                 t_.body(Work::embed_fed));
    b_.call("embed_fed", {buf("token"), buf("fed_from"), buf("kept_token"), buf("embed"),
                          buf("hidden"), i32(c_.hidden), var(kTokens)});
    return;
  }
  b_.kernel_op("embed", {in(Dtype::i32), in(Dtype::bf16), out(Dtype::bf16), p_i32(), p_i32()},
               t_.body(Work::embed));
  b_.call("embed", {buf("token"), buf("embed"), buf("hidden"), i32(c_.hidden), var(kTokens)});
}

std::string Emitter::norm_weight(const std::string& name, const std::string& tensor,
                                 int64_t width) {
  b_.weight(name, Dtype::bf16, {width}, {whole(tensor)});
  return name;
}

void Emitter::mix(int64_t layer, const MixNames& names, int64_t sources) {
  const auto& [stream, query, norm] = names;
  const int64_t width = c_.hidden;
  b_.workspace("normed", Dtype::bf16, {kTokens, width});
  const std::string weight =
      norm_weight(at(layer, norm), layer_tensor(layer, norm + ".weight"), width);
  if (sources == 0) {  // one source has weight one: only the norm is left
    b_.kernel_op("rms",
                 {in(Dtype::bf16), in(Dtype::bf16), out(Dtype::bf16), p_f32(), p_i32(), p_i32()},
                 t_.body(Work::rms));
    b_.call("rms",
            {buf(stream), buf(weight), buf("normed"), f32(c_.eps), i32(width), var(kTokens)});
    return;
  }
  const std::string op = fmt::format("mix_rms.{}", sources);
  std::vector<m::ParamType> params(4, in(Dtype::bf16));
  params.insert(params.end(), {out(Dtype::bf16), p_f32(), p_i32(), p_i32(), p_i32()});
  params.insert(params.end(), sources, in(Dtype::bf16));
  b_.kernel_op(op, params, t_.body(Work::mix_rms, sources));
  const std::string score_norm =
      norm_weight(at(layer, query + "_norm"), layer_tensor(layer, query + "_norm.weight"), width);
  const std::string score_proj =
      norm_weight(at(layer, query + "_proj"), layer_tensor(layer, query + "_proj.weight"), width);
  std::vector<m::CallArg> args = {buf(stream), buf(score_norm), buf(score_proj),
                                  buf(weight), buf("normed"),   f32(c_.eps),
                                  i32(width),  var(kTokens),    i32(sources)};
  for (int64_t j = 0; j < sources; ++j) args.push_back(buf(fmt::format("bank.{}", j)));
  b_.call(op, std::move(args));
}

void Emitter::push(int64_t row) {
  const std::string bank = fmt::format("bank.{}", row);
  b_.workspace(bank, Dtype::bf16, {kTokens, c_.hidden});
  b_.kernel_op("push", {in(Dtype::bf16), out(Dtype::bf16), p_i32(), p_i32()},
               t_.body(Work::copy_rows));
  b_.call("push", {buf("hidden"), buf(bank), i32(c_.hidden), var(kTokens)});
}

void Emitter::gemm(const std::string& a, const std::string& w, const std::string& c, int64_t n,
                   int64_t k) {
  b_.extern_op("gemm",
               {in(Dtype::bf16), in(Dtype::bf16), out(Dtype::bf16), p_i32(), p_i32(), p_i32()},
               t_.built_in(BuiltIn::gemm_bf16));
  b_.call("gemm", {buf(a), buf(w), buf(c), var(kTokens), i32(n), i32(k)});
}

void Emitter::gemm_f32(const std::string& a, const std::string& w, const std::string& c, int64_t n,
                       int64_t k) {
  b_.extern_op("gemm_f32",
               {in(Dtype::bf16), in(Dtype::bf16), out(Dtype::f32), p_i32(), p_i32(), p_i32()},
               t_.built_in(BuiltIn::gemm_f32));
  b_.call("gemm_f32", {buf(a), buf(w), buf(c), var(kTokens), i32(n), i32(k)});
}

/// mid = `partial`, summed over the ranks and rounded: the stream starts anew.
void Emitter::land() {
  allreduce("partial", c_.hidden);
  b_.workspace("mid", Dtype::bf16, {kTokens, c_.hidden});
  b_.kernel_op("land", {in(Dtype::f32), out(Dtype::bf16), p_i32(), p_i32()}, t_.body(Work::land));
  b_.call("land", {buf("partial"), buf("mid"), i32(c_.hidden), var(kTokens)});
}

/// to = from + `partial`, summed over the ranks and rounded before it is added.
void Emitter::land_add(const std::string& from, const std::string& to) {
  allreduce("partial", c_.hidden);
  b_.workspace(to, Dtype::bf16, {kTokens, c_.hidden});
  b_.kernel_op("land_add", {in(Dtype::f32), in(Dtype::bf16), out(Dtype::bf16), p_i32(), p_i32()},
               t_.body(Work::land_add));
  b_.call("land_add", {buf("partial"), buf(from), buf(to), i32(c_.hidden), var(kTokens)});
}

}  // namespace k3
