#pragma once
/// One launch of a kernel.
/// Thread safety: as the Stream. Ownership: arguments are read before `launch` returns.

#include <array>
#include <cstdint>

#include "kern/cuda/module.h"
#include "kern/cuda/stream.h"

namespace kern::cuda {

struct LaunchShape {
  std::array<uint32_t, 3> grid = {1, 1, 1};
  std::array<uint32_t, 3> block = {1, 1, 1};
  std::array<uint32_t, 3> cluster = {1, 1, 1};  ///< all ones: no clusters
  uint32_t shared_bytes = 0;                    ///< dynamic
  bool pdl = false;          ///< may start before the launch ahead of it in the stream has ended
  bool cooperative = false;  ///< all blocks at once, or the launch fails
};

/// Lets a function be launched with so much dynamic shared memory, and with clusters of more than
/// eight blocks; the default is 48 KiB, and eight. Kind kernel_artifact when the device has less.
Result<void> allow(const Context& context, const Function& function, uint32_t shared_bytes,
                   const std::array<uint32_t, 3>& cluster);

/// Enqueues it; params[i] points at the i-th parameter.
Result<void> launch(const Stream& stream, const Function& function, const LaunchShape& shape,
                    void* const* params);

}  // namespace kern::cuda
