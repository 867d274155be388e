#pragma once
/// Calls an entry of a host module as the runtime would, block after block, last block first.
/// Thread safety: one thread.

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "kern/base/dylib.h"
#include "kern/base/prng.h"
#include "kern/runtime/host_module.h"

namespace kern_test {

using Bf16 = std::vector<uint16_t>;
using F32 = std::vector<float>;
using I32 = std::vector<int32_t>;

float widen(uint16_t bits);
uint16_t narrow(double value);
/// `value` after one rounding to bf16.
double rounded(double value);

/// Plain matrix products with the runtime's contract: k in 16 lanes, then a tree.
const kern_host_services* plain_services();

/// One launch under construction. Buffers must live until `run`.
class Entry {
 public:
  /// `family` is the module's, `name` the entry's; a missing one fails the test.
  Entry(const std::string& family, const std::string& name);

  template <class T>
  Entry& buffer(const std::vector<T>& values) {
    return pointer(values.data());
  }
  Entry& pointer(const void* address);
  Entry& i32(int64_t value);
  Entry& f32(double value);
  void run(std::vector<uint32_t> grid, size_t shared_bytes = 0);

 private:
  kern::Dylib module_;
  kern_host_entry entry_ = nullptr;
  std::vector<std::vector<std::byte>> values_;
};

// ---- data ----

/// Uniform in [low, high).
F32 uniform(kern::Prng& prng, size_t count, double low, double high);
/// Roughly normal with the given deviation, as bf16.
Bf16 normal_bf16(kern::Prng& prng, size_t count, double deviation);

/// max |got - want| over all, and the root mean square of the difference over that of `want`.
struct Difference {
  double largest = 0, relative = 0;
};
Difference difference(const Bf16& got, const std::vector<double>& want);
Difference difference(const F32& got, const std::vector<double>& want);

}  // namespace kern_test
