#pragma once
/// One device and its primary context.
/// Thread safety: `make_current` acts on the calling thread; the rest is immutable. Every thread
/// that makes handles or enqueues work calls `make_current` first.
/// Ownership: the primary context is held until destruction; what was made in it goes before.
/// Does not: reset a device or change its settings.

#include <cstdint>
#include <string>

#include "kern/cuda/driver.h"

namespace kern::cuda {

/// What the driver says of a device.
struct DeviceInfo {
  int ordinal = 0;
  std::string name;
  int sm = 0;  ///< 90: compute capability 9.0
  int multiprocessors = 0;
  int64_t memory_bytes = 0;
  int64_t l2_bytes = 0;
  int shared_bytes_max = 0;    ///< dynamic shared memory a block may ask for
  std::string pci;             ///< "0000:1b:00.0"
  int numa_node = -1;          ///< the node of host memory nearest to it; -1: not known
  bool posix_handles = false;  ///< memory may be exported as a file descriptor
  bool fabric_handles = false;
};

/// Devices the driver shows.
Result<int> device_count(const Driver& driver);

class Context {
 public:
  /// Retains the primary context and makes it current on this thread. Kind caller for an ordinal
  /// that is not there.
  static Result<Context> open(const Driver& driver, int ordinal);
  Context(Context&& other) noexcept;
  Context& operator=(Context&& other) noexcept;
  ~Context();

  Result<void> make_current() const;
  /// Waits for all work of the context.
  Result<void> synchronize() const;
  /// Bytes of device memory not taken, by anybody.
  Result<int64_t> free_bytes() const;
  const DeviceInfo& info() const { return info_; }
  const Driver& driver() const { return *driver_; }

 private:
  Context(const Driver& driver, DeviceInfo info, api::Device device)
      : driver_(&driver), info_(std::move(info)), device_(device) {}

  const Driver* driver_;
  DeviceInfo info_;
  api::Device device_ = 0;
  api::Context context_ = nullptr;  ///< null: moved from
};

}  // namespace kern::cuda
