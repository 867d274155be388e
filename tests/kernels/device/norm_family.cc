/// Norms, attention residuals and the residual stream.

#include <algorithm>
#include <limits>

#include "families.h"
#include "host_twins.h"

namespace kern_device {

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr double kEps = 1e-5;
// another order of the sum turns one rounding in 10^5, and the weight's product may double it
constexpr Tolerance kNormTolerance = {.ulps = 2, .relative_rms = 2e-4};
constexpr Tolerance kMixTolerance = {.ulps = 4, .absolute = 1e-3, .relative_rms = 1e-3};

uint32_t threads_of(size_t width, size_t vectors) {
  const auto warps = static_cast<uint32_t>((width + 8 * vectors * 32 - 1) / (8 * vectors * 32));
  return warps * 32;
}

Kernel rms_kernel(const char* entry, size_t width, size_t rows) {
  Kernel kernel = {"norm-rms", entry, {}};
  kernel.shape.grid = {static_cast<uint32_t>(std::min<size_t>(rows, 132 * 8)), 1, 1};
  kernel.shape.block = {threads_of(width, 4), 1, 1};
  return kernel;
}

Kernel stream_kernel(const char* entry, size_t width, size_t rows) {
  Kernel kernel = {"norm-stream", entry, {}};
  kernel.shape.grid = {static_cast<uint32_t>(std::min<size_t>(rows, 132 * 8)), 1, 1};
  kernel.shape.block = {threads_of(width, 2), 1, 1};
  return kernel;
}

Kernel mix_kernel(const char* entry, size_t bank, size_t width, size_t rows) {
  Kernel kernel = {"norm-mix_rms+BANK=" + std::to_string(bank), entry, {}};
  kernel.shape.block = {threads_of(width, 2), 1, 1};
  kernel.shape.shared_bytes = static_cast<uint32_t>(bank + 1) * kernel.shape.block[0] * 32;
  kernel.shape.grid = {static_cast<uint32_t>(std::min<size_t>(rows, 132 * (bank > 2 ? 1 : 2))), 1,
                       1};
  return kernel;
}

struct Size {
  size_t rows, width;
};
constexpr Size kSizes[] = {{1, 7168},   {64, 7168}, {65, 7168}, {2500, 7168}, {63, 3584},
                           {129, 1536}, {65, 512},  {7, 128},   {3, 64},      {1, 8}};
constexpr Size kSmallSizes[] = {{1, 7168}, {63, 128}, {64, 512}, {65, 264}, {3, 64}, {1, 8}};

std::string label(const char* op, size_t rows, size_t width) {
  return fmt::format("norm {} rows={} width={}", op, rows, width);
}

void rms_checks(Suite& suite, const Size& size) {
  const auto [rows, width] = size;
  suite.check(label("rms", rows, width), [=](Check& c) {
    Bf16 x = normal_bf16(c.prng, rows * width, 3);
    if (rows > 2) {  // one row tiny, one huge, one of zeros
      for (size_t i = 0; i < width; ++i) x[i] = narrow(widen(x[i]) * 1e-20);
      for (size_t i = width; i < 2 * width; ++i) x[i] = narrow(widen(x[i]) * 1e15);
      std::fill(x.begin() + 2 * width, x.begin() + 3 * width, 0);
    }
    Buffer in = c.in(x), weight = c.in(normal_bf16(c.prng, width, 1)),
           out = c.out<uint16_t>(rows * width);
    const Args args = {in, weight, out, f32(kEps), i32(width), i32(rows)};
    run_on_host(kern_rms, {16}, 0, args);
    c.device(rms_kernel("kern_rms", width, rows), args);
    c.close("out", out, Dtype::bf16, kNormTolerance);
  });
  suite.check(label("land_rms", rows, width), [=](Check& c) {
    const size_t stride = width + 16;
    Buffer partial = c.in(normal(c.prng, rows * stride, 2)),
           weight = c.in(normal_bf16(c.prng, width, 1)), out = c.out<uint16_t>(rows * width);
    const Args args = {partial, weight, out, f32(kEps), i32(stride), i32(width), i32(rows)};
    run_on_host(kern_land_rms, {16}, 0, args);
    c.device(rms_kernel("kern_land_rms", width, rows), args);
    c.close("out", out, Dtype::bf16, kNormTolerance);
  });
}

void stream_checks(Suite& suite, const Size& size) {
  const auto [rows, width] = size;
  suite.check(label("stream", rows, width), [=](Check& c) {
    const size_t vocab = 1000;
    I32 token(rows);
    for (int32_t& t : token) t = static_cast<int32_t>(c.prng.below(vocab));
    token[0] = vocab - 1;
    const auto compare = [&](const char* entry, kern_host_entry twin, const Args& args,
                             Buffer& out) {
      run_on_host(twin, {16}, 0, args);
      c.device(stream_kernel(entry, width, rows), args);
      c.same(entry, out);
    };
    Buffer tokens = c.in(token), table = c.in(normal_bf16(c.prng, vocab * width, 1));
    Buffer stream = c.in(normal_bf16(c.prng, rows * width, 100)),
           routed = c.in(normal_bf16(c.prng, rows * width, 1));
    const size_t stride = width + 24;
    F32 sums = normal(c.prng, rows * stride, 1);
    sums[0] = kInf, sums[1] = -0.0F, sums[2] = 3.4e38F, sums[3] = 1e-40F;
    Buffer partial = c.in(sums);
    Buffer a = c.out<uint16_t>(rows * width), b = c.out<uint16_t>(rows * width),
           d = c.out<uint16_t>(rows * width), e = c.out<uint16_t>(rows * width),
           f = c.out<uint16_t>(rows * width);
    compare("kern_embed", kern_embed, {tokens, table, a, i32(width), i32(rows)}, a);
    compare("kern_copy_rows", kern_copy_rows, {stream, b, i32(width), i32(rows)}, b);
    compare("kern_land", kern_land, {partial, d, i32(width), i32(rows)}, d);
    compare("kern_land_add", kern_land_add, {partial, stream, e, i32(width), i32(rows)}, e);
    // as in a layer: the routed part's columns come first
    compare("kern_land_moe", kern_land_moe,
            {routed, Arg(partial, 16 * 4), stream, f, i32(stride), i32(width), i32(rows)}, f);
  });
}

/// Operands of a mix over `bank` rows.
struct MixCase {
  std::vector<Bf16> bank;
  Bf16 stream, score_norm, score_proj, weight;
  size_t rows, width;

