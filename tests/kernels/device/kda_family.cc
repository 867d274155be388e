// The gated delta rule on the device: each entry against its twin, the fused step against the chain
// of twins, and the bytes that must not depend on cuts or company.

#include <array>
#include <cmath>
#include <memory>

#include "families.h"
#include "host_twins.h"

namespace kern_device {

namespace {

constexpr int kTaps = 4;
constexpr double kEps = 1e-5, kL2Eps = 1e-6, kLowerBound = -5;
constexpr Tolerance kOutput = {3, 1e-3, 2e-3};  // bf16 rows

/// One sequence of a call.
struct Part {
  int rows;
  int start = 0;     ///< position of the first row
  int snapshot = 0;  ///< line, 0: none
};

struct Size {
  int heads, dim;
  int inner() const { return heads * dim; }
  int stride() const { return 4 * inner() + dim + heads; }
  int b_column() const { return 4 * inner() + dim; }
  size_t rec_bytes() const { return size_t(heads) * dim * dim * 4; }
  size_t line_bytes() const { return rec_bytes() + size_t(3) * (kTaps - 1) * inner() * 2; }
  std::string module(const std::string& name, const std::string& more = "") const {
    return "kda-" + name + (dim == 128 ? "" : fmt::format("+KDA_DIM={}", dim)) + more;
  }
  size_t record_bytes() const { return size_t(132) * dim + 1024; }
};

/// A layer's weights: heads that forget at once beside heads that hardly forget.
struct Weights {
  F32 conv[3], a_log, dt_bias, o_norm;

  Weights(kern::Prng& prng, const Size& size) {
    for (F32& taps : conv) taps = uniform(prng, size_t(size.inner()) * kTaps, -0.6, 0.9);
    a_log = uniform(prng, size.heads, -0.3, 0.7);
    o_norm = uniform(prng, size.dim, 0.5, 1.5);
    for (int c = 0; c < size.inner(); ++c)
      dt_bias.push_back(static_cast<float>(-6 + 8.0 * (c / size.dim) / size.heads + prng.unit()));
  }
};

/// The rows of one call with their sequences, on both devices.
struct Call {
  Size size;
  std::vector<Part> parts;
  int rows = 0;
  I32 cu_seqlens = {0}, lines, snapshot, seq_len;

