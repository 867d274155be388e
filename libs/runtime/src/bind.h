#pragma once
/// A weight's or source's bytes out of the checkpoint, as its `bind` says.

#include <map>
#include <string>

#include "kern/manifest/types.h"
#include "kern/safetensors/catalog.h"
#include "memory.h"

namespace kern::runtime {

/// This process's place in each group, by name.
using Ranks = std::map<std::string, int64_t, std::less<>>;

/// Bytes that are either owned or lie in the catalog's map.
struct BoundBytes {
  Memory owned;                     ///< empty when in place
  const std::byte* data = nullptr;  ///< never written
};

/// Fills a buffer of `bytes` bytes. With `in_place`, one contiguous and aligned piece of the
/// checkpoint is pointed at instead of copied. Kind weight_artifact, naming buffer and tensor.
Result<BoundBytes> bind_weight(const manifest::Buffer& buffer, int64_t bytes,
                               const safetensors::Catalog& catalog, const Ranks& ranks,
                               bool in_place);

}  // namespace kern::runtime
