#pragma once
/// Checks and benches of device kernels: what a family file is written with. A failed check prints
/// what, where, expected and got, and the next one runs.
/// Thread safety: one thread.

#include <fmt/format.h>

#include <functional>
#include <string>

#include "gpu.h"
#include "kern/base/prng.h"

namespace kern_device {

/// How far a result may lie from the twin's: places of NaN and infinity always agree; every other
/// element lies within `ulps` of its dtype plus `absolute`; over all, the root mean square of the
/// difference is at most `relative_rms` of the twin's.
struct Tolerance {
  double ulps = 0;
  double absolute = 0;
  double relative_rms = 1;
};

enum class Dtype { bf16, f32, i32 };

struct Options {
  std::filesystem::path cubins;
  std::string only;  ///< run what contains this
  uint64_t seed = 1;
  bool bench = false;          ///< benches instead of checks
  bool small = false;          ///< few and small cases, for a sanitizer
  size_t part = 1, parts = 1;  ///< every `parts`th check, from the `part`th on
  bool verbose = false;        ///< names and seconds of checks
  std::filesystem::path json;  ///< where a bench appends its line; empty: nowhere
};

/// One check while it runs.
class Check {
 public:
  Check(Gpu& gpu, uint64_t seed) : prng(seed), gpu_(gpu) {}

  // ---- memory of both devices ----
  template <class T>
  Buffer in(const std::vector<T>& values) {
    return Buffer(gpu_, values);
  }
  /// What a kernel must write: every byte 0xFF (a NaN of either width, -1) or `poison`.
  template <class T>
  Buffer out(size_t count, uint8_t poison = 0xFF) {
    return Buffer(gpu_, std::vector<std::byte>(count * sizeof(T), std::byte{poison}));
  }

  Gpu& gpu() { return gpu_; }

  // ---- running ----
  void device(const Kernel& kernel, const Args& args) {
    gpu_.launch(kernel, args);
    gpu_.synchronize();
  }

  // ---- judging ----
  void fail(const std::string& why) { failures_.push_back(why); }
  /// The device's bytes equal the twin's.
  void same(const std::string& what, const Buffer& buffer);
  /// Two device results are the same bytes.
  template <class T>
  void same(const std::string& what, const std::vector<T>& got, const std::vector<T>& want) {
    if (got.size() != want.size())
      return fail(fmt::format("{}: {} values, expected {}", what, got.size(), want.size()));
    size_t bad = 0, first = 0;
    for (size_t i = got.size(); i-- > 0;)
      if (std::memcmp(&got[i], &want[i], sizeof(T)) != 0) ++bad, first = i;
    if (bad > 0)
      fail(fmt::format("{}: {} of {} values differ, first at {}: got {}, expected {}", what, bad,
                       got.size(), first, got[first], want[first]));
  }
  void close(const std::string& what, const Buffer& buffer, Dtype dtype,
             const Tolerance& tolerance);

  const std::vector<std::string>& failures() const { return failures_; }

  kern::Prng prng;

 private:
  Gpu& gpu_;
  std::vector<std::string> failures_;
};

/// What a bench's launch must move and compute at least.
struct Bench {
  std::string kernel, shape;
  double bytes = 0;  ///< each input read once, each output written once
  double flops = 0;  ///< of the matrix units
};

/// Launches that make up one step of a bench, over one set of operands.
struct Step {
  struct Launch {
    Kernel kernel;
    Args args;
  };
  std::vector<Launch> launches;
  std::vector<DeviceOnly> memory;
};

class Suite {
 public:
  Suite(Gpu& gpu, Options options) : gpu_(gpu), options_(std::move(options)) {}

  void check(const std::string& name, const std::function<void(Check&)>& body);
  /// Times graph replays of `make`'s steps; as many sets of operands as outgrow the cache.
  void bench(const Bench& bench, const std::function<Step(Gpu&)>& make);

  Gpu& gpu() { return gpu_; }
  /// Whether cases are to be few and small: every kernel and every corner, but no large product.
  bool is_small() const { return options_.small; }
  /// The corners of lengths, then `more` drawn ones below `limit`; with --small the corners alone.
  std::vector<size_t> lengths(kern::Prng& prng, size_t more, size_t limit) const;
  /// For drawing the cases themselves: a stream of its own for each name.
  kern::Prng draws(const std::string& name) const;
  int failed() const { return failed_; }
  int passed() const { return passed_; }

 private:
  Gpu& gpu_;
  Options options_;
  int passed_ = 0, failed_ = 0;
  size_t met_ = 0;
};

// ---- data ----

float widen(uint16_t bits);
uint16_t narrow(double value);
F32 uniform(kern::Prng& prng, size_t count, double low, double high);
F32 normal(kern::Prng& prng, size_t count, double deviation);
Bf16 normal_bf16(kern::Prng& prng, size_t count, double deviation);
/// Rows [first, last) of a [rows, width] array.
template <class T>
std::vector<T> rows_of(const std::vector<T>& all, size_t width, size_t first, size_t last) {
  return {all.begin() + first * width, all.begin() + last * width};
}
/// A repeating block of random bf16, f32 or bytes for `Gpu::repeated`.
std::span<const std::byte> random_bf16();
std::span<const std::byte> random_f32();
std::span<const std::byte> random_bytes(uint8_t low, uint8_t high);

}  // namespace kern_device
