#pragma once
/// What a device does for a host tier: memory to copy to and from, and copies beside the programs.
/// Thread safety: one thread at a time.
/// Ownership: frees its memory once every copy is done.

#include <span>
#include <string>

#include "kern/base/result.h"

namespace kern::runtime {

/// Equally long rows, equally far apart in either memory.
struct TierCopy {
  bool to_host = false;
  std::byte* device = nullptr;
  std::byte* host = nullptr;
  int64_t row_bytes = 0;
  int64_t rows = 1;
  int64_t device_pitch = 0, host_pitch = 0;  ///< from row to row
};

class TierMemory {
 public:
  virtual ~TierMemory() = default;
  virtual std::byte* data() const = 0;
  /// For the line that a load logs: "page-locked on NUMA node 1".
  virtual std::string describe() const = 0;
  /// As HostTier's move, await, done and settle.
  virtual Result<uint64_t> start(std::span<const TierCopy> copies) = 0;
  virtual Result<void> await(uint64_t ticket) = 0;
  virtual Result<uint64_t> done() = 0;
  virtual Result<void> settle() = 0;
};

}  // namespace kern::runtime
