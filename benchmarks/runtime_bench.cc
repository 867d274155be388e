// What the host device costs beyond the kernels, and how fast its products are.
// usage: runtime-bench MODULES_DIR [--once]
// One line a fact; the null entries are a launch that does nothing, and a run without launches
// left.

#include <fmt/core.h>

#include <array>
#include <cstring>
#include <vector>

#include "kern/base/clock.h"
#include "kern/base/file.h"
#include "kern/base/sha256.h"
#include "kern/runtime/host_gemm.h"
#include "kern/runtime/runtime.h"

namespace {

using namespace kern;
using runtime::VarValue;

constexpr int kCalls = 300;

/// 300 calls of an entry that writes `n` floats, grids of `blocks`; with `idle` every launch is
/// outside its `when`.
std::string manifest_of(const std::string& hash, int blocks, bool idle) {
  std::string calls;
  for (int i = 0; i < kCalls; ++i)
    calls += std::string(i == 0 ? "" : ",") +
             R"({"op": "set", "args": [{"buf": "o"}, {"f32": 1}, {"i32": 1}, {"var": "n"}]})";
  return fmt::format(R"({{
    "schema_version": 7, "model": "bench", "uses": ["host"], "device": "host",
    "vars": {{"n": {{"max": 100}}}}, "states": {{}},
    "buffers": {{"o": {{"dtype": "f32", "shape": [4], "kind": "output"}}}},
    "modules": {{"test": {{"source": "test.so", "sha256": "{}"}}}},
    "ops": {{"set": {{"params": ["out buffer<f32>", "f32", "i32", "i32"], "impl": {{"launches": [
      {{"module": "test", "entry": "test_set", "block": [1, 1, 1], "grid": [{}, 1, 1]{}}}]}}}}}},
    "programs": {{"main": {{"calls": [{}]}}}}}})",
                     hash, blocks, idle ? R"(, "when": {"var": "n", "min": 50})" : "", calls);
}

double seconds_of(int repeats, auto body) {
  const SystemClock clock;
  double best = 1e9;
  for (int i = 0; i < repeats; ++i) {
    const TimeNs start = clock.now();
    body();
    best = std::min(best, static_cast<double>(clock.now() - start) / kSecondNs);
  }
  return best;
}

Result<void> bench_launches(const std::filesystem::path& dir, int repeats) {
  KERN_TRY(bytes, read_file(dir / "test.so", 1 << 24));
  const std::string hash = to_hex(sha256(as_bytes(bytes)));
  for (const auto& [name, blocks, threads, idle] :
       {std::tuple("null: skipped by `when`", 1, 1, true), std::tuple("one block", 1, 1, false),
        std::tuple("64 blocks", 64, 1, false), std::tuple("64 blocks, 2 threads", 64, 2, false)}) {
    auto verified = manifest::load(manifest_of(hash, blocks, idle));
    if (!verified)
      return tl::unexpected<Error>(manifest::to_error(verified.error(), "the bench's manifest"));
    runtime::Options options;
    options.module_dirs = {dir};
    options.threads = threads;
    KERN_TRY(loaded, runtime::Runtime::load(*verified, nullptr, options, Log("bench", Level::off)));
    const std::array<VarValue, 1> vars = {VarValue{"n", 7}};
    bool good = true;
    const double seconds = seconds_of(repeats, [&] { good = good && loaded->run("main", vars); });
    if (!good) return fail(Kind::device, "the bench's program does not run");
    fmt::print("launch      {:<28} {:8.3f} us a call\n", name, seconds * 1e6 / kCalls);
  }
  return {};
}

void bench_products(int repeats) {
  using Shape = std::array<int64_t, 3>;
  for (const auto& [m, n, k] : {Shape{1, 4096, 2048}, Shape{6, 2048, 7168}, Shape{64, 2048, 2048},
                                Shape{512, 1024, 1024}, Shape{7, 130, 100}}) {
    std::vector<uint16_t> a(static_cast<size_t>(m * k), 0x3F80),
        w(static_cast<size_t>(n * k), 0x3F81);
    std::vector<uint16_t> c(static_cast<size_t>(m * n));
    for (const runtime::Isa isa : runtime::supported_isas()) {
      const runtime::Gemm gemm{a.data(), w.data(), c.data(), m, n, k, n, k};
      const double seconds = seconds_of(repeats, [&] {
        runtime::gemm_tile(isa, gemm, {0, m, 0, n});
      });
      fmt::print(
          "product     {:<4} x {:<5} x {:<5} {:<8} {:8.1f} GFLOP/s {:8.1f} GB/s of weights\n", m, n,
          k, runtime::to_string(isa), 2e-9 * static_cast<double>(m * n * k) / seconds,
          2e-9 * static_cast<double>(n * k) / seconds);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: runtime-bench MODULES_DIR [--once]\n");
    return 2;
  }
  const bool once = argc > 2 && std::strcmp(argv[2], "--once") == 0;
  const auto done = bench_launches(argv[1], once ? 1 : 200);
  if (!done) {
    fmt::print(stderr, "runtime-bench: {}\n", done.error().text());
    return 1;
  }
  bench_products(once ? 1 : 7);
  return 0;
}
