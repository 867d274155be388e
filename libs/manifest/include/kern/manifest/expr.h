#pragma once
/// What expressions, extents and shapes are worth once the vars have values.
/// Thread safety: pure functions.
/// Determinism: integer arithmetic, checked: a result that leaves 64 bits is no result.
/// Does not: know where values come from; a Verified manifest's bounds are one source.

#include <cstdint>
#include <optional>
#include <span>

#include "kern/manifest/types.h"

namespace kern::manifest {

/// The vars of a manifest in declaration order, and one value each.
struct VarValues {
  std::span<const Var> vars;
  std::span<const int64_t> values;

  /// The value of a var by name; nothing when there is no such var.
  std::optional<int64_t> find(std::string_view name) const;
};

/// Every var's `max`, in declaration order.
std::vector<int64_t> max_values(const Manifest& manifest);

/// Nothing on an unknown var or an overflow.
std::optional<int64_t> eval(const Expr& expr, const VarValues& vars);
std::optional<int64_t> eval(const Dim& dim, const VarValues& vars);

/// Product of the extents.
std::optional<int64_t> elements_of(std::span<const Dim> shape, const VarValues& vars);
std::optional<int64_t> bytes_of(Dtype dtype, std::span<const Dim> shape, const VarValues& vars);

/// The form a manifest writes: `tokens`, `64`, `{"mul": [tokens, 2]}`.
std::string to_string(const Expr& expr);

/// Whether the expression mentions the var.
bool mentions(const Expr& expr, std::string_view var);

}  // namespace kern::manifest
