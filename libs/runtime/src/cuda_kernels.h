#pragma once
/// The pinned device code of a manifest: modules loaded, entries looked up once, and what a launch
/// passes compared with what its entry takes.
/// Thread safety: one thread at a time.

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kern/cuda/launch.h"
#include "kern/runtime/runtime.h"
#include "target.h"

namespace kern::runtime {

/// An entry, and how much it has been allowed so far.
struct CudaKernel {
  cuda::Function function;
  uint32_t shared_bytes = 0;
  uint32_t cluster_blocks = 1;
};

class CudaKernels {
 public:
  /// Kind kernel_artifact, naming the module.
  static Result<CudaKernels> load(const manifest::Verified& manifest, const Options& options,
                                  const cuda::Context& context);

  /// Kind kernel_artifact: no such entry, another number of parameters, or one of another size; and
  /// where the launch receives a peer buffer, code that may copy by multicast, which another
  /// device's memory does not survive.
  Result<const CudaKernel*> find(const LaunchSource& source);
  /// Lets every launch of a program have the shared memory and the clusters it asks for; its cells
  /// are at the vars' bounds.
  Result<void> allow(const cuda::Context& context, const LoweredProgram& program);

  size_t modules() const { return modules_.size(); }
  size_t entries() const { return kernels_.size(); }

 private:
  struct Loaded {
    std::string name, path;
    cuda::Module module;
    cuda::Multicast multicast;
  };

  std::vector<Loaded> modules_;  ///< by position in the manifest
  std::map<std::pair<size_t, std::string>, std::unique_ptr<CudaKernel>> kernels_;
};

}  // namespace kern::runtime
