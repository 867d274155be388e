#pragma once
/// A manifest under construction: declares each buffer, op and module at its first use and appends
/// calls to programs. Sugar over the plain types; all model knowledge lies with its callers.
/// Thread safety: one thread.

#include <initializer_list>
#include <set>
#include <string>
#include <vector>

#include "kern/manifest/types.h"

namespace k3 {

namespace m = kern::manifest;

/// Shorthand for an extent: a number or a var.
struct Extent {
  m::Dim dim;
  Extent(int64_t value) : dim(m::Dim::of(value)) {}                   // NOLINT: meant to convert
  Extent(const char* var) : dim(m::Dim::of_var(std::string(var))) {}  // NOLINT
};
using Shape = std::initializer_list<Extent>;

// ---- call arguments ----

m::CallArg buf(std::string name, int64_t offset_bytes = 0);
m::CallArg state(std::string name);
m::CallArg var(std::string name);
m::CallArg i32(int64_t value);
m::CallArg f32(double value);

// ---- op parameters ----

m::ParamType in(m::Dtype dtype);
m::ParamType out(m::Dtype dtype);
m::ParamType inout(m::Dtype dtype);
m::ParamType in_state();
m::ParamType inout_state();
m::ParamType p_i32();
m::ParamType p_f32();
m::ParamType p_bytes(int64_t bytes);  ///< passed by value

/// How an op is implemented.
struct Body {
  std::vector<m::Scratch> scratch;
  std::vector<m::Launch> launches;
};

class Builder {
 public:
  explicit Builder(m::Manifest base) : manifest_(std::move(base)) {}

  /// Declares a buffer unless one of that name exists.
  void buffer(m::Buffer buffer);
  void workspace(const std::string& name, m::Dtype dtype, Shape shape);
  void weight(const std::string& name, m::Dtype dtype, Shape shape,
              std::vector<m::BindSegment> bind);

  /// Whether the op still has to be declared; true once for each name.
  bool is_new_op(const std::string& name) { return ops_.insert(name).second; }
  void op(m::Op op) { manifest_.ops.push_back(std::move(op)); }
  /// Declares an op unless one of that name exists.
  void kernel_op(const std::string& name, std::vector<m::ParamType> params, Body body);
  void extern_op(const std::string& name, std::vector<m::ParamType> params,
                 const std::string& builtin);

  /// Starts a program; later calls go to it.
  void program(m::Program program) { manifest_.programs.push_back(std::move(program)); }
  /// The next call carries this label.
  void label(std::string label) { label_ = std::move(label); }
  void call(const std::string& op, std::vector<m::CallArg> args);

  m::Manifest& manifest() { return manifest_; }
  m::Manifest take() { return std::move(manifest_); }

 private:
  m::Manifest manifest_;
  std::set<std::string> buffers_, ops_;
  std::string label_;
};

/// A launch of `entry`; grid axes left out are 1.
m::Launch launch(const std::string& module, const std::string& entry, std::vector<m::Expr> grid,
                 int64_t shared_bytes = 0);

/// ceil(var / rows): blocks of about `rows` rows.
m::Expr blocks_of(const char* var, int64_t rows);

}  // namespace k3
