#pragma once
/// The host tier of a loaded manifest's states: from places to copies.

#include <memory>
#include <vector>

#include "device.h"
#include "kern/runtime/host_tier.h"
#include "store.h"

namespace kern::runtime {

/// How large one place is, over all states.
TierSize tier_size(const manifest::Manifest& manifest, const Capacity& capacity, int64_t bytes);

/// Takes `bytes` of host memory. Kind caller when that is not even one place of each kind, device
/// when the machine has no such memory. The store and the device outlive it.
Result<std::unique_ptr<HostTier>> make_host_tier(const manifest::Manifest& manifest,
                                                 const Store& store, Device& device, int64_t bytes,
                                                 const Log& log);

}  // namespace kern::runtime
