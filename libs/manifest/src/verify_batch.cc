#include "scope.h"

namespace kern::manifest {
namespace {

void check_batch(const Scope& scope, const Batch& batch, const std::string& pointer) {
  if (batch.groups < 1) scope.problem(pointer, "`groups` is {}; expected at least 1", batch.groups);
  if (const auto* rows = std::get_if<int64_t>(&batch.rows)) {
    if (*rows < 1) scope.problem(pointer, "`rows` is {}; expected at least 1", *rows);
  } else if (const auto& name = std::get<std::string>(batch.rows); scope.var(name) == nullptr) {
    scope.problem(pointer, "`rows` names unknown var `{}`", name);
  }
  if (!batch.context.empty() && scope.var(batch.context) == nullptr)
    scope.problem(pointer, "`context` names unknown var `{}`", batch.context);
}

}  // namespace

void verify_batch(const Scope& scope) {
  for (const Program& program : scope.m.programs) {
    const std::string pointer = pointer_to("programs", program.name);
    if (program.batch) check_batch(scope, *program.batch, pointer + "/batch");
    if (program.derive && (program.once || program.batch || program.graph))
      scope.problem(pointer, "`derive` excludes `once`, `batch` and `graph`");
    if (program.once && program.batch) scope.problem(pointer, "`once` excludes `batch`");
    if (program.graph && !program.batch) scope.problem(pointer, "`graph` goes with a `batch` only");
  }
}

}  // namespace kern::manifest
