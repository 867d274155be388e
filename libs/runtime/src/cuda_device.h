#pragma once
/// The cuda device: memory, streams and kernels of one GPU, through libs/cuda.

#include "device.h"
#include "kern/runtime/runtime.h"

namespace kern::runtime {

/// Finds the driver unless the options give one, opens the device and loads the manifest's modules.
/// Kinds device, kernel_artifact, caller.
Result<std::unique_ptr<Device>> make_cuda_device(const manifest::Verified& manifest,
                                                 const Options& options, const Log& log);

}  // namespace kern::runtime
