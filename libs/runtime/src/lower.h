#pragma once
/// From a verified program to a flat list of launches.

#include <map>
#include <span>

#include "built_ins.h"
#include "modules.h"
#include "program.h"
#include "store.h"

namespace kern::runtime {

struct LowerContext {
  const manifest::Verified& manifest;
  const Store& store;
  std::span<const LoadedModule> modules;  ///< by position in the manifest
  const Ranks& ranks;
  const std::map<std::string, PeerGroup*>& peers;
};

/// Lowers calls [first, last) of a program. Every buffer they name has its bytes. Kinds: manifest
/// for what this device cannot do, kernel_artifact for an entry that is missing.
Result<LoweredProgram> lower(const LowerContext& context, size_t program, size_t first,
                             size_t last);

/// The whole program.
Result<LoweredProgram> lower(const LowerContext& context, size_t program);

}  // namespace kern::runtime
