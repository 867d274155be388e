#pragma once
/// The built-ins of the cuda device: products through cuBLASLt, and collectives of a group of one.

#include <map>

#include "kern/cuda/blas.h"
#include "target.h"

namespace kern::runtime {

/// What built-ins work with: the stream, and cuBLASLt, which is looked for when the first product
/// is lowered. Equal products share one decision.
class CudaBuiltInRoom {
 public:
  CudaBuiltInRoom(const cuda::Context& context, const cuda::Stream& stream)
      : context_(context), stream_(stream) {}

  const cuda::Stream& stream() const { return stream_; }
  Result<cuda::Matmul*> matmul(const cuda::Product& product, int64_t m_max,
                               const std::optional<cuda::PinnedAlgo>& pinned);

 private:
  const cuda::Context& context_;
  const cuda::Stream& stream_;
  std::unique_ptr<cuda::Blas> blas_;
  std::map<std::pair<cuda::Product, int64_t>, std::unique_ptr<cuda::Matmul>> decided_;
  std::vector<std::unique_ptr<cuda::Matmul>> pinned_;
};

/// Finds a built-in and checks its arguments as Target::built_in says. A null room is a plan's.
Result<LoweredBuiltIn> lower_cuda_built_in(const LaunchSource& source, CudaBuiltInRoom* room);

}  // namespace kern::runtime