  Call(const Size& size, std::vector<Part> parts_of) : size(size), parts(std::move(parts_of)) {
    for (const Part& part : parts) {
      rows += part.rows;
      cu_seqlens.push_back(rows);
      lines.push_back(static_cast<int32_t>(lines.size()) + 1);
      snapshot.push_back(part.snapshot);
      seq_len.push_back(part.start + part.rows);
    }
  }
  uint32_t seqs() const { return static_cast<uint32_t>(parts.size()); }
  uint32_t heads() const { return static_cast<uint32_t>(size.heads); }
  uint32_t dim() const { return static_cast<uint32_t>(size.dim); }
  uint32_t slots() const { return static_cast<uint32_t>(rows) / 16 + 2 * seqs(); }
};

/// All operands of one call.
struct Operands {
  Buffer x, r, conv_q, conv_k, conv_v, a_log, dt_bias, o_norm, state, lines, cu_seqlens, snapshot,
      seq_len, q, k, v, alpha, beta, o, y, records;
};

std::vector<uint8_t> states(kern::Prng& prng, const Size& size, size_t lines) {
  std::vector<uint8_t> bytes(lines * size.line_bytes());
  for (size_t line = 1; line < lines; ++line) {
    const F32 rec = normal(prng, size.rec_bytes() / 4, 0.2);
    const Bf16 windows = normal_bf16(prng, size_t(3) * (kTaps - 1) * size.inner(), 1);
    uint8_t* to = bytes.data() + line * size.line_bytes();
    std::memcpy(to, rec.data(), rec.size() * 4);
    std::memcpy(to + size.rec_bytes(), windows.data(), windows.size() * 2);
  }
  return bytes;
}

Operands operands(Check& check, const Call& call, const Weights& weights, const Bf16& x,
                  const Bf16& r, const std::vector<uint8_t>& state) {
  const size_t values = size_t(call.rows) * call.size.inner();
  return {check.in(x),
          check.in(r),
          check.in(weights.conv[0]),
          check.in(weights.conv[1]),
          check.in(weights.conv[2]),
          check.in(weights.a_log),
          check.in(weights.dt_bias),
          check.in(weights.o_norm),
          check.in(state),
          check.in(call.lines),
          check.in(call.cu_seqlens),
          check.in(call.snapshot),
          check.in(call.seq_len),
          check.out<float>(values),
          check.out<float>(values),
          check.out<float>(values),
          check.out<float>(values),
          check.out<float>(size_t(call.rows) * call.size.heads),
          check.out<float>(values),
          check.out<uint16_t>(values),
          check.out<uint8_t>(call.slots() * call.size.heads * call.size.record_bytes())};
}

// ---- launches: arguments of the twin, which are the device's too ----

Args prep_args(Operands& b, const Call& c) {
  return {b.x,
          b.r,
          b.conv_q,
          b.conv_k,
          b.conv_v,
          b.a_log,
          b.dt_bias,
          b.state,
          b.lines,
          b.cu_seqlens,
          b.q,
          b.k,
          b.v,
          b.alpha,
          b.beta,
          i32(c.size.heads),
          i32(c.dim()),
          i32(kTaps),
          i32(c.size.stride()),
          i32(c.size.b_column()),
          f32(kLowerBound),
          f32(kL2Eps),
          f32(1 / std::sqrt(double(c.size.dim))),
          i32(c.rows),
          i32(c.seqs())};
}
Args recurrence_args(Operands& b, const Call& c) {
  return {b.q,          b.k,        b.v,          b.alpha,   b.beta,
          b.state,      b.lines,    b.cu_seqlens, b.o,       i32(c.heads()),
          i32(c.dim()), i32(kTaps), b.snapshot,   b.seq_len, i32(64)};
}
Args windows_args(Operands& b, const Call& c) {
  return {b.x,
          b.state,
          b.lines,
          b.cu_seqlens,
          i32(c.heads()),
          i32(c.dim()),
          i32(kTaps),
          i32(c.size.stride()),
          b.snapshot,
          b.seq_len,
          i32(64)};
}
Args out_args(Operands& b, const Call& c) {
  return {b.o,
          b.x,
          b.o_norm,
          b.y,
          i32(c.heads()),
          i32(c.dim()),
          i32(c.size.stride()),
          i32(3 * c.size.inner()),
          f32(kEps),
          i32(c.rows)};
}
Args decode_args(Operands& b, const Call& c) {
  return {b.x,
          b.r,
          b.conv_q,
          b.conv_k,
          b.conv_v,
          b.a_log,
          b.dt_bias,
          b.o_norm,
          b.state,
          b.lines,
          b.cu_seqlens,
          b.y,
          i32(c.heads()),
          i32(c.dim()),
          i32(kTaps),
          i32(c.size.stride()),
          i32(c.size.b_column()),
          i32(3 * c.size.inner()),
          f32(kLowerBound),
          f32(kL2Eps),
          f32(1 / std::sqrt(double(c.size.dim))),
          f32(kEps),
          i32(c.rows),
          i32(c.seqs())};
}

Args chunk_args(Operands& b, const Call& c) {
  Args args = prep_args(b, c);
  args.erase(args.begin() + 10, args.begin() + 15);
  args.insert(args.begin() + 10, {b.seq_len, b.records});
  return args;
}
Args scan_args(Operands& b, const Call& c) {
  return {b.records,    b.state,    b.lines,    b.cu_seqlens, b.o,    i32(c.heads()),
          i32(c.dim()), i32(kTaps), b.snapshot, b.seq_len,    i32(64)};
}

Kernel chunk_kernel(const Call& c) {
  return {c.size.module("chunk"),
          "kern_kda_chunk",
          {.grid = {c.slots(), c.heads(), 1}, .block = {c.dim(), 1, 1}}};
}
Kernel scan_kernel(const Call& c, uint32_t warps) {
  return {c.size.module("scan", fmt::format("+KDA_WARPS={}", warps)),
          "kern_kda_scan_snapshot",
          {.grid = {c.seqs(), c.heads(), c.dim() / (16 * warps)},
           .block = {32 * warps + 32, 1, 1},
           .shared_bytes = uint32_t(4 * c.size.record_bytes() + 128)}};
}
Kernel prep_kernel(const Call& c) {
  return {c.size.module("prep"),
          "kern_kda_prep",
          {.grid = {uint32_t(c.rows + 31) / 32, c.heads(), 1}, .block = {c.dim(), 1, 1}}};
}
Kernel recurrence_kernel(const Call& c, bool snapshot) {
  return {c.size.module("recurrence"),
          snapshot ? "kern_kda_recurrence_snapshot" : "kern_kda_recurrence",
          {.grid = {c.seqs(), c.heads(), c.dim() / 32}, .block = {256, 1, 1}}};
}
Kernel windows_kernel(const Call& c, bool snapshot) {
  return {c.size.module("windows"),
          snapshot ? "kern_kda_windows_snapshot" : "kern_kda_windows",
          {.grid = {c.seqs(), c.heads(), 1}, .block = {c.dim(), 1, 1}}};
}
Kernel out_kernel(const Call& c) {
  return {c.size.module("out"),
          "kern_kda_out",
          {.grid = {uint32_t(c.rows), (c.heads() + 7) / 8, 1}, .block = {256, 1, 1}}};
}
Kernel decode_kernel(const Call& c) {
  return {c.size.module("decode"),
          "kern_kda_decode",
          {.grid = {c.seqs(), c.heads(), 1}, .block = {std::min(8 * c.dim(), 512U), 1, 1}}};
}

/// The whole op on the host, by its twins.
void host_chain(Operands& b, const Call& c) {
  run_on_host(kern_kda_prep, {uint32_t(c.rows + 3) / 4}, 0, prep_args(b, c));
  run_on_host(kern_kda_recurrence_snapshot, {c.seqs(), c.heads()}, 0, recurrence_args(b, c));
  run_on_host(kern_kda_windows_snapshot, {c.seqs()}, 0, windows_args(b, c));
  run_on_host(kern_kda_out, {uint32_t(c.rows + 3) / 4}, 0, out_args(b, c));
}
/// The whole op on the device, launch by launch.
void device_chain(Check& check, Operands& b, const Call& c) {
  check.device(prep_kernel(c), prep_args(b, c));
  check.device(recurrence_kernel(c, true), recurrence_args(b, c));
  check.device(windows_kernel(c, true), windows_args(b, c));
  check.device(out_kernel(c), out_args(b, c));
}

/// The same with 16 tokens at a step.
void chunked_chain(Check& check, Operands& b, const Call& c, uint32_t warps) {
  check.device(chunk_kernel(c), chunk_args(b, c));
  check.device(scan_kernel(c, warps), scan_args(b, c));
  check.device(windows_kernel(c, true), windows_args(b, c));
  check.device(out_kernel(c), out_args(b, c));
}

/// Recurrent states within a relative error, windows to the byte, lines nobody names untouched.
void states_agree(Check& check, const Buffer& state, const Size& size, double relative_rms) {
  const auto got = state.from_device<uint8_t>(), want = state.from_host<uint8_t>();
  const size_t line = size.line_bytes(), rec = size.rec_bytes();
  for (size_t at = 0; at < got.size(); at += line) {
    F32 a(rec / 4), b(rec / 4);
    std::memcpy(a.data(), got.data() + at, rec), std::memcpy(b.data(), want.data() + at, rec);
    double error = 0, scale = 0;
    for (size_t i = 0; i < a.size(); ++i)
      error += (double(a[i]) - b[i]) * (double(a[i]) - b[i]), scale += double(b[i]) * b[i];
    const double off = scale > 0 ? std::sqrt(error / scale) : std::sqrt(error);
    if (!(off <= relative_rms))
      check.fail(fmt::format("state of line {}: relative rms {:.3g}, at most {:.3g}", at / line,
                             off, relative_rms));
    check.same(fmt::format("windows of line {}", at / line), rows_of(got, 1, at + rec, at + line),
               rows_of(want, 1, at + rec, at + line));
  }
  if (!state.guard_is_whole()) check.fail("state: written past its end");
}

struct Data {
  Weights weights;
  Bf16 x, r;

