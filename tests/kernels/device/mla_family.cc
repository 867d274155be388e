// Latent attention on the device: each entry against its twin, at whole and shared positions, and
// the bytes that must not depend on cuts or company.

#include <array>
#include <cmath>

#include "families.h"
#include "host_twins.h"

namespace kern_device {

namespace {

constexpr int kPage = 64;
constexpr double kEps = 1e-6;

struct Size {
  int heads, q_lora, lora, rope, nope, v;
  int width() const { return lora + rope; }
  int part() const { return lora + 2; }
  int q_width() const { return heads * (nope + rope); }
  int stride() const { return q_lora + width() + heads * v; }
  double scale() const { return 1 / std::sqrt(double(nope + rope)); }
  bool is_wide() const { return lora == 512; }
  std::string module(const std::string& name, const std::string& more = "") const {
    const std::string sizes = is_wide() ? "" : "+MLA_LORA=64+MLA_ROPE=32+MLA_NOPE=32+MLA_V=32";
    return "mla-" + name + sizes + more;
  }
};

constexpr Size kK3 = {96, 1536, 512, 64, 128, 128}, kMini = {8, 384, 512, 64, 128, 128},
               kNano = {8, 64, 64, 32, 32, 32};

/// One sequence of a call: `rows` rows end at position `length`, exclusive.
struct Part {
  int rows, length;
};

/// The rows of one call, and the pages of one rank.
struct Call {
  Size size;
  std::vector<Part> parts;
  int ranks, rank, rows = 0, table_width = 0;
  I32 cu_seqlens = {0}, seq_len, slot, pages;

