#pragma once
/// Bytes in; a Verified manifest, or every diagnostic, out.
/// Thread safety: free functions are pure; a Verified may be read by any number of threads.
/// Ownership: a Verified owns its Manifest; pointers and views it hands out live as long as it does,
/// and survive a move.
/// Determinism: the same bytes give the same manifest, the same diagnostics in the same order.
/// Does not: open files, know a model, look at modules or checkpoints (`check_binds` takes a list).

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "kern/base/error.h"
#include "kern/manifest/expr.h"
#include "kern/manifest/types.h"

namespace kern::manifest {

/// One problem: where, as a JSON pointer (`/ops/norm/impl/launches/0`), and what.
struct Diagnostic {
  std::string pointer;
  std::string sentence;
  friend bool operator==(const Diagnostic&, const Diagnostic&) = default;
};

using Diagnostics = std::vector<Diagnostic>;

/// "pointer: sentence", one a line.
std::string to_text(const Diagnostics& diagnostics);
/// All of them as one error of kind manifest about `what`, for callers that speak Result.
Error to_error(const Diagnostics& diagnostics, std::string_view what);

/// Position of each name in its list.
class NameIndex {
 public:
  NameIndex() = default;
  template <class T>
  explicit NameIndex(const std::vector<T>& named) {
    entries_.reserve(named.size());
    for (const T& one : named) add(one.name);
    sort();
  }
  std::optional<size_t> find(std::string_view name) const;

 private:
  void add(std::string_view name);
  void sort();

  struct Entry {
    std::string_view name;
    size_t index;
  };
  std::vector<Entry> entries_;
};

/// Name lookups over a Manifest, which must outlive it and not move its lists.
struct Index {
  explicit Index(const Manifest& manifest);
  NameIndex vars, groups, states, buffers, modules, ops, programs;
};

/// A manifest that passed every rule below. Only `verify` makes one.
class Verified {
 public:
  Verified(Verified&&) noexcept = default;
  Verified& operator=(Verified&&) noexcept = default;

  const Manifest& operator*() const { return *manifest_; }
  const Manifest* operator->() const { return manifest_.get(); }
  const Index& index() const { return *index_; }

  /// By name; null when there is none.
  const Var* var(std::string_view name) const;
  const Group* group(std::string_view name) const;
  const State* state(std::string_view name) const;
  const Buffer* buffer(std::string_view name) const;
  const Module* module(std::string_view name) const;
  const Op* op(std::string_view name) const;
  const Program* program(std::string_view name) const;

  /// Every var's `max`, in declaration order.
  std::span<const int64_t> vars_max() const { return vars_max_; }
  /// The vars with the given values (one each, in declaration order), or with their bounds.
  VarValues with(std::span<const int64_t> values) const { return {manifest_->vars, values}; }
  VarValues at_bounds() const { return with(vars_max_); }
  /// Bytes of a buffer at the vars' bounds, by position in `buffers`.
  int64_t bytes_max(size_t buffer) const { return buffer_bytes_max_[buffer]; }
  int64_t bytes_max(const Buffer& buffer) const;

 private:
  friend tl::expected<Verified, Diagnostics> verify(Manifest manifest);
  explicit Verified(std::unique_ptr<const Manifest> manifest);

  std::unique_ptr<const Manifest> manifest_;
  std::unique_ptr<const Index> index_;
  std::vector<int64_t> vars_max_;
  std::vector<int64_t> buffer_bytes_max_;
};

/// Reads JSON. Refuses unknown keys, duplicate names at any depth, wrong types and numbers out of
/// range; constants are expanded. All problems together, each with its line.
tl::expected<Manifest, Diagnostics> parse(std::string_view json);

/// Checks the whole and reports every problem.
tl::expected<Verified, Diagnostics> verify(Manifest manifest);

/// `parse`, then `verify`.
tl::expected<Verified, Diagnostics> load(std::string_view json);

/// Canonical JSON, byte-stable; `parse(print(m))` gives m again.
std::string print(const Manifest& manifest);

}  // namespace kern::manifest
