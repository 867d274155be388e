#pragma once
/// A program made flat: launches in order, their arguments bound to addresses, their sizes bound to
/// cells. Lowering decides everything that can be decided at load; running only reads.

#include <memory>
#include <string>
#include <vector>

#include "bind.h"
#include "kern/manifest/verify.h"
#include "kern/runtime/host_module.h"
#include "kern/runtime/runtime.h"
#include "values.h"

namespace kern::runtime {

struct Launch;
class Machine;
using BuiltIn = Result<void> (*)(Machine& machine, const Launch& launch);

/// One launch of one call.
struct Launch {
  kern_host_entry entry = nullptr;  ///< null for a built-in
  BuiltIn built_in = nullptr;
  void** args = nullptr;  ///< args[i] points at the parameter
  uint32_t arg_count = 0;
  uint32_t call = 0;         ///< position in the program
  const Cell* grid[3] = {};  ///< kernels only
  uint32_t block[3] = {1, 1, 1};
  const Cell* shared_bytes = nullptr;
  const Cell* when = nullptr;  ///< null: always
  int64_t when_min = 0, when_max = 0;
  PeerGroup* group = nullptr;  ///< collectives; null: a group of one rank
  std::string op;              ///< for errors
};

/// A field of a pack that depends on vars.
struct PackPatch {
  std::byte* at;
  const Cell* from;
  uint32_t width;
};

/// An input that the program reads and whose values have a declared domain.
struct CheckedInput {
  size_t buffer = 0;  ///< position in the manifest
  const std::byte* data = nullptr;
  std::vector<const Cell*> extents;
  const Cell* min = nullptr;  ///< inclusive; null: none
  const Cell* max = nullptr;
  double min_real = 0, max_real = 0;
  bool has_min_real = false, has_max_real = false;
  bool monotone = false;
};

struct LoweredProgram {
  explicit LoweredProgram(std::span<const manifest::Var> vars) : values(vars) {}

  std::string name;
  Values values;
  std::vector<std::unique_ptr<void*[]>> arg_tables;
  std::vector<std::unique_ptr<std::byte[]>> packs;
  std::vector<PackPatch> patches;
  std::vector<Launch> launches;
  std::vector<CheckedInput> inputs;
  int64_t shared_bytes_max = 0;
  int64_t collective_bytes_max = 0;  ///< of the gathered blocks

  /// Called after the last launch of a call.
  struct Watch {
    uint32_t call;
    ByteSpan bytes;
    Runtime::Observer see;
  };
  std::vector<Watch> watches;
};

}  // namespace kern::runtime
