#pragma once
/// What every group of rules looks at, and the words their sentences share.
/// Thread safety: one thread.
/// Ownership: borrows the manifest, its index and the list of diagnostics.

#include <fmt/format.h>

#include "kern/manifest/verify.h"

namespace kern::manifest {

class Scope {
 public:
  Scope(const Manifest& manifest, const Index& index, std::span<const int64_t> at_max,
        std::span<const int64_t> at_min, Diagnostics& diagnostics)
      : m(manifest),
        index(index),
        high{manifest.vars, at_max},
        low{manifest.vars, at_min},
        diagnostics_(diagnostics) {}

  const Manifest& m;
  const Index& index;
  VarValues high, low;  ///< every var at its max; at 1

  template <class... Args>
  void problem(std::string pointer, fmt::format_string<Args...> format, Args&&... args) const {
    diagnostics_.push_back({std::move(pointer), fmt::format(format, std::forward<Args>(args)...)});
  }

  /// How many there are so far.
  size_t problems() const { return diagnostics_.size(); }

  /// Null when there is none of that name.
  const Var* var(std::string_view name) const { return find(m.vars, index.vars, name); }
  const Group* group(std::string_view name) const { return find(m.groups, index.groups, name); }
  const State* state(std::string_view name) const { return find(m.states, index.states, name); }
  const Buffer* buffer(std::string_view name) const { return find(m.buffers, index.buffers, name); }
  const Op* op(std::string_view name) const { return find(m.ops, index.ops, name); }
  const Module* module(std::string_view name) const { return find(m.modules, index.modules, name); }

  /// Says when an expression names an unknown var, multiplies by zero or divides by it, or
  /// overflows at the vars' bounds; the value there otherwise.
  std::optional<int64_t> check_expr(const Expr& expr, const std::string& pointer) const;
  /// The same for a shape and its bytes.
  std::optional<int64_t> check_shape(Dtype dtype, const std::vector<Dim>& shape,
                                     const std::string& pointer) const;
  /// Says when a topology group is unknown; its size otherwise.
  std::optional<int64_t> check_group(std::string_view name, const std::string& pointer) const;

 private:
  template <class T>
  static const T* find(const std::vector<T>& list, const NameIndex& names, std::string_view name) {
    const auto at = names.find(name);
    return at ? &list[*at] : nullptr;
  }
  bool check_expr_form(const Expr& expr, const std::string& pointer) const;

  Diagnostics& diagnostics_;
};

/// "/buffers/x", names escaped.
std::string pointer_to(std::string_view section, std::string_view name);
std::string pointer_to(const Op& op, size_t launch);
std::string pointer_to(const Program& program, size_t call);
std::string pointer_to(const Program& program, size_t call, size_t arg);

/// The launch's own parameter types: `params`, or the op's.
const std::vector<ParamType>& abi_of(const Op& op, const Launch& launch);
/// The launch's arguments: `args`, or every op param in order.
std::vector<LaunchArg> args_of(const Op& op, const Launch& launch);

/// Bytes a tensormap's dims and strides reach past its base; nothing when that passes 64 bits.
std::optional<uint64_t> footprint_of(const Tensormap& map);
/// Bits of an element in TMA's own list; 0 for a word that is not on it.
int64_t tma_bits(std::string_view dtype);

/// Which declarations something names, by position in their lists.
struct Used {
  std::vector<bool> vars, groups, states, buffers, modules, ops;
};
Used find_used(const Manifest& manifest, const Index& index);
/// Whether the buffer comes over an edge of a cut, or may be left where it is: with the extension
/// `hand_on` no call need look at it.
bool is_handed_on(const Manifest& manifest, const Buffer& buffer);

/// The extensions a manifest needs, whatever its `uses` says, in their fixed order.
std::vector<std::string> needed_extensions(const Manifest& manifest);

bool reads(Direction direction);
bool writes(Direction direction);

// ---- the rules, numbered as in verify.h ----

void verify_names(const Scope& scope);
void verify_vars(const Scope& scope);
void verify_states(const Scope& scope);
void verify_buffers(const Scope& scope);
void verify_domains(const Scope& scope);
void verify_fills(const Scope& scope);
void verify_binds(const Scope& scope);
void verify_modules(const Scope& scope);
void verify_ops(const Scope& scope);
void verify_launches(const Scope& scope);
void verify_packs(const Scope& scope);
void verify_builtins(const Scope& scope);
void verify_calls(const Scope& scope);
void verify_dataflow(const Scope& scope);
void verify_batch(const Scope& scope);
void verify_cut(const Scope& scope);
void verify_extensions(const Scope& scope);
void verify_unused(const Scope& scope);

}  // namespace kern::manifest