  MixCase(kern::Prng& prng, size_t sources, size_t rows, size_t width)
      : stream(normal_bf16(prng, rows * width, 2)),
        score_norm(normal_bf16(prng, width, 1)),
        score_proj(normal_bf16(prng, width, 0.02)),
        weight(normal_bf16(prng, width, 1)),
        rows(rows),
        width(width) {
    for (size_t j = 0; j < sources; ++j)
      bank.push_back(normal_bf16(prng, rows * width, 1 + 0.5 * double(j)));
  }

  /// Rows [first, last), on the device and, if asked, on the host.
  Bf16 run(Check& c, size_t first, size_t last, bool judge, uint32_t grid = 0) const {
    const size_t count = last - first;
    Buffer s = c.in(rows_of(stream, width, first, last)), sn = c.in(score_norm),
           sp = c.in(score_proj), w = c.in(weight), out = c.out<uint16_t>(count * width);
    std::vector<Buffer> rest;
    for (const Bf16& b : bank) rest.push_back(c.in(rows_of(b, width, first, last)));
    Args args = {s, sn, sp, w, out, f32(kEps), i32(width), i32(count), i32(bank.size())};
    for (Buffer& b : rest) args.push_back(b);
    Kernel kernel = mix_kernel("kern_mix_rms", bank.size(), width, count);
    if (grid > 0) kernel.shape.grid[0] = grid;
    c.device(kernel, args);
    if (judge) {
      run_on_host(kern_mix_rms, {64}, width * 4, args);
      c.close("out", out, Dtype::bf16, kMixTolerance);
    }
    return out.from_device<uint16_t>();
  }
};

void mix_checks(Suite& suite) {
  const std::vector<Size> sizes =
      suite.is_small()
          ? std::vector<Size>{{1, 7168}, {65, 128}}
          : std::vector<Size>{{1, 7168}, {65, 7168}, {300, 7168}, {5, 128}, {33, 1024}};
  for (size_t bank = 1; bank <= 8; ++bank)
    for (const Size& size : sizes)
      suite.check(label(fmt::format("mix_rms bank={}", bank).c_str(), size.rows, size.width),
                  [&](Check& c) {
                    MixCase(c.prng, bank, size.rows, size.width).run(c, 0, size.rows, true);
                  });
  suite.check("norm mix_rms: a source that wins outright, and one whose score overflows nothing",
              [](Check& c) {
                MixCase mix(c.prng, 3, 4, 7168);
                mix.score_proj = normal_bf16(c.prng, 7168, 4);  // scores in the hundreds
                mix.run(c, 0, 4, true);
              });
  suite.check("norm mix_rms: a NaN stays in its row", [](Check& c) {
    MixCase mix(c.prng, 2, 6, 512);
    const Bf16 clean = mix.run(c, 0, 6, true);
    mix.bank[1][2 * 512 + 77] = narrow(1) | 0x7FC0;
    Bf16 dirty = mix.run(c, 0, 6, true);
    c.same("rows before", rows_of(dirty, 512, 0, 2), rows_of(clean, 512, 0, 2));
    c.same("rows after", rows_of(dirty, 512, 3, 6), rows_of(clean, 512, 3, 6));
  });
  kern::Prng draw = suite.draws("mix");
  for (const size_t rows : suite.lengths(draw, 4, 1500)) {
    const size_t bank = 1 + draw.below(8),
                 width = 8 * (1 + draw.below(suite.is_small() ? 64 : 896));
    suite.check(label(fmt::format("mix_rms, drawn, bank={}", bank).c_str(), rows, width),
                [=](Check& c) { MixCase(c.prng, bank, rows, width).run(c, 0, rows, true); });
  }
  if (!suite.is_small())
    suite.check(
        "norm mix_rms: a row's bytes do not depend on its company or the grid", [](Check& c) {
          const MixCase mix(c.prng, 8, 70, 7168);
          const Bf16 whole = mix.run(c, 0, 70, false);
          c.same("grid 3", mix.run(c, 0, 70, false, 3), whole);
          for (const auto& [first, last] : {std::pair<size_t, size_t>{0, 1}, {17, 64}, {69, 70}})
            c.same(fmt::format("rows {} to {}", first, last), mix.run(c, first, last, false),
                   rows_of(whole, 7168, first, last));
        });
  suite.check("norm mix_rms_last: the last row of every sequence", [&](Check& c) {
    const I32 ends = {0, 1, 64, 65, 129, 194};  // sequences of 1, 63, 1, 64 and 65 rows
    const size_t rows = 194, width = suite.is_small() ? 264 : 7168, seqs = 5;
    for (const size_t bank : {1, 2, 3, 4, 5, 6, 7, 8}) {
      const MixCase mix(c.prng, bank, rows, width);
      Buffer s = c.in(mix.stream), sn = c.in(mix.score_norm), sp = c.in(mix.score_proj),
             w = c.in(mix.weight), cu = c.in(ends), out = c.out<uint16_t>(seqs * width);
      std::vector<Buffer> rest;
      for (const Bf16& b : mix.bank) rest.push_back(c.in(b));
      Args args = {s, sn, sp, w, cu, out, f32(kEps), i32(width), i32(seqs), i32(bank)};
      for (Buffer& b : rest) args.push_back(b);
      run_on_host(kern_mix_rms_last, {seqs}, width * 4, args);
      c.device(mix_kernel("kern_mix_rms_last", bank, width, seqs), args);
      c.close("out", out, Dtype::bf16, kMixTolerance);
      const Bf16 all = mix.run(c, 0, rows, false), last = out.from_device<uint16_t>();
      for (size_t q = 0; q < seqs; ++q)
        c.same("as in the whole", rows_of(last, width, q, q + 1),
               rows_of(all, width, ends[q + 1] - 1, ends[q + 1]));
    }
  });
}

void byte_checks(Suite& suite) {
  suite.check("norm rms: a row's bytes do not depend on its company or the grid", [](Check& c) {
    const size_t width = 7168;
    const Bf16 x = normal_bf16(c.prng, 70 * width, 2), w = normal_bf16(c.prng, width, 1);
    const auto run = [&](size_t first, size_t last, uint32_t grid) {
      const size_t rows = last - first;
      Buffer in = c.in(rows_of(x, width, first, last)), weight = c.in(w),
             out = c.out<uint16_t>(rows * width);
      Kernel kernel = rms_kernel("kern_rms", width, rows);
      if (grid > 0) kernel.shape.grid[0] = grid;
      c.device(kernel, {in, weight, out, f32(kEps), i32(width), i32(rows)});
      return out.from_device<uint16_t>();
    };
    const Bf16 whole = run(0, 70, 0);
    c.same("grid 3", run(0, 70, 3), whole);
    for (const auto& [first, last] : {std::pair<size_t, size_t>{0, 1}, {17, 64}, {69, 70}})
      c.same(fmt::format("rows {} to {}", first, last), run(first, last, 0),
             rows_of(whole, width, first, last));
  });
  suite.check("norm rms: a NaN stays in its row", [](Check& c) {
    const size_t width = 512, rows = 4;
    Bf16 x = normal_bf16(c.prng, rows * width, 1);
    x[width + 9] = 0x7FC0;
    x[2 * width + 3] = 0x7F80;
    Buffer in = c.in(x), weight = c.in(normal_bf16(c.prng, width, 1)),
           out = c.out<uint16_t>(rows * width);
    const Args args = {in, weight, out, f32(kEps), i32(width), i32(rows)};
    run_on_host(kern_rms, {2}, 0, args);
    c.device(rms_kernel("kern_rms", width, rows), args);
    c.close("out", out, Dtype::bf16, kNormTolerance);
  });
}

void benches(Suite& suite) {
  const size_t width = 7168;
  const auto bf16_rows = [](size_t rows) { return static_cast<int64_t>(rows * width * 2); };
  for (const size_t rows : {1, 64, 2048, 8192}) {
    const double line = double(rows) * width;
    suite.bench({"rms", fmt::format("rows={} width={}", rows, width), line * 4, 0}, [=](Gpu& gpu) {
      Step step;
      step.memory.push_back(gpu.repeated(random_bf16(), bf16_rows(rows)));
      step.memory.push_back(gpu.repeated(random_bf16(), width * 2));
      step.memory.push_back(gpu.repeated(random_bf16(), bf16_rows(rows)));
      step.launches.push_back(
          {rms_kernel("kern_rms", width, rows),
           {step.memory[0], step.memory[1], step.memory[2], f32(kEps), i32(width), i32(rows)}});
      return step;
    });
    suite.bench({"land_add", fmt::format("rows={} width={}", rows, width), line * 8, 0},
                [=](Gpu& gpu) {
                  Step step;
                  step.memory.push_back(gpu.repeated(random_f32(), 2 * bf16_rows(rows)));
                  step.memory.push_back(gpu.repeated(random_bf16(), bf16_rows(rows)));
                  step.memory.push_back(gpu.repeated(random_bf16(), bf16_rows(rows)));
                  step.launches.push_back(
                      {stream_kernel("kern_land_add", width, rows),
                       {step.memory[0], step.memory[1], step.memory[2], i32(width), i32(rows)}});
                  return step;
                });
    for (const size_t bank : {1, 4, 8})
      suite.bench({"mix_rms", fmt::format("rows={} width={} bank={}", rows, width, bank),
                   line * 2 * double(bank + 2), 0},
                  [=](Gpu& gpu) {
                    Step step;
                    for (size_t j = 0; j < bank + 2; ++j)
                      step.memory.push_back(gpu.repeated(random_bf16(), bf16_rows(rows)));
                    for (int j = 0; j < 3; ++j)
                      step.memory.push_back(gpu.repeated(random_bf16(), width * 2));
                    const DeviceOnly* vectors = &step.memory[bank + 2];
                    Args args = {step.memory[0], vectors[0], vectors[1], vectors[2], step.memory[1],
                                 f32(kEps),      i32(width), i32(rows),  i32(bank)};
                    for (size_t j = 0; j < bank; ++j) args.push_back(step.memory[2 + j]);
                    step.launches.push_back({mix_kernel("kern_mix_rms", bank, width, rows), args});
                    return step;
                  });
  }
}

}  // namespace

void norm_family(Suite& suite) {
  std::vector<Size> sizes(std::begin(kSizes), std::end(kSizes));
  if (suite.is_small()) sizes.assign(std::begin(kSmallSizes), std::end(kSmallSizes));
  kern::Prng draw = suite.draws("norm");
  for (const size_t rows : suite.lengths(draw, 4, 3000))
    if (!suite.is_small()) sizes.push_back({rows, 8 * (1 + draw.below(896))});
  for (const Size& size : sizes) {
    rms_checks(suite, size);
    stream_checks(suite, size);
  }
  if (!suite.is_small()) byte_checks(suite);
  mix_checks(suite);
  benches(suite);
}

}  // namespace kern_device
