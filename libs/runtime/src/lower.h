#pragma once
/// From a verified program to a flat list of launches.

#include <map>
#include <set>
#include <string>

#include "bind.h"
#include "layout.h"
#include "target.h"

namespace kern::runtime {

/// Lowering adds to addresses and looks behind none.
struct LowerContext {
  const manifest::Verified& manifest;
  const Layout& layout;
  const Addresses& addresses;
  Target& target;
  const Ranks& ranks;
  const std::map<std::string, PeerGroup*>& peers;
  /// Outputs that the caller reads; null: all.
  const std::set<std::string, std::less<>>* read_back = nullptr;
};

/// Lowers calls [first, last) of a program. Every buffer they name has its address. Kinds: manifest
/// for what this device cannot do, kernel_artifact for an entry that is missing.
Result<LoweredProgram> lower(const LowerContext& context, size_t program, size_t first,
                             size_t last);

/// The whole program.
Result<LoweredProgram> lower(const LowerContext& context, size_t program);

}  // namespace kern::runtime
