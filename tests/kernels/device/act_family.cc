/// The gated activation.

#include <algorithm>
#include <limits>

#include "families.h"
#include "host_twins.h"

namespace kern_device {

namespace {

Kernel situ_kernel(size_t width, size_t rows) {
  Kernel kernel = {"act-situ", "kern_situ", {}};
  kernel.shape.grid = {
      static_cast<uint32_t>(std::min<size_t>((rows * width / 8 + 255) / 256, 132 * 8)), 1, 1};
  kernel.shape.block = {256, 1, 1};
  return kernel;
}

void compare(Check& c, const Bf16& x, size_t rows, size_t width) {
  Buffer in = c.in(x), out = c.out<uint16_t>(rows * width);
  const Args args = {in, out, f32(4), f32(25), i32(width), i32(rows)};
  run_on_host(kern_situ, {64}, 0, args);
  c.device(situ_kernel(width, rows), args);
  c.close("out", out, Dtype::bf16, {.ulps = 1, .absolute = 1e-30, .relative_rms = 5e-4});
}

}  // namespace

void act_family(Suite& suite) {
  std::vector<std::pair<size_t, size_t>> sizes = {{1, 6144}, {65, 768}, {3, 8}};
  if (!suite.is_small()) sizes.insert(sizes.end(), {{64, 4224}, {301, 384}, {65, 33792}});
  kern::Prng draw = suite.draws("act");
  for (const size_t rows : suite.lengths(draw, 4, 700))
    sizes.push_back({rows, 8 * (1 + draw.below(suite.is_small() ? 40 : 400))});
  for (const auto& [rows, width] : sizes)
    suite.check(fmt::format("act situ rows={} width={}", rows, width),
                [rows = rows, width = width](Check& c) {
                  compare(c, normal_bf16(c.prng, rows * 2 * width, 3), rows, width);
                });
  suite.check("act situ: every bf16 gate with an ordinary up, and the other way round",
              [](Check& c) {
                const size_t width = 65536;
                Bf16 x(4 * width);
                for (size_t i = 0; i < width; ++i) {
                  x[i] = x[3 * width + i] = static_cast<uint16_t>(i);
                  x[width + i] = narrow(1.25), x[2 * width + i] = narrow(-2.5);
                }
                compare(c, x, 2, width);
              });
  suite.check("act situ: small arguments keep their sign and size", [](Check& c) {
    const size_t width = 1024;
    Bf16 x(2 * width);
    for (size_t i = 0; i < 2 * width; ++i) x[i] = narrow((c.prng.unit() - 0.5) * 1e-3);
    compare(c, x, 1, width);
  });
  for (const auto& [rows, width] :
       {std::pair<size_t, size_t>{1, 6144}, {64, 6144}, {8192, 768}, {8192, 6144}, {2048, 33792}})
    suite.bench({"situ", fmt::format("rows={} width={}", rows, width), double(rows) * width * 6, 0},
                [rows = rows, width = width](Gpu& gpu) {
                  Step step;
                  step.memory.push_back(gpu.repeated(random_bf16(), rows * width * 4));
                  step.memory.push_back(gpu.repeated(random_bf16(), rows * width * 2));
                  step.launches.push_back(
                      {situ_kernel(width, rows),
                       {step.memory[0], step.memory[1], f32(4), f32(25), i32(width), i32(rows)}});
                  return step;
                });
}

}  // namespace kern_device