  Data(kern::Prng& prng, const Size& size, int rows)
      : weights(prng, size),
        x(normal_bf16(prng, size_t(rows) * size.stride(), 1)),
        r(normal_bf16(prng, size_t(rows) * size.inner(), 1)) {}
};

void agrees_with_twins(Check& check, const Size& size, const std::vector<Part>& parts,
                       size_t spare_lines) {
  const Call call(size, parts);
  const Data data(check.prng, size, call.rows);
  Operands b = operands(check, call, data.weights, data.x, data.r,
                        states(check.prng, size, parts.size() + 1 + spare_lines));
  host_chain(b, call);
  device_chain(check, b, call);
  // A last bit of SiLU turns a rounding to bf16 over: up to 2^17 ulps of f32.
  const Tolerance rounded = {140000, 1e-6, 3e-4};
  check.close("q", b.q, Dtype::f32, rounded);
  check.close("k", b.k, Dtype::f32, rounded);
  check.close("v", b.v, Dtype::f32, rounded);
  check.close("alpha", b.alpha, Dtype::f32, {200, 1e-7, 1e-5});
  check.close("beta", b.beta, Dtype::f32, {16, 1e-7, 1e-6});
  check.close("o", b.o, Dtype::f32, {0, 1, 1e-3});
  check.close("y", b.y, Dtype::bf16, kOutput);
  states_agree(check, b.state, size, 1e-3);
}

/// The windows of a call that takes no snapshot.
void windows_agree(Check& check, const Size& size, const std::vector<Part>& parts) {
  const Call call(size, parts);
  const Data data(check.prng, size, call.rows);
  Operands b = operands(check, call, data.weights, data.x, data.r,
                        states(check.prng, size, parts.size() + 2));
  Args args = windows_args(b, call);
  args.erase(args.end() - 3, args.end());
  run_on_host(kern_kda_windows, {call.seqs()}, 0, args);
  check.device(windows_kernel(call, false), args);
  check.same("state", b.state);
}

/// Sequences of corner lengths at corner positions, up to the last one there is; some of them
/// leave a snapshot.
std::vector<Part> drawn_parts(kern::Prng& prng, int count) {
  constexpr int kLast = 1 << 20;
  std::vector<Part> parts;
  for (int i = 0; i < count; ++i) {
    const int rows =
        std::array{1, 2, 63, 64, 65, static_cast<int>(1 + prng.below(100))}[prng.below(6)];
    const int start =
        std::array{0, 1, 63, 64, static_cast<int>(prng.below(5000)), kLast - rows}[prng.below(6)];
    parts.push_back({rows, start, i < 3 && prng.below(2) == 0 ? count + 1 + i : 0});
  }
  return parts;
}

std::string listed(const std::vector<Part>& parts) {
  std::string text;
  for (const Part& part : parts)
    text +=
        fmt::format(" {} at {}{}", part.rows, part.start, part.snapshot > 0 ? " (snapshot)" : "");
  return text;
}

/// The chunked form rounds its operands to bf16: half a percent of the outputs and of the state.
void chunked_agrees(Check& check, const Size& size, const std::vector<Part>& parts) {
  const Call call(size, parts);
  const Data data(check.prng, size, call.rows);
  const auto begin = states(check.prng, size, parts.size() + 4);
  std::vector<float> first;
  std::vector<uint8_t> first_state;
  Operands twin = operands(check, call, data.weights, data.x, data.r, begin);
  host_chain(twin, call);
  for (const uint32_t warps : {2, 4, 8}) {
    if (size.dim % (16 * warps) != 0) continue;
    Operands b = operands(check, call, data.weights, data.x, data.r, begin);
    for (auto [own, host] : {std::pair{&b.o, &twin.o}, {&b.y, &twin.y}, {&b.state, &twin.state}})
      std::memcpy(own->host(), host->host(), host->bytes());
    chunked_chain(check, b, call, warps);
    check.close("o", b.o, Dtype::f32, {0, 1, 5e-3});
    check.close("y", b.y, Dtype::bf16, {0, 0.1, 5e-3});
    states_agree(check, b.state, size, 5e-3);
    if (first.empty())
      first = b.o.from_device<float>(), first_state = b.state.from_device<uint8_t>();
    check.same("o whatever the block", b.o.from_device<float>(), first);
    check.same("state whatever the block", b.state.from_device<uint8_t>(), first_state);
  }
}

/// Repeats on equal inputs give equal bytes.
void chunked_repeats(Check& check, const Size& size) {
  const Call call(size, {{1, 0}, {63, 1}, {64, 64}, {65, 128}, {3, 61, 8}, {129, 0}, {300, 0}});
  const Data data(check.prng, size, call.rows);
  const auto begin = states(check.prng, size, 9);
  Operands b = operands(check, call, data.weights, data.x, data.r, begin);
  check.device(chunk_kernel(call), chunk_args(b, call));
  const auto records = b.records.from_device<uint8_t>();
  for (int i = 0; i < 6; ++i) {
    Operands again = operands(check, call, data.weights, data.x, data.r, begin);
    check.device(chunk_kernel(call), chunk_args(again, call));
    check.same(fmt::format("records, time {}", i), again.records.from_device<uint8_t>(), records);
  }
  F32 first;
  for (const uint32_t warps : {2, 4, 8}) {
    if (size.dim % (16 * warps) != 0) continue;
    for (int i = 0; i < 6; ++i) {
      b.state = check.in(begin);
      check.device(scan_kernel(call, warps), scan_args(b, call));
      if (first.empty()) first = b.o.from_device<float>();
      check.same(fmt::format("o, {} warps, time {}", warps, i), b.o.from_device<float>(), first);
    }
  }
}

void decode_agrees(Check& check, const Size& size, const std::vector<Part>& parts) {
  const Call call(size, parts);
  const Data data(check.prng, size, call.rows);
  Operands b = operands(check, call, data.weights, data.x, data.r,
                        states(check.prng, size, parts.size() + 1));
  host_chain(b, call);
  check.device(decode_kernel(call), decode_args(b, call));
  check.close("y", b.y, Dtype::bf16, kOutput);
  states_agree(check, b.state, size, 1e-3);
}

/// The recurrence alone on equal inputs: only the order of sums differs.
void recurrence_is_exact(Check& check, const Size& size) {
  const Call call(size, {{70}, {1}});
  const Data data(check.prng, size, call.rows);
  const size_t n = size_t(call.rows) * size.inner();
  Operands b = operands(check, call, data.weights, data.x, data.r, states(check.prng, size, 3));
  const auto fill = [&](Buffer& to, const F32& values) { to = check.in(values); };
  fill(b.q, uniform(check.prng, n, -0.1, 0.1));
  fill(b.k, uniform(check.prng, n, -0.1, 0.1));
  fill(b.v, uniform(check.prng, n, -1, 1));
  fill(b.alpha, uniform(check.prng, n, 0.2, 1));
  fill(b.beta, uniform(check.prng, size_t(call.rows) * size.heads, 0, 1));
  Args args = recurrence_args(b, call);
  run_on_host(kern_kda_recurrence_snapshot, {call.seqs(), call.heads()}, 0, args);
  args.erase(args.end() - 3, args.end());
  check.device(recurrence_kernel(call, false), args);
  check.close("o", b.o, Dtype::f32, {0, 1e-4, 1e-6});
  states_agree(check, b.state, size, 1e-6);
}

// ---- the same bytes ----

using Run = std::function<void(Check&, Operands&, const Call&)>;

/// One call over parts that begin at rows `at` of the data, on a state; leaves the new state there.
Bf16 run(Check& check, const Run& run_op, const Size& size, const Data& data,
         const std::vector<std::pair<int, Part>>& parts, const I32& lines,
         std::vector<uint8_t>& state) {
  std::vector<Part> own;
  Bf16 x, r;
  for (const auto& [at, part] : parts) {
    own.push_back(part);
    const Bf16 px = rows_of(data.x, size.stride(), at, at + part.rows);
    const Bf16 pr = rows_of(data.r, size.inner(), at, at + part.rows);
    x.insert(x.end(), px.begin(), px.end()), r.insert(r.end(), pr.begin(), pr.end());
  }
  Call call(size, own);
  call.lines = lines;
  Operands b = operands(check, call, data.weights, x, r, state);
  run_op(check, b, call);
  state = b.state.from_device<uint8_t>();
  return b.y.from_device<uint16_t>();
}

void same_wherever_cut(Check& check, const Run& op, const Size& size,
                       const std::vector<std::vector<int>>& cuts) {
  const int rows = 140;
  const Data data(check.prng, size, rows);
  const auto begin = states(check.prng, size, 2);
  auto whole_state = begin;
  const Bf16 whole = run(check, op, size, data, {{0, {rows}}}, {1}, whole_state);
  for (const auto& cut : cuts) {
    auto state = begin;
    Bf16 y;
    int at = 0;
    for (const int count : cut) {
      const Bf16 part = run(check, op, size, data, {{at, {count, at}}}, {1}, state);
      y.insert(y.end(), part.begin(), part.end());
      at += count;
    }
    check.same("outputs of a cut call", y, whole);
    check.same("state after a cut call", state, whole_state);
  }
}

void same_in_company(Check& check, const Run& op, const Size& size) {
  const Data data(check.prng, size, 90);
  const auto begin = states(check.prng, size, 4);
  auto alone = begin, together = begin;
  Bf16 want;
  for (const auto& [at, count, line] : {std::tuple{0, 30, 3}, {30, 1, 1}, {31, 59, 2}}) {
    const Bf16 y = run(check, op, size, data, {{at, {count}}}, {line}, alone);
    want.insert(want.end(), y.begin(), y.end());
  }
  check.same("outputs in company",
             run(check, op, size, data, {{0, {30}}, {30, {1}}, {31, {59}}}, {3, 1, 2}, together),
             want);
  check.same("states in company", together, alone);
}

void snapshot_is_prefix(Check& check, const Run& op, const Size& size) {
  struct Case {
    int before, rows, boundary;  // boundary 0: none inside the call
  };
  for (const Case& one :
       {Case{0, 150, 128}, {0, 64, 64}, {0, 63, 0}, {64, 10, 0}, {64, 64, 128}, {64, 140, 192}}) {
    const Data data(check.prng, size, one.before + one.rows);
    auto state = std::vector<uint8_t>(3 * size.line_bytes()), prefix = state;
    if (one.before > 0) run(check, op, size, data, {{0, {one.before}}}, {1}, state);
    run(check, op, size, data, {{one.before, {one.rows, one.before, 2}}}, {1}, state);
    if (one.boundary > 0) run(check, op, size, data, {{0, {one.boundary}}}, {2}, prefix);
    const size_t line = size.line_bytes();
    check.same(fmt::format("snapshot of {} + {}", one.before, one.rows), rows_of(state, line, 2, 3),
               rows_of(prefix, line, 2, 3));
  }
}

// ---- benches ----

Step bench_step(Gpu& gpu, const Call& call, const std::vector<std::string>& kernels) {
  Step step;
  const size_t n = size_t(call.rows) * call.size.inner();
  const auto keep = [&](DeviceOnly buffer) -> Arg {
    step.memory.push_back(std::move(buffer));
    return step.memory.back();
  };
  const auto f = [&](size_t count) { return keep(gpu.repeated(random_f32(), count * 4)); };
  const auto h = [&](size_t count) { return keep(gpu.repeated(random_bf16(), count * 2)); };
  const auto table = [&](const I32& values) {
    return keep(gpu.repeated(std::as_bytes(std::span(values)), values.size() * 4));
  };
  const Size& size = call.size;
  const Arg x = h(size_t(call.rows) * size.stride()), r = h(n),
            state = keep(gpu.repeated(random_f32(), (call.parts.size() + 1) * size.line_bytes()));
  const Arg conv_q = f(size_t(size.inner()) * kTaps), conv_k = f(size_t(size.inner()) * kTaps),
            conv_v = f(size_t(size.inner()) * kTaps), a_log = f(size.heads),
            dt_bias = f(size.inner()), o_norm = f(size.dim);
  const Arg lines = table(call.lines), cu_seqlens = table(call.cu_seqlens), y = h(n);
  const Arg snapshot = table(call.snapshot), seq_len = table(call.seq_len);
  const bool whole = kernels.front() != "decode";
  const Arg records = keep(
      gpu.repeated(random_bf16(), kernels.front() == "chunk" || kernels.front().starts_with("scan")
                                      ? call.slots() * size.heads * size.record_bytes()
                                      : 64));
  const size_t m = whole ? n : 4;
  const Arg q = f(m), k = f(m), v = f(m), alpha = f(m), o = f(m),
            beta = f(size_t(call.rows) * size.heads);
  const Arg heads = i32(size.heads), dim = i32(size.dim), taps = i32(kTaps),
            stride = i32(size.stride()), b_column = i32(size.b_column()),
            z_column = i32(3 * size.inner()), bound = f32(kLowerBound), l2 = f32(kL2Eps),
            scale = f32(1 / std::sqrt(double(size.dim))), eps = f32(kEps), rows = i32(call.rows),
            seqs = i32(call.seqs());
  for (const std::string& name : kernels) {
    if (name == "prep")
      step.launches.push_back(
          {prep_kernel(call),
           {x,          r,        conv_q, conv_k, conv_v, a_log, dt_bias, state, lines,
            cu_seqlens, q,        k,      v,      alpha,  beta,  heads,   dim,   taps,
            stride,     b_column, bound,  l2,     scale,  rows,  seqs}});
    if (name == "recurrence")
      step.launches.push_back({recurrence_kernel(call, true),
                               {q, k, v, alpha, beta, state, lines, cu_seqlens, o, heads, dim, taps,
                                snapshot, seq_len, i32(64)}});
    if (name == "windows")
      step.launches.push_back(
          {windows_kernel(call, true),
           {x, state, lines, cu_seqlens, heads, dim, taps, stride, snapshot, seq_len, i32(64)}});
    if (name == "out")
      step.launches.push_back(
          {out_kernel(call), {o, x, o_norm, y, heads, dim, stride, z_column, eps, rows}});
    if (name == "chunk")
      step.launches.push_back(
          {chunk_kernel(call),
           {x,        r,          conv_q,  conv_k,  conv_v, a_log, dt_bias, state,
            lines,    cu_seqlens, seq_len, records, heads,  dim,   taps,    stride,
            b_column, bound,      l2,      scale,   rows,   seqs}});
    if (name.starts_with("scan"))
      step.launches.push_back(
          {scan_kernel(call, name.back() - '0'),
           {records, state, lines, cu_seqlens, o, heads, dim, taps, snapshot, seq_len, i32(64)}});
    if (name == "decode")
      step.launches.push_back(
          {decode_kernel(call),
           {x,        r,        conv_q,     conv_k, conv_v, a_log, dt_bias, o_norm,
            state,    lines,    cu_seqlens, y,      heads,  dim,   taps,    stride,
            b_column, z_column, bound,      l2,     scale,  eps,   rows,    seqs}});
  }
  return step;
}

void benches(Suite& suite) {
  for (const int heads : {12, 96})
    for (const int rows : {1, 8, 64, 128}) {
      const Size size{heads, 128};
      const Call call(size, std::vector<Part>(rows, Part{1, 100}));
      const double bytes = rows * (2.0 * size.line_bytes() + 6.0 * size.inner() * 2);
      suite.bench({"kda_decode", fmt::format("{} rows, {} heads", rows, heads), bytes},
                  [&](Gpu& gpu) { return bench_step(gpu, call, {"decode"}); });
    }
  for (const auto& [heads, seqs] : {std::pair{96, 1}, {96, 8}, {12, 1}}) {
    const Size size{heads, 128};
    const Call call(size, std::vector<Part>(seqs, Part{8192 / seqs}));
    const double n = 8192.0 * size.inner();
    const std::string shape = fmt::format("8192 rows in {}, {} heads", seqs, heads);
    const double record = (8192.0 / 16 + seqs) * heads * size.record_bytes();
    suite.bench({"kda_prep", shape, n * (4 * 2 + 4 * 4)},
                [&](Gpu& gpu) { return bench_step(gpu, call, {"prep"}); });
    suite.bench({"kda_recurrence", shape, n * 5 * 4},
                [&](Gpu& gpu) { return bench_step(gpu, call, {"recurrence"}); });
    suite.bench({"kda_chunk", shape, n * 4 * 2 + record},
                [&](Gpu& gpu) { return bench_step(gpu, call, {"chunk"}); });
    for (const int warps : {2, 4, 8})
      suite.bench({fmt::format("kda_scan, {} warps", warps), shape, record + n * 4},
                  [&](Gpu& gpu) { return bench_step(gpu, call, {fmt::format("scan{}", warps)}); });
    suite.bench({"kda_out", shape, n * (4 + 2 + 2)},
                [&](Gpu& gpu) { return bench_step(gpu, call, {"out"}); });
    suite.bench({"kda (whole op)", shape, n * (5 * 2 + 2)}, [&](Gpu& gpu) {
      return bench_step(gpu, call, {"chunk", heads == 12 ? "scan2" : "scan4", "windows", "out"});
    });
  }
}

}  // namespace

void kda_family(Suite& suite) {
  const Size k3{96, 128}, rank{12, 128}, mini{8, 128}, nano{8, 32}, odd{1, 128};
  const auto sizes =
      suite.is_small() ? std::vector{nano, odd} : std::vector{k3, rank, mini, nano, odd};
  for (const Size& size : sizes) {
    const std::string name = fmt::format(" at {} heads of {}", size.heads, size.dim);
    suite.check("kda entries agree with their twins" + name, [&](Check& check) {
      agrees_with_twins(check, size, {{1, 0}, {63, 1}, {64, 64, 7}, {65, 128, 6}, {3, 61, 8}}, 3);
    });
    suite.check("kda by chunks agrees with the twins' chain" + name, [&](Check& check) {
      chunked_agrees(check, size, {{1, 0}, {63, 1}, {64, 64, 7}, {65, 128, 6}, {3, 61, 8}});
      chunked_agrees(check, size, {{300, 0, 2}});
    });
    suite.check("kda windows without a snapshot are the twin's" + name, [&](Check& check) {
      windows_agree(check, size, {{1, 0}, {2, 0}, {3, 5}, {4, 64}, {63, 0}, {64, 0}, {65, 1}});
    });
    if (!suite.is_small())
      suite.check("kda by chunks repeats itself" + name,
                  [&](Check& check) { chunked_repeats(check, size); });
    suite.check("kda recurrence differs by the order of sums alone" + name,
                [&](Check& check) { recurrence_is_exact(check, size); });
    suite.check("kda step agrees with the twins' chain" + name, [&](Check& check) {
      decode_agrees(check, size, {{1, 7}, {1, 0}, {1, 64}, {1, 1}, {1, 300}});
      decode_agrees(check, size, {{1, 5}});
      decode_agrees(check, size, {{2, 5}, {7, 0}, {1, 3}});
    });
  }
  kern::Prng draw = suite.draws("kda");
  for (int i = 0; i < (suite.is_small() ? 1 : 5); ++i)
    for (const Size& size : {nano, odd, Size{3, 128}}) {
      const auto parts = drawn_parts(draw, 1 + static_cast<int>(draw.below(6)));
      const std::string name =
          fmt::format(", drawn, at {} heads of {}:{}", size.heads, size.dim, listed(parts));
      suite.check("kda entries" + name,
                  [&](Check& check) { agrees_with_twins(check, size, parts, 3); });
      suite.check("kda by chunks" + name,
                  [&](Check& check) { chunked_agrees(check, size, parts); });
    }
  for (const size_t seqs : suite.lengths(draw, 2, 200)) {
    const Size& size = suite.is_small() ? nano : mini;
    suite.check(
        fmt::format("kda step of {} sequences at {} heads of {}", seqs, size.heads, size.dim),
        [&](Check& check) {
          std::vector<Part> parts;
          for (size_t i = 0; i < seqs; ++i)
            parts.push_back({1, static_cast<int>(check.prng.below(1 << 20))});
          decode_agrees(check, size, parts);
        });
  }
  if (suite.is_small()) return;
  const Run chain = device_chain, step = [](Check&check, Operands&b, const Call&call) {
    check.device(decode_kernel(call), decode_args(b, call));
  };
  const Run chunked = [](Check& check, Operands& b, const Call& call) {
    chunked_chain(check, b, call, 2);
  };
  for (const Size& size : {rank, nano}) {
    const std::string name = fmt::format(" at {} heads of {}", size.heads, size.dim);
    suite.check("kda by chunks gives the same bytes wherever calls are cut" + name,
                [&](Check& check) {
                  same_wherever_cut(check, chunked, size, {{64, 76}, {64, 64, 12}, {16, 32, 92}});
                });
    suite.check("kda by chunks gives the same bytes in any company" + name,
                [&](Check& check) { same_in_company(check, chunked, size); });
    suite.check("kda snapshot by chunks is the state of the prefix" + name,
                [&](Check& check) { snapshot_is_prefix(check, chunked, size); });
    const std::vector<std::vector<int>> anywhere = {
        {64, 76}, {1, 2, 3, 134}, {64, 64, 12}, {37, 103}};
    suite.check("kda gives the same bytes wherever calls are cut" + name,
                [&](Check& check) { same_wherever_cut(check, chain, size, anywhere); });
    suite.check("kda step gives the same bytes wherever calls are cut" + name,
                [&](Check& check) { same_wherever_cut(check, step, size, anywhere); });
    suite.check("kda gives the same bytes in any company" + name,
                [&](Check& check) { same_in_company(check, chain, size); });
    suite.check("kda step gives the same bytes in any company" + name,
                [&](Check& check) { same_in_company(check, step, size); });
    suite.check("kda snapshot is the state of the prefix" + name,
                [&](Check& check) { snapshot_is_prefix(check, chain, size); });
  }
  benches(suite);
}

}  // namespace kern_device
