#pragma once
/// A program made flat: launches in order, their arguments bound to addresses, their sizes bound to
/// cells. Lowering decides everything that can be decided at load; running only reads.

#include <memory>
#include <string>
#include <vector>

#include "kern/manifest/verify.h"
#include "kern/runtime/runtime.h"
#include "values.h"

namespace kern::runtime {

struct Launch;

/// A built-in with what was decided about it at load.
class BuiltIn {
 public:
  virtual ~BuiltIn() = default;
  virtual Result<void> run(const Launch& launch) = 0;
};

/// One launch of one call.
struct Launch {
  const void* kernel = nullptr;  ///< the device's own handle; null for a built-in
  std::unique_ptr<BuiltIn> built_in;
  void** args = nullptr;  ///< args[i] points at the parameter
  uint32_t arg_count = 0;
  uint32_t call = 0;         ///< position in the program
  const Cell* grid[3] = {};  ///< kernels only
  uint32_t block[3] = {1, 1, 1};
  uint32_t cluster[3] = {1, 1, 1};
  bool pdl = false;
  const Cell* shared_bytes = nullptr;
  const Cell* when = nullptr;  ///< null: always
  int64_t when_min = 0, when_max = 0;
  std::string op;  ///< for errors

  /// Whether the present values let it run.
  bool is_on() const { return when == nullptr || (*when >= when_min && *when <= when_max); }
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

/// What a run moves between the caller's view of a buffer and the device's, where they differ: as
/// much as the vars make of it.
struct Transfer {
  std::byte* host = nullptr;
  std::byte* device = nullptr;
  std::vector<const Cell*> extents;
  int64_t element_bytes = 1;
  bool changes_only = false;  ///< an input: what the device has of it, only the caller changes

  int64_t bytes() const {
    int64_t product = element_bytes;
    for (const Cell* extent : extents) product *= *extent;
    return product;
  }
};

struct LoweredProgram {
  explicit LoweredProgram(std::span<const manifest::Var> vars) : values(vars) {}

  std::string name;
  bool graph = false;  ///< the manifest lets it be captured
  Values values;
  std::vector<std::unique_ptr<void*[]>> arg_tables;
  std::vector<std::unique_ptr<std::byte[]>> packs;
  std::vector<PackPatch> patches;
  std::vector<Launch> launches;
  std::vector<CheckedInput> inputs;
  std::vector<Transfer> uploads;    ///< inputs and inouts it names
  std::vector<Transfer> downloads;  ///< outputs and inouts it names, that the caller reads
  int64_t shared_bytes_max = 0;
  int64_t collective_bytes_max = 0;  ///< of the gathered blocks

  /// Called after the last launch of a call.
  struct Watch {
    uint32_t call;
    ByteSpan bytes;  ///< on the device
    Runtime::Observer see;
  };
  std::vector<Watch> watches;
};

}  // namespace kern::runtime
