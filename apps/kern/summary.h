#pragma once
/// One screen about a verified manifest: what runs, what it keeps, what a rank needs to hold it.

#include <string>

#include "kern/manifest/verify.h"

namespace kern::app {

struct Capacity {
  int64_t pages = 0;
  int64_t slots = 0;
};

struct Memory {
  int64_t weights = 0;  ///< on the device
  int64_t host_weights = 0;
  int64_t sources = 0;  ///< only while loading
  int64_t carries = 0;
  int64_t step = 0;     ///< inputs, outputs and workspaces at their bounds, none aliased
  int64_t scratch = 0;  ///< of the op that wants most
  int64_t states = 0;   ///< at the capacity
};

/// `page_tokens` is the stride of the manifest's page tables; 1 when it has none.
Memory memory_of(const manifest::Verified& manifest, const Capacity& capacity);

std::string summary_of(const manifest::Verified& manifest, const Capacity& capacity);

}  // namespace kern::app
