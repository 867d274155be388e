#pragma once
/// A GPU's side of a host tier: page-locked memory near it, and a stream of its own.

#include <memory>

#include "kern/cuda/context.h"
#include "kern/cuda/stream.h"
#include "tier_memory.h"

namespace kern::runtime {

/// Kind device when no such memory can be locked. `main` is the stream that programs run on; it and
/// the context outlive what is made.
Result<std::unique_ptr<TierMemory>> make_cuda_tier(const cuda::Context& context,
                                                   const cuda::Stream& main, int64_t bytes);

}  // namespace kern::runtime
