#include "scope.h"

namespace kern::manifest {
namespace {

bool is_output_fill(Fill fill) {
  return fill >= Fill::tokens;
}

/// Whether the role's values fit the dtype, and what would.
std::string_view dtype_problem(Fill fill, Dtype dtype) {
  switch (fill) {
    case Fill::temperature:
    case Fill::top_p:
    case Fill::min_p:
    case Fill::logprob:
    case Fill::top_logprobs:
      return dtype == Dtype::f32 ? "" : "f32";
    case Fill::seed:
      return dtype == Dtype::u64 || dtype == Dtype::i64 ? "" : "u64 or i64";
    default:
      return dtype == Dtype::i32 || dtype == Dtype::i64 ? "" : "i32 or i64";
  }
}

}  // namespace

void verify_fills(const Scope& scope) {
  for (const Buffer& buffer : scope.m.buffers) {
    if (!buffer.fill) continue;
    const std::string pointer = pointer_to("buffers", buffer.name) + "/fill";
    const std::string_view role = to_string(*buffer.fill);
    const auto kind = is_output_fill(*buffer.fill) ? BufferKind::output : BufferKind::input;
    if (buffer.kind != kind)
      scope.problem(pointer, "fill `{}` goes with an {} buffer, not with {} `{}`", role,
                    to_string(kind), to_string(buffer.kind), buffer.name);
    if (const std::string_view want = dtype_problem(*buffer.fill, buffer.dtype); !want.empty())
      scope.problem(pointer, "fill `{}` needs dtype {}, got {}", role, want,
                    to_string(buffer.dtype));
  }
}

}  // namespace kern::manifest
