#pragma once
/// Bytes in; a Verified manifest, or every diagnostic, out.
/// Thread safety: free functions are pure; a Verified may be read by any number of threads.
/// Ownership: a Verified owns its Manifest; pointers and views it hands out live as long as it
/// does, and survive a move. Determinism: the same bytes give the same manifest, the same
/// diagnostics in the same order. Does not: open files, know a model, look at modules or
/// checkpoints (`check_binds` takes a list).
///
/// The rules, in the order they are checked:
///  1 names      schema version 7; every name declared once; at least one program
///  2 vars       `max` at least 1; one var an axis; no constant is a var; groups have ranks
///  3 states     one size; host shapes; shards fit the state's kind, group and bytes
///  4 buffers    shapes and sizes at the vars' bounds; the fields of each kind; peers
///  5 domains    bounds in order and of the dtype; targets exist; lines divide a slot
///  6 fills      the kind and dtype of each role
///  7 binds      one entry a rank; ranges not empty; interleaves whole; series count
///  8 modules    source and hash syntax
///  9 ops        interface; arguments fit in type and direction; no scratch or `out` read early
/// 10 launches   module; block, grid, cluster and shared memory within limits at both ends of vars
/// 11 packs      fields inside and apart; tensormaps
/// 12 built-ins  the parameters of those that extensions add
/// 13 calls      arity, dtype, i32 range, offsets, tensormap footprints
/// 14 dataflow   nothing read before it is written or written where it is read-only; derive
/// 15 batch      groups, rows, context; once, derive and graph exclude what they exclude
/// 16 cut        a stage below at least two, an id
/// 17 extensions listed when used, used when listed
/// 18 unused     every declaration but constants is used
/// Not checked: what a kernel computes, writes or reads beyond its declared parameters; the names
/// and parameters of version 7's own built-ins, resolved at load; that a module's bytes match its
/// hash; that a checkpoint has the tensors (`check_binds`); shapes of fills and the axes of a batch
/// (`Protocol::check`); offsets into states; that a buffer is written whole.

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

/// Position of each name in its list, the first of those that stand twice. Only asked, never
/// walked, so that no order shows.
class NameIndex {
 public:
  NameIndex() = default;
  template <class Named>
  explicit NameIndex(const Named& named) {
    reserve(named.size());
    for (const auto& one : named) add(one.name);
  }
  std::optional<size_t> find(std::string_view name) const;

 private:
  void reserve(size_t names);
  void add(std::string_view name);
  /// Where the name is, or would be.
  size_t slot_of(std::string_view name) const;

  std::vector<std::string_view> names_;
  std::vector<uint32_t> slots_;  ///< a position in names_ plus one, or 0; never all taken
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
/// range; constants are expanded; schema_version 5 becomes 7, its vars' axes named after what runs
/// over them. All problems together, each with its line.
tl::expected<Manifest, Diagnostics> parse(std::string_view json);

/// Checks the whole and reports every problem.
tl::expected<Verified, Diagnostics> verify(Manifest manifest);

/// `parse`, then `verify`.
tl::expected<Verified, Diagnostics> load(std::string_view json);

/// Canonical JSON, byte-stable; `parse(print(m))` gives m again.
std::string print(const Manifest& manifest);

}  // namespace kern::manifest
