#pragma once
/// From a verified program to a flat list of launches.

#include <functional>
#include <map>
#include <string>

#include "built_ins.h"
#include "layout.h"
#include "program.h"

namespace kern::runtime {

/// The entry of that name in a module, by its position in the manifest.
using FindEntry = std::function<Result<kern_host_entry>(size_t module, const std::string& entry)>;

/// Lowering calls `find_entry` and adds to addresses; it looks behind neither.
struct LowerContext {
  const manifest::Verified& manifest;
  const Layout& layout;
  const Addresses& addresses;
  const FindEntry& find_entry;
  const Ranks& ranks;
  const std::map<std::string, PeerGroup*>& peers;
};

/// Lowers calls [first, last) of a program. Every buffer they name has its address. Kinds: manifest
/// for what this device cannot do, kernel_artifact for an entry that is missing.
Result<LoweredProgram> lower(const LowerContext& context, size_t program, size_t first,
                             size_t last);

/// The whole program.
Result<LoweredProgram> lower(const LowerContext& context, size_t program);

}  // namespace kern::runtime
