#include "suite.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>

namespace kern_device {

namespace cuda = kern::cuda;

// ---- data ----

float widen(uint16_t bits) {
  return std::bit_cast<float>(uint32_t{bits} << 16);
}

uint16_t narrow(double value) {
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

F32 uniform(kern::Prng& prng, size_t count, double low, double high) {
  F32 values(count);
  for (float& value : values) value = static_cast<float>(low + (high - low) * prng.unit());
  return values;
}

F32 normal(kern::Prng& prng, size_t count, double deviation) {
  F32 values(count);
  for (float& value : values) {  // four uniform numbers out of 64 bits: variance 4 / 12
    const uint64_t bits = prng.next();
    double sum = -2;
    for (int i = 0; i < 4; ++i) sum += static_cast<double>((bits >> (16 * i)) & 0xFFFF) / 65536;
    value = static_cast<float>(sum * 1.7320508 * deviation);
  }
  return values;
}

Bf16 normal_bf16(kern::Prng& prng, size_t count, double deviation) {
  const F32 wide = normal(prng, count, deviation);
  Bf16 values(count);
  std::transform(wide.begin(), wide.end(), values.begin(), [](float v) { return narrow(v); });
  return values;
}

std::span<const std::byte> random_bf16() {
  static const Bf16 kBlock = [] {
    kern::Prng prng(11);
    return normal_bf16(prng, (3 << 20) + 8, 1);
  }();
  return std::as_bytes(std::span(kBlock));
}

std::span<const std::byte> random_f32() {
  static const F32 kBlock = [] {
    kern::Prng prng(12);
    return normal(prng, (2 << 20) + 4, 1);
  }();
  return std::as_bytes(std::span(kBlock));
}

std::span<const std::byte> random_bytes(uint8_t low, uint8_t high) {
  static std::map<std::pair<int, int>, U8> blocks;
  U8& block = blocks[{low, high}];
  if (block.empty()) {
    kern::Prng prng(13);
    block.resize((4 << 20) + 16);
    for (uint8_t& byte : block) byte = static_cast<uint8_t>(low + prng.below(high - low + 1));
  }
  return std::as_bytes(std::span(block));
}

// ---- judging ----

namespace {

/// The distance between neighbouring numbers of the dtype at `value`.
double ulp_of(double value, Dtype dtype) {
  const int bits = dtype == Dtype::bf16 ? 8 : 24;
  const double size = std::max(std::fabs(value), 1.2e-38);
  return std::ldexp(1.0, std::ilogb(size) - bits + 1);
}

std::vector<double> as_double(const Buffer& buffer, Dtype dtype, bool device) {
  std::vector<double> out;
  const auto take = [&](const auto& values, auto widen_one) {
    out.reserve(values.size());
    for (const auto value : values) out.push_back(widen_one(value));
  };
  if (dtype == Dtype::bf16) {
    const auto widen_one = [](uint16_t v) { return double{widen(v)}; };
    take(device ? buffer.from_device<uint16_t>() : buffer.from_host<uint16_t>(), widen_one);
  } else if (dtype == Dtype::f32) {
    take(device ? buffer.from_device<float>() : buffer.from_host<float>(),
         [](float v) { return double{v}; });
  } else {
    take(device ? buffer.from_device<int32_t>() : buffer.from_host<int32_t>(),
         [](int32_t v) { return double(v); });
  }
  return out;
}

bool is_ordinary(double value) {
  return std::isfinite(value);
}
bool same_place(double a, double b) {
  return is_ordinary(a) ? is_ordinary(b) : std::isnan(a) ? std::isnan(b) : a == b;
}

}  // namespace

void Check::same(const std::string& what, const Buffer& buffer) {
  same(what, buffer.from_device<uint8_t>(), buffer.from_host<uint8_t>());
  if (!buffer.guard_is_whole()) fail(what + ": written past its end");
}

void Check::close(const std::string& what, const Buffer& buffer, Dtype dtype,
                  const Tolerance& tolerance) {
  const std::vector<double> got = as_double(buffer, dtype, true),
                            want = as_double(buffer, dtype, false);
  if (!buffer.guard_is_whole()) fail(what + ": written past its end");
  double error = 0, size = 0;
  size_t bad = 0, worst = 0;
  double most = -1;
  for (size_t i = 0; i < got.size(); ++i) {
    if (!same_place(got[i], want[i])) {
      if (bad++ == 0 || most < INFINITY) worst = i, most = INFINITY;
      continue;
    }
    if (!is_ordinary(got[i])) continue;
    const double off = std::fabs(got[i] - want[i]);
    error += off * off, size += want[i] * want[i];
    const double allowed = tolerance.ulps * ulp_of(want[i], dtype) + tolerance.absolute;
    if (off > allowed) {
      ++bad;
      if (off / ulp_of(want[i], dtype) > most) most = off / ulp_of(want[i], dtype), worst = i;
    }
  }
  if (bad > 0)
    fail(fmt::format("{}: {} of {} values are off, the worst at {}: got {}, expected {}", what, bad,
                     got.size(), worst, got[worst], want[worst]));
  const double relative = size > 0 ? std::sqrt(error / size) : std::sqrt(error);
  if (!(relative <= tolerance.relative_rms))
    fail(fmt::format("{}: relative rms {:.3g}, at most {:.3g}", what, relative,
                     tolerance.relative_rms));
}

// ---- running ----

std::vector<size_t> Suite::lengths(kern::Prng& prng, size_t more, size_t limit) const {
  if (is_small()) return {1, 65};
  std::vector<size_t> all = {1, 63, 64, 65};
  for (size_t i = 0; i < more; ++i) all.push_back(1 + prng.below(limit - 1));
  return all;
}

kern::Prng Suite::draws(const std::string& name) const {
  uint64_t seed = options_.seed;
  for (const char c : name) seed = seed * 1099511628211 + static_cast<unsigned char>(c);
  return kern::Prng(seed);
}

void Suite::check(const std::string& name, const std::function<void(Check&)>& body) {
  if (options_.bench || name.find(options_.only) == std::string::npos) return;
  if (met_++ % options_.parts != options_.part - 1) return;
  if (options_.verbose) {
    std::printf("%s ... ", name.c_str());
    std::fflush(stdout);  // before what may not end
  }
  const auto begin = std::chrono::steady_clock::now();
  Check check(gpu_, options_.seed);
  body(check);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  if (options_.verbose) std::printf("%.1f s\n", took.count());
  if (gpu_.is_recording()) return;  // there was nothing to judge
  if (check.failures().empty()) {
    ++passed_;
    return;
  }
  ++failed_;
  for (const std::string& failure : check.failures())
    std::printf("FAILED %s: %s\n", name.c_str(), failure.c_str());
  std::fflush(stdout);
}

namespace {

constexpr double kCopyBytesPerSecond = 4.3e12;  // large copies, read and written bytes counted
constexpr double kFlopsPerSecond = 790e12;      // bf16 products of random data
constexpr double kOutgrowsCacheBytes = 200e6;
constexpr int kReplays = 15;

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

}  // namespace

void Suite::bench(const Bench& bench, const std::function<Step(Gpu&)>& make) {
  const std::string name = bench.kernel + " " + bench.shape;
  if (!options_.bench || name.find(options_.only) == std::string::npos) return;
  const int sets =
      std::clamp(static_cast<int>(kOutgrowsCacheBytes / std::max(bench.bytes, 1.0)), 1, 31) + 1;
  std::vector<Step> steps;
  for (int i = 0; i < sets; ++i) steps.push_back(make(gpu_));
  const int rounds = std::max(1, 16 / sets);
  const auto enqueue = [&] {
    for (const Step& step : steps)
      for (const Step::Launch& launch : step.launches) gpu_.launch(launch.kernel, launch.args);
  };
  enqueue();  // loads what must be loaded before the capture
  gpu_.synchronize();
  must(gpu_.stream().begin_capture());
  for (int round = 0; round < rounds; ++round) enqueue();
  const cuda::Graph graph = must(gpu_.stream().end_capture());
  const auto first = must(cuda::Event::create(gpu_.stream().driver(), cuda::Event::Timing::on));
  const auto last = must(cuda::Event::create(gpu_.stream().driver(), cuda::Event::Timing::on));
  std::vector<double> times;
  for (int replay = -3; replay < kReplays; ++replay) {
    must(gpu_.stream().record(first));
    must(graph.launch(gpu_.stream()));
    must(gpu_.stream().record(last));
    gpu_.synchronize();
    if (replay >= 0) times.push_back(must(last.milliseconds_since(first)) * 1000 / (rounds * sets));
  }
  const double us = median(times);
  const double floor =
      1e6 * std::max(bench.bytes / kCopyBytesPerSecond, bench.flops / kFlopsPerSecond);
  const std::string line = fmt::format(
      R"({{"kernel": "{}", "shape": "{}", "bytes": {:.0f}, "flops": {:.0f}, "floor_us": {:.2f}, "median_us": {:.2f}, "best_us": {:.2f}, "floor_share": {:.3f}}})",
      bench.kernel, bench.shape, bench.bytes, bench.flops, floor, us,
      *std::min_element(times.begin(), times.end()), floor / us);
  std::printf("%-16s %-44s %9.2f us, floor %8.2f, %.2f of it, %.2f TB/s, %.0f TFLOP/s\n",
              bench.kernel.c_str(), bench.shape.c_str(), us, floor, floor / us,
              bench.bytes / us / 1e6, bench.flops / us / 1e6);
  std::fflush(stdout);
  if (!options_.json.empty()) std::ofstream(options_.json, std::ios::app) << line << "\n";
  ++passed_;
}

}  // namespace kern_device
