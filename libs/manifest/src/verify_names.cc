#include <algorithm>

#include "scope.h"
#include "vocabulary.h"

namespace kern::manifest {
namespace {

template <class T>
void check_unique(const Scope& scope, std::string_view section, const std::vector<T>& list) {
  std::vector<std::string_view> names;
  names.reserve(list.size());
  for (const T& one : list) names.push_back(one.name);
  std::sort(names.begin(), names.end());
  for (size_t i = 1; i < names.size(); ++i)
    if (names[i] == names[i - 1] && (i < 2 || names[i] != names[i - 2]))
      scope.problem(pointer_to(section, names[i]), "`{}` is declared twice", names[i]);
}

}  // namespace

void verify_names(const Scope& scope) {
  const Manifest& m = scope.m;
  if (m.schema_version != 7)
    scope.problem("/schema_version", "expected 7, got {}", m.schema_version);
  check_unique(scope, "constants", m.constants);
  check_unique(scope, "vars", m.vars);
  check_unique(scope, "topology/groups", m.groups);
  check_unique(scope, "states", m.states);
  check_unique(scope, "buffers", m.buffers);
  check_unique(scope, "modules", m.modules);
  check_unique(scope, "ops", m.ops);
  check_unique(scope, "programs", m.programs);
  for (const Op& op : m.ops)
    check_unique(scope, fmt::format("ops/{}/impl/scratch", op.name), op.scratch);
  if (m.programs.empty()) scope.problem("/programs", "there is no program; expected at least one");
}

void verify_vars(const Scope& scope) {
  const Var* of_axis[3] = {};
  for (const Var& var : scope.m.vars) {
    const std::string pointer = pointer_to("vars", var.name);
    if (var.max < 1) scope.problem(pointer, "`max` is {}; expected at least 1", var.max);
    if (!var.axis) continue;
    const auto axis = static_cast<size_t>(*var.axis);
    if (of_axis[axis] != nullptr)
      scope.problem(pointer, "counts the `{}` axis, which var `{}` counts already", kAxes[axis],
                    of_axis[axis]->name);
    of_axis[axis] = &var;
  }
  for (const Constant& constant : scope.m.constants)
    if (scope.var(constant.name) != nullptr)
      scope.problem(pointer_to("constants", constant.name), "`{}` is also a var", constant.name);
  for (const Group& group : scope.m.groups)
    if (group.size < 1)
      scope.problem(pointer_to("topology/groups", group.name),
                    "a group of {} ranks; expected at least 1", group.size);
}

}  // namespace kern::manifest
