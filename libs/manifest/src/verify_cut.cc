#include "scope.h"

namespace kern::manifest {

void verify_cut(const Scope& scope) {
  if (!scope.m.cut) return;
  const Cut& cut = *scope.m.cut;
  if (cut.stages < 2) scope.problem("/cut", "{} stages; expected at least 2", cut.stages);
  if (cut.stage < 0 || cut.stage >= cut.stages)
    scope.problem("/cut", "stage {} is not below the {} stages", cut.stage, cut.stages);
  if (cut.id.empty()) scope.problem("/cut", "an empty id");
}

}  // namespace kern::manifest
