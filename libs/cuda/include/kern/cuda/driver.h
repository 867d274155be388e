#pragma once
/// The driver as a table of functions found at run time, so that no program links a CUDA library
/// and every program starts on a machine without one.
/// Thread safety: immutable once made. Ownership: every handle of this library refers to the Driver
/// it was made with, which outlives it and does not move. libcuda itself is never unloaded.
/// Does not: choose a device, or retry.

#include <memory>

#include "kern/base/result.h"
#include "kern/cuda/api.h"

namespace kern::cuda {

/// The oldest driver that has every function of the table: CUDA 12.4.
inline constexpr int kDriverVersionMin = 12040;

class Driver {
 public:
  /// Opens libcuda.so.1, finds every function at the version it is declared for, and initializes.
  /// Kind device, with the reason: no library, too old, no function, no device.
  static Result<std::unique_ptr<const Driver>> load();
  /// A table of a test's own; nothing is called.
  explicit Driver(const api::Table& table) : table_(table) {}

  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  const api::Table* operator->() const { return &table_; }
  /// Success, or kind device: the call's name, the driver's words, the error's name and number.
  Result<void> check(const char* call, api::Status status) const {
    if (__builtin_expect(status == api::kSuccess, 1)) return {};
    return failed(call, status);
  }

 private:
  Result<void> failed(const char* call, api::Status status) const;

  api::Table table_;
};

}  // namespace kern::cuda
