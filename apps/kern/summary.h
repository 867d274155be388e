#pragma once
/// One screen about a verified manifest: what runs, what it keeps, what crosses the cut, what a
/// rank needs to hold it.

#include <string>

#include "kern/manifest/verify.h"
#include "kern/runtime/plan.h"

namespace kern::app {

struct Capacity {
  int64_t pages = 0;
  int64_t slots = 0;
};

/// What a load would take, with pages as large as the manifest's own tables say; refuses what a
/// load would refuse.
Result<runtime::Plan> plan_of(const manifest::Verified& manifest, const Capacity& capacity);

/// Bytes of the checkpoint: on the device, on the host, and only while loading.
struct CheckpointBytes {
  int64_t weights = 0, host_weights = 0, sources = 0;
};
CheckpointBytes checkpoint_bytes(const manifest::Verified& manifest);

std::string summary_of(const manifest::Verified& manifest, const Capacity& capacity);

}  // namespace kern::app
