#pragma once
/// A generated manifest on a runtime, driven by hand: rows of sequences in, tokens out.
/// Thread safety: one thread each.

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "gen/generate.h"
#include "kern/manifest/verify.h"
#include "kern/runtime/runtime.h"
#include "kern/safetensors/catalog.h"

namespace k3_test {

using Tokens = std::vector<int32_t>;

/// A config of k3/configs by its stem.
k3::Config config_of(const std::string& name);
/// A random checkpoint of it, written once for each run of the tests.
const kern::safetensors::Catalog& checkpoint_of(const std::string& name);
using Device = kern::manifest::Device;
/// Where the device's modules are: the build's own, or below $KERN_TEST_MODULES where tests are
/// carried to another machine.
std::filesystem::path modules_of(Device device);
/// Options with the device's modules and small bounds.
k3::Options options(const std::string& model, Device device = Device::host);
/// The manifest checked, or a failed test.
kern::manifest::Verified verified(kern::Result<kern::manifest::Manifest> manifest);

/// One sequence's rows in a call.
struct Feed {
  Tokens tokens;
  int32_t start = 0, slot = 1, snapshot = 0;
  int32_t first_page = 1;  ///< pages lie one after another from here
  int32_t fed_from = -1;   ///< the sequence of the step before whose token is taken
};

struct Place {
  int64_t rank = 0, ranks = 1;
  kern::runtime::PeerGroup* peers = nullptr;
  bool eager = false;  ///< no graphs
};

class Machine {
 public:
  Machine(kern::manifest::Verified manifest, const kern::safetensors::Catalog& catalog,
          const Place& place = {});

  /// Fills every input the manifest has and runs; fails the test on an error.
  void run(const std::string& program, const std::vector<Feed>& feeds);
  kern::runtime::Runtime& runtime() { return *runtime_; }
  const kern::manifest::Verified& manifest() const { return manifest_; }

  template <class T>
  std::vector<T> values(const std::string& buffer, size_t count) {
    const auto bytes = runtime_->buffer(buffer);
    std::vector<T> out(count);
    std::memcpy(out.data(), bytes.data(), count * sizeof(T));
    return out;
  }
  /// Logits of the call's sequence `seq`.
  std::vector<float> logits(size_t seq = 0);
  std::vector<std::byte> state(const std::string& name);
  void set_state(const std::string& name, const std::vector<std::byte>& bytes);

 private:
  template <class T>
  void put(const std::string& buffer, const std::vector<T>& values);

  kern::manifest::Verified manifest_;
  Place place_;
  std::unique_ptr<kern::runtime::Runtime> runtime_;
};

/// What stage `from` sends, put where stage `to` takes it.
void send_on(Machine& from, Machine& to);

/// Deterministic prompt of ordinary tokens.
Tokens prompt(uint64_t seed, size_t count, int64_t vocab);

inline constexpr int32_t kPagesEach = 8;  ///< pages that the tests set aside for a sequence

}  // namespace k3_test
