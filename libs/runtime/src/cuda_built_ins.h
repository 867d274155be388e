#pragma once
/// The built-ins of the cuda device: products through cuBLASLt, and collectives.

#include <map>

#include "cuda_collectives.h"
#include "kern/cuda/blas.h"
#include "target.h"

namespace kern::runtime {

/// What built-ins work with: the stream, and cuBLASLt, which is looked for when the first product
/// is lowered, as NCCL is with the first collective of several ranks. Equal products share one
/// decision.
class CudaBuiltInRoom {
 public:
  CudaBuiltInRoom(const cuda::Context& context, const cuda::Stream& stream, const Options& options)
      : context_(context),
        stream_(stream),
        collectives_(
            stream, options.nccl,
            options.multicast_is_off ? cuda::NcclMulticast::off : cuda::NcclMulticast::allowed) {}

  const cuda::Stream& stream() const { return stream_; }
  CudaCollectives& collectives() { return collectives_; }
  Result<cuda::Matmul*> matmul(const cuda::Product& product, int64_t m_max,
                               const std::optional<cuda::PinnedAlgo>& pinned);

 private:
  const cuda::Context& context_;
  const cuda::Stream& stream_;
  CudaCollectives collectives_;
  std::unique_ptr<cuda::Blas> blas_;
  std::map<std::pair<cuda::Product, int64_t>, std::unique_ptr<cuda::Matmul>> decided_;
  std::vector<std::unique_ptr<cuda::Matmul>> pinned_;
};

/// Finds a built-in and checks its arguments as Target::built_in says. A null room is a plan's.
Result<LoweredBuiltIn> lower_cuda_built_in(const LaunchSource& source, CudaBuiltInRoom* room);

}  // namespace kern::runtime