  Call(const Size& size, std::vector<Part> parts_of, int ranks = 1, int rank = 0)
      : size(size), parts(std::move(parts_of)), ranks(ranks), rank(rank) {
    for (const Part& part : parts) {
      rows += part.rows;
      cu_seqlens.push_back(rows);
      seq_len.push_back(part.length);
      table_width = std::max(table_width, (part.length + ranks * kPage - 1) / (ranks * kPage));
    }
    const int count = pages_in_all() - 1;  // page 0 is nobody's; the others in a scrambled order
    for (int i = 0; i < count; ++i)
      pages.push_back(1 + static_cast<int>((int64_t{i} * 7919 + 3) % count));
    for (size_t seq = 0; seq < parts.size(); ++seq)
      for (int i = 0; i < parts[seq].rows; ++i) {
        const int row = (parts[seq].length - parts[seq].rows + i) / ranks;
        slot.push_back(pages[seq * table_width + row / kPage] * kPage + row % kPage);
      }
  }
  uint32_t seqs() const { return static_cast<uint32_t>(parts.size()); }
  int pages_in_all() const { return static_cast<int>(parts.size()) * table_width + 1; }
  /// How many positions of sequence `seq` this rank holds once the call's rows are in.
  int held(size_t seq) const {
    return parts[seq].length <= rank ? 0 : (parts[seq].length - 1 - rank) / ranks + 1;
  }
};

/// A cache whose held rows are random and whose others are NaN: who reads too far reads NaN.
Bf16 cache_of(kern::Prng& prng, const Call& call) {
  const size_t width = call.size.width();
  Bf16 cache(size_t(call.pages_in_all()) * kPage * width, 0x7FC0);
  for (size_t seq = 0; seq < call.parts.size(); ++seq)
    for (int row = 0; row < call.held(seq); ++row) {
      const size_t at =
          size_t(call.pages[seq * call.table_width + row / kPage]) * kPage + row % kPage;
      const Bf16 values = normal_bf16(prng, width, 1);
      std::copy(values.begin(), values.end(), cache.begin() + at * width);
    }
  return cache;
}

Bf16 queries(kern::Prng& prng, const Call& call) {
  return normal_bf16(prng, size_t(call.rows) * call.size.heads * call.size.width(), 0.7);
}

// ---- launches ----

struct Tables {
  Buffer pages, cu_seqlens, seq_len;
  Tables(Check& check, const Call& c)
      : pages(check.in(c.pages)),
        cu_seqlens(check.in(c.cu_seqlens)),
        seq_len(check.in(c.seq_len)) {}
};

Args attend_args(Buffer& q_abs, Buffer& cache, Tables& t, Buffer& part, const Call& c) {
  return {q_abs,
          cache,
          t.pages,
          t.cu_seqlens,
          t.seq_len,
          part,
          i32(c.size.heads),
          i32(c.size.lora),
          i32(c.size.rope),
          i32(kPage),
          i32(c.table_width),
          f32(c.size.scale()),
          i32(c.rank),
          i32(c.ranks),
          i32(c.rows),
          i32(c.seqs())};
}

void attend_on_host(const Args& args, const Call& c) {
  const int groups = (c.size.heads + 7) / 8;
  run_on_host(kern_mla_attend, {uint32_t(c.rows), uint32_t(groups)},
              4 * (kPage * c.size.lora + size_t(8) * (kPage + c.size.lora)), args);
}

enum class Form { any, rows, split };

std::string attend_module(const std::string& name, const Size& size) {
  return fmt::format("mla-{}+MLA_HEADS={}", name, size.heads);
}
Kernel attend_kernel(const Call& c, Form form) {
  const auto rows = static_cast<uint32_t>(c.rows), heads = static_cast<uint32_t>(c.size.heads);
  const uint32_t shared = heads == 96 ? 228544 : 121024;
  switch (form) {
    case Form::any:
      return {"mla-attend_any",
              "kern_mla_attend_any",
              {.grid = {rows, heads, 1}, .block = {128, 1, 1}}};
    case Form::rows:
      return {attend_module("attend", c.size),
              "kern_mla_attend",
              {.grid = {rows, 1, 1}, .block = {384, 1, 1}, .shared_bytes = shared}};
    case Form::split:
      break;
  }
  return {attend_module("attend_split", c.size),
          "kern_mla_attend_split",
          {.grid = {120, 1, 1},
           .block = {384, 1, 1},
           .cluster = {4, 1, 1},
           .shared_bytes = shared + 3072}};
}
Kernel join_kernel(const Call& c) {
  return {attend_module("attend_split", c.size),
          "kern_mla_attend_join",
          {.grid = {uint32_t(c.rows), uint32_t(c.size.heads), 1}, .block = {128, 1, 1}}};
}

/// The pages as the tiled forms ask for them: boxes of 64 values of 64 rows.
Arg pages_map(Gpu& gpu, kern::cuda::api::Pointer cache, int64_t bytes, const Call& c) {
  const int64_t dims[] = {c.size.width(), bytes / (c.size.width() * 2)};
  const int64_t strides[] = {int64_t{c.size.width()} * 2}, box[] = {64, kPage};
  return gpu.tensormap(cache, {.dtype = "bf16",
                               .dims = dims,
                               .strides = strides,
                               .box = box,
                               .swizzle = 128,
                               .l2_promotion = 256});
}

/// Attention on the device in one of its forms.
void attend(Check& check, Form form, const Args& args, const Buffer& cache, Tables& tables,
            Buffer& part, const Call& c) {
  Args with = args;
  if (form == Form::any) return check.device(attend_kernel(c, form), with);
  const Arg map = pages_map(check.gpu(), cache.device(), cache.bytes(), c);
  if (form == Form::rows) {
    with.push_back(map);
    return check.device(attend_kernel(c, form), with);
  }
  Buffer segments = check.out<float>(size_t(c.rows) * 30 * c.size.heads * c.size.part());
  with.insert(with.end(), {segments, map});
  check.device(attend_kernel(c, form), with);
  check.device(join_kernel(c),
               {segments, tables.cu_seqlens, tables.seq_len, part, i32(c.size.heads), i32(c.rank),
                i32(c.ranks), i32(c.rows), i32(c.seqs())});
}

/// Parts: maxima and totals nearly equal, sums compared after division by the total.
void parts_agree(Check& check, const std::string& what, const Buffer& part, const Size& size,
                 double relative_rms) {
  const auto got = part.from_device<float>(), want = part.from_host<float>();
  double error = 0, scale = 0;
  size_t bad = 0, first = 0;
  for (size_t at = 0; at < got.size(); at += size.part()) {
    const float *a = &got[at], *b = &want[at];
    const double m = b[size.lora], l = b[size.lora + 1];
    bool fine = l == 0 ? a[size.lora + 1] == 0 && a[size.lora] == b[size.lora]
                       : std::fabs(a[size.lora] - m) <= 1e-4 * (1 + std::fabs(m)) &&
                             std::fabs(a[size.lora + 1] - l) <= 1e-3 * l;
    for (int i = 0; i < size.lora; ++i) {
      const double x = l == 0 ? a[i] : a[i] / a[size.lora + 1], y = l == 0 ? b[i] : b[i] / l;
      fine = fine && std::fabs(x - y) <= 0.03;
      error += (x - y) * (x - y), scale += y * y;
    }
    if (!fine && bad++ == 0) first = at;
  }
  if (bad > 0)
    check.fail(fmt::format(
        "{}: {} of {} parts are off, first {}: got {} {} | {} {}, expected {} {} | {} {}", what,
        bad, got.size() / size.part(), first / size.part(), got[first], got[first + 1],
        got[first + size.lora], got[first + size.lora + 1], want[first], want[first + 1],
        want[first + size.lora], want[first + size.lora + 1]));
  const double off = scale > 0 ? std::sqrt(error / scale) : std::sqrt(error);
  if (!(off <= relative_rms))
    check.fail(fmt::format("{}: relative rms {:.3g}, at most {:.3g}", what, off, relative_rms));
  if (!part.guard_is_whole()) check.fail(what + ": written past its end");
}

void attend_agrees(Check& check, const Call& call, const std::vector<Form>& forms) {
  Tables tables(check, call);
  Buffer q_abs = check.in(queries(check.prng, call)), cache = check.in(cache_of(check.prng, call));
  const size_t count = size_t(call.size.heads) * call.rows * call.size.part();
  bool first = true;
  Buffer twin = check.out<float>(count);
  for (const Form form : forms) {
    Buffer part = check.out<float>(count);
    const Args args = attend_args(q_abs, cache, tables, part, call);
    if (first) attend_on_host(attend_args(q_abs, cache, tables, twin, call), call);
    first = false;
    std::memcpy(part.host(), twin.host(), twin.bytes());
    attend(check, form, args, cache, tables, part, call);
    // bf(p) is off by half a unit in the ninth bit at most
    parts_agree(check, fmt::format("part, form {}", static_cast<int>(form)), part, call.size,
                form == Form::any ? 1e-5 : 2.5e-3);
  }
}

void prep_agrees(Check& check, const Call& c) {
  const Size& s = c.size;
  Tables tables(check, c);
  Buffer x = check.in(normal_bf16(check.prng, size_t(c.rows) * s.stride(), 1.5)),
         q_norm = check.in(normal_bf16(check.prng, s.q_lora, 1)),
         kv_norm = check.in(normal_bf16(check.prng, s.lora, 1)), slot = check.in(c.slot),
         cache = check.in(cache_of(check.prng, c)),
         q_lat = check.out<uint16_t>(size_t(c.rows) * s.q_lora);
  const Args args = {
      x,         q_norm,      kv_norm,       slot,        tables.cu_seqlens, tables.seq_len,
      cache,     q_lat,       i32(s.q_lora), i32(s.lora), i32(s.rope),       i32(s.stride()),
      f32(kEps), i32(c.rank), i32(c.ranks),  i32(c.rows), i32(c.seqs())};
  run_on_host(kern_mla_prep, {uint32_t(c.rows + 7) / 8}, 0, args);
  check.device(
      {"mla-prep", "kern_mla_prep", {.grid = {uint32_t(c.rows), 2, 1}, .block = {256, 1, 1}}},
      args);
  check.close("q_lat", q_lat, Dtype::bf16, {2, 1e-6, 1e-3});
  check.close("cache", cache, Dtype::bf16, {2, 1e-6, 1e-3});
}

Kernel absorb_kernel(const Size& s, int rows) {
  const int columns = std::min(s.lora, 128);
  return {s.module("absorb"),
          "kern_mla_absorb",
          {.grid = {uint32_t(s.heads), uint32_t(rows + 255) / 256, uint32_t(s.lora / columns)},
           .block = {256, 1, 1},
           .shared_bytes = uint32_t(256 * std::max(s.nope, columns) + 2 * s.nope * columns)}};
}

void absorb_agrees(Check& check, const Size& s, int rows) {
  Buffer q = check.in(normal_bf16(check.prng, size_t(rows) * s.q_width(), 2)),
         kv_b = check.in(normal_bf16(check.prng, size_t(s.heads) * (s.nope + s.v) * s.lora, 0.2)),
         q_abs = check.out<uint16_t>(size_t(rows) * s.heads * s.width());
  const Args args = {q,           kv_b,     q_abs,       i32(s.heads), i32(s.nope),
                     i32(s.rope), i32(s.v), i32(s.lora), i32(rows)};
  run_on_host(kern_mla_absorb, {uint32_t(s.heads), uint32_t(rows + 7) / 8}, size_t(8) * s.lora * 4,
              args);
  check.device(absorb_kernel(s, rows), args);
  check.close("q_abs", q_abs, Dtype::bf16, {1.01, 1e-4, 1e-3});
}

Kernel merge_kernel(const Size& s, int own, int rows, int tile) {
  const int split = tile == 16 && s.v > 64 ? 2 : 1;
  const int stages = tile == 16 ? s.lora / 64 : std::min(s.lora / 64, 3);
  return {s.module("merge", fmt::format("+MLA_ROWS={}", tile)),
          "kern_mla_merge",
          {.grid = {uint32_t(own), uint32_t(rows + tile - 1) / tile, uint32_t(split)},
           .block = {256, 1, 1},
           .shared_bytes = uint32_t(tile * s.lora * 2 + 128 * stages * (s.v / split))}};
}

/// Random parts of `ranks` ranks, some without positions, merged by a rank that owns 1 / shares.
void merge_agrees(Check& check, const Size& s, int rows, int ranks, int shares) {
  const int own = s.heads / shares, rank = shares - 1, z_width = own * s.v + 8;
  F32 values = normal(check.prng, size_t(ranks) * own * rows * s.part(), 3);
  for (size_t at = 0; at < values.size(); at += s.part()) {
    const bool is_first = at < values.size() / ranks;
    const bool none = !is_first && check.prng.below(3) == 0;
    values[at + s.lora + 1] = none ? 0 : static_cast<float>(1 + 5 * check.prng.unit());
    if (none) {
      std::fill_n(values.begin() + at, s.lora, 0.0F);
      values[at + s.lora] = -INFINITY;
    }
  }
  Buffer parts = check.in(values),
         kv_b = check.in(normal_bf16(check.prng, size_t(s.heads) * (s.nope + s.v) * s.lora, 0.2)),
         x = check.in(normal_bf16(check.prng, size_t(rows) * z_width, 1));
  Bf16 first;
  for (const int tile : {16, 64}) {
    Buffer y = check.out<uint16_t>(size_t(rows) * own * s.v);
    const Args args = {
        parts,       kv_b,         x,      y,         i32(own),   i32(s.nope), i32(s.v),
        i32(s.lora), i32(z_width), i32(8), i32(rank), i32(ranks), i32(rows)};
    run_on_host(kern_mla_merge, {uint32_t(own), uint32_t(rows + 7) / 8}, size_t(8) * s.lora * 2,
                args);
    check.device(merge_kernel(s, own, rows, tile), args);
    // Another order of the merge turns a rounding to bf16 now and then: an ulp of a latent in [8,
    // 16), 2^-4, times a weight of at most 0.7, where y itself may cancel to nothing.
    check.close(fmt::format("y, tiles of {}", tile), y, Dtype::bf16, {3, 0.044, 2e-3});
    if (first.empty()) first = y.from_device<uint16_t>();
    check.same("y whatever the tile", y.from_device<uint16_t>(), first);
  }
}

/// Sequences that end on, before and behind a page's edge, short ones and long ones.
std::vector<Part> drawn_parts(kern::Prng& prng) {
  std::vector<Part> parts;
  for (int left = 250; left > 0 && parts.size() < 6;) {
    const auto own = static_cast<int>(1 + prng.below(80));
    const int rows = std::min(left, std::array{1, 1, 63, 64, 65, own}[prng.below(6)]);
    const int length =
        rows +
        std::array{
            0, 1, 62, 63, 64, 65, 127, 129, static_cast<int>(prng.below(700))}[prng.below(9)];
    parts.push_back({rows, length});
    left -= rows;
  }
  return parts;
}

std::string listed(const std::vector<Part>& parts) {
  std::string text;
  for (const Part& part : parts) text += fmt::format(" {} of {}", part.rows, part.length);
  return text;
}

// ---- the same bytes ----

/// Two sequences in one call, then row by row, each alone.
void same_wherever_cut(Check& check, const Size& size, Form form, int ranks, int long_length) {
  const std::vector<Part> parts = {{70, long_length}, {9, 9}};
  const Call whole(size, parts, ranks, ranks - 1);
  Tables tables(check, whole);
  const Bf16 q = queries(check.prng, whole);
  Buffer q_abs = check.in(q), cache = check.in(cache_of(check.prng, whole));
  const size_t per_row = size.part(), q_row = size_t(size.heads) * size.width();
  Buffer part = check.out<float>(size_t(size.heads) * whole.rows * per_row);
  attend(check, form, attend_args(q_abs, cache, tables, part, whole), cache, tables, part, whole);
  const F32 want = part.from_device<float>();
  for (const int row : {0, 1, 33, 64, 69, 70, 78}) {
    const size_t seq = row < 70 ? 0 : 1;
    const int length = parts[seq].length - (whole.cu_seqlens[seq + 1] - 1 - row);
    Call one(size, {{1, length}}, ranks, ranks - 1);
    one.table_width = whole.table_width;
    one.pages.assign(whole.pages.begin() + seq * whole.table_width,
                     whole.pages.begin() + (seq + 1) * whole.table_width);
    Tables own(check, one);
    Buffer q_one = check.in(rows_of(q, q_row, row, row + 1)),
           alone = check.out<float>(size.heads * per_row);
    attend(check, form, attend_args(q_one, cache, own, alone, one), cache, own, alone, one);
    const F32 got = alone.from_device<float>();
    for (int head = 0; head < size.heads; ++head)
      check.same(fmt::format("row {} alone, head {}", row, head),
                 rows_of(got, per_row, head, head + 1),
                 rows_of(want, per_row, head * whole.rows + row, head * whole.rows + row + 1));
  }
}

// ---- benches ----

Arg keep(Step& step, DeviceOnly buffer) {
  step.memory.push_back(std::move(buffer));
  return step.memory.back();
}
Arg table(Gpu& gpu, Step& step, const I32& values) {
  return keep(step, gpu.repeated(std::as_bytes(std::span(values)), values.size() * 4));
}

Step attend_step(Gpu& gpu, const Call& c, Form form) {
  Step step;
  const Size& s = c.size;
  const Arg q = keep(step, gpu.repeated(random_bf16(), int64_t{c.rows} * s.heads * s.width() * 2)),
            cache = keep(step, gpu.repeated(random_bf16(),
                                            int64_t{c.pages_in_all()} * kPage * s.width() * 2)),
            part = keep(step, gpu.repeated(random_f32(), int64_t{c.rows} * s.heads * s.part() * 4)),
            pages = table(gpu, step, c.pages), cu = table(gpu, step, c.cu_seqlens),
            len = table(gpu, step, c.seq_len);
  const Arg map =
      pages_map(gpu, step.memory[1].device(), int64_t{c.pages_in_all()} * kPage * s.width() * 2, c);
  Args args = {q,
               cache,
               pages,
               cu,
               len,
               part,
               i32(s.heads),
               i32(s.lora),
               i32(s.rope),
               i32(kPage),
               i32(c.table_width),
               f32(s.scale()),
               i32(c.rank),
               i32(c.ranks),
               i32(c.rows),
               i32(c.seqs())};
  if (form == Form::split) {
    const Arg segments =
        keep(step, gpu.repeated(random_f32(), int64_t{c.rows} * 30 * s.heads * s.part() * 4));
    args.insert(args.end(), {segments, map});
    step.launches.push_back({attend_kernel(c, form), args});
    step.launches.push_back({join_kernel(c),
                             {segments, cu, len, part, i32(s.heads), i32(c.rank), i32(c.ranks),
                              i32(c.rows), i32(c.seqs())}});
  } else {
    args.push_back(map);
    step.launches.push_back({attend_kernel(c, form), args});
  }
  return step;
}

void attend_bench(Suite& suite, const Call& c, Form form, const std::string& shape) {
  const Size& s = c.size;
  double pairs = 0, positions = 0;
  for (size_t seq = 0; seq < c.parts.size(); ++seq) {
    const Part& part = c.parts[seq];
    pairs += part.rows * (part.length - (part.rows - 1) / 2.0) / c.ranks;
    positions += double(part.length) / c.ranks;
  }
  const double bytes =
      positions * s.width() * 2 + double(c.rows) * s.heads * (s.width() * 2 + s.part() * 4);
  suite.bench({form == Form::split ? "mla_attend split" : "mla_attend rows", shape, bytes,
               pairs * s.heads * 2.0 * (s.width() + s.lora)},
              [&](Gpu& gpu) { return attend_step(gpu, c, form); });
}

void benches(Suite& suite) {
  for (const int length : {8192, 32768, 131072})
    for (const int rows : {1, 8, 64}) {
      if (int64_t{rows} * length > 64 * 32768) continue;
      attend_bench(suite, Call(kK3, std::vector<Part>(rows, Part{1, length})), Form::split,
                   fmt::format("{} rows of {} positions", rows, length));
    }
  attend_bench(suite, Call(kK3, {{2048, 2048}}), Form::rows, "2048 rows, causal");
  attend_bench(suite, Call(kK3, {{512, 32768}}), Form::rows, "512 rows after 32,256");
  for (const int rows : {1, 8, 64, 8192}) {
    const Size& s = kK3;
    const double weights = double(s.heads) * s.nope * s.lora * 2;
    suite.bench(
        {"mla_absorb", fmt::format("{} rows, 96 heads", rows),
         weights + double(rows) * (s.q_width() * 2 + s.heads * s.width() * 2),
         2.0 * rows * s.heads * s.nope * s.lora},
        [&](Gpu& gpu) {
          Step step;
          const Arg q = keep(step, gpu.repeated(random_bf16(), int64_t{rows} * s.q_width() * 2)),
                    kv_b = keep(step,
                                gpu.repeated(random_bf16(), int64_t{s.heads} * 256 * s.lora * 2)),
                    out = keep(
                        step, gpu.repeated(random_bf16(), int64_t{rows} * s.heads * s.width() * 2));
          step.launches.push_back({absorb_kernel(s, rows),
                                   {q, kv_b, out, i32(s.heads), i32(s.nope), i32(s.rope), i32(s.v),
                                    i32(s.lora), i32(rows)}});
          return step;
        });
    const int own = rows == 8192 ? 96 : 12, ranks = rows == 8192 ? 1 : 8,
              tile = rows == 8192 ? 64 : 16;
    suite.bench(
        {"mla_merge", fmt::format("{} rows, {} heads of {} ranks", rows, own, ranks),
         double(own) * s.v * s.lora * 2 + double(rows) * own * (ranks * s.part() * 4 + s.v * 4),
         2.0 * rows * own * s.v * s.lora},
        [&](Gpu& gpu) {
          Step step;
          const Arg parts = keep(step, gpu.repeated(random_f32(),
                                                    int64_t{ranks} * own * rows * s.part() * 4)),
                    kv_b = keep(step,
                                gpu.repeated(random_bf16(), int64_t{s.heads} * 256 * s.lora * 2)),
                    x = keep(step, gpu.repeated(random_bf16(), int64_t{rows} * own * s.v * 2)),
                    y = keep(step, gpu.repeated(random_bf16(), int64_t{rows} * own * s.v * 2));
          step.launches.push_back({merge_kernel(s, own, rows, tile),
                                   {parts, kv_b, x, y, i32(own), i32(s.nope), i32(s.v), i32(s.lora),
                                    i32(own * s.v), i32(0), i32(0), i32(ranks), i32(rows)}});
          return step;
        });
    suite.bench(
        {"mla_prep", fmt::format("{} rows", rows), double(rows) * (s.q_lora * 4 + s.width() * 4),
         0},
        [&](Gpu& gpu) {
          Step step;
          const Call c(s, {{rows, rows}});
          const Arg x = keep(step, gpu.repeated(random_bf16(), int64_t{rows} * s.stride() * 2)),
                    norm = keep(step, gpu.repeated(random_bf16(), s.q_lora * 2)),
                    cache = keep(step, gpu.repeated(random_bf16(), int64_t{c.pages_in_all()} *
                                                                       kPage * s.width() * 2)),
                    q_lat = keep(step, gpu.repeated(random_bf16(), int64_t{rows} * s.q_lora * 2));
          step.launches.push_back(
              {{"mla-prep",
                "kern_mla_prep",
                {.grid = {uint32_t(rows), 2, 1}, .block = {256, 1, 1}}},
               {x, norm, norm, table(gpu, step, c.slot), table(gpu, step, c.cu_seqlens),
                table(gpu, step, c.seq_len), cache, q_lat, i32(s.q_lora), i32(s.lora), i32(s.rope),
                i32(s.stride()), f32(kEps), i32(0), i32(1), i32(rows), i32(1)}});
          return step;
        });
  }
}

}  // namespace

void mla_family(Suite& suite) {
  const std::vector<Part> corners = {{1, 1}, {3, 63}, {1, 64}, {2, 65}, {1, 300}, {130, 130}};
  const bool is_small = suite.is_small();
  const auto sizes = is_small ? std::vector{kMini, kNano} : std::vector{kK3, kMini, kNano};
  for (const Size& size : sizes) {
    const std::string name =
        fmt::format(" at {} heads of {} + {}", size.heads, size.lora, size.rope);
    const auto forms =
        size.is_wide() ? std::vector{Form::any, Form::rows, Form::split} : std::vector{Form::any};
    suite.check("mla prep agrees with its twin" + name, [&](Check& check) {
      prep_agrees(check, Call(size, corners));
      prep_agrees(check, Call(size, corners, 8, 3));
    });
    suite.check("mla absorb agrees with its twin" + name, [&](Check& check) {
      for (const int rows : {1, 63, 64, 65, 300})
        if (!is_small || rows < 100) absorb_agrees(check, size, rows);
    });
    suite.check("mla merge agrees with its twin" + name, [&](Check& check) {
      for (const int rows : {1, 16, 63, 64, 65}) merge_agrees(check, size, rows, 1, 1);
      merge_agrees(check, size, 37, 8, 8);
    });
    suite.check("mla attend agrees with its twin" + name, [&](Check& check) {
      attend_agrees(check, Call(size, corners), forms);
      attend_agrees(check, Call(size, {{1, 1}}), forms);
      attend_agrees(check, Call(size, {{1, 3}, {5, 7}, {1, 511}, {1, 520}}, 8, 5), forms);
    });
    if (!is_small)
      suite.check("mla attend gives the same bytes wherever calls are cut" + name,
                  [&](Check& check) {
                    for (const Form form : forms) {
                      same_wherever_cut(check, size, form, 1, 190);
                      same_wherever_cut(check, size, form, 4, 70);
                    }
                    if (size.is_wide()) same_wherever_cut(check, size, Form::split, 1, 2100);
                  });
  }
  kern::Prng draw = suite.draws("mla");
  for (int i = 0; i < (is_small ? 1 : 6); ++i)
    for (const Size& size : {kMini, kNano}) {
      const auto parts = drawn_parts(draw);
      const int ranks = std::array{1, 4, 8}[draw.below(3)],
                rank = static_cast<int>(draw.below(ranks));
      suite.check(fmt::format("mla, drawn, at {} heads of {}, rank {} of {}:{}", size.heads,
                              size.lora, rank, ranks, listed(parts)),
                  [&](Check& check) {
                    const Call call(size, parts, ranks, rank);
                    prep_agrees(check, call);
                    attend_agrees(check, call,
                                  size.is_wide() ? std::vector{Form::any, Form::rows, Form::split}
                                                 : std::vector{Form::any});
                  });
    }
  if (is_small) {
    suite.check("mla attend agrees with its twin at 96 heads", [&](Check& check) {
      attend_agrees(check, Call(kK3, {{1, 1}, {2, 65}, {1, 300}}), {Form::rows, Form::split});
    });
    return;
  }
  suite.check("mla attend agrees with its twin at the last position there is", [&](Check& check) {
    attend_agrees(check, Call(kMini, {{1, 1 << 20}, {1, 1}, {2, 4097}}, 8, 7),
                  {Form::rows, Form::split});
  });
  suite.check("mla attend agrees with its twin over many segments", [&](Check& check) {
    attend_agrees(check, Call(kK3, {{1, 5000}, {1, 2048}, {1, 2049}, {1, 12}}),
                  {Form::rows, Form::split});
    attend_agrees(check, Call(kMini, {{1, 33000}, {2, 70001}}), {Form::rows, Form::split});
  });
  benches(suite);
}

}  // namespace kern_device
