#pragma once
/// The host device: everything in this process's memory, launches on its worker threads.

#include "device.h"
#include "kern/runtime/runtime.h"

namespace kern::runtime {

/// Loads the manifest's modules. Kinds kernel_artifact, caller.
Result<std::unique_ptr<Device>> make_host_device(const manifest::Verified& manifest,
                                                 const Options& options);

}  // namespace kern::runtime
