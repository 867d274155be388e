#pragma once
/// The built-ins of the host device, by name, and what each demands of its arguments.

#include <optional>
#include <span>
#include <string_view>

#include "program.h"

namespace kern::runtime {

/// One argument of a launch, resolved.
struct BoundArg {
  const Cell* cell = nullptr;
  manifest::ParamType type;
  std::string_view group;  ///< of a rank
  std::string_view name;   ///< of what a pointer points at
  int64_t bytes_left = 0;  ///< behind a pointer
};

/// Finds a built-in and checks the number and types of its arguments, and what it touches at the
/// vars' bounds (the cells hold them). Kind manifest; names the built-in, not the op.
Result<BuiltIn> resolve_built_in(std::string_view name, std::span<const BoundArg> args,
                                 int64_t group_size);

/// Bytes of gathered blocks that a collective needs, at the present values; 0 for others.
int64_t collective_bytes(std::string_view name, std::span<const BoundArg> args, int64_t group_size);

}  // namespace kern::runtime
