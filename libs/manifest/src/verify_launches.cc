#include "scope.h"

namespace kern::manifest {
namespace {

constexpr int64_t kThreadsPerBlockMax = 1024;
constexpr int64_t kBlockDepthMax = 64;
constexpr int64_t kGridMax[3] = {2147483647, 65535, 65535};
constexpr int64_t kSharedBytesMax = 232448;
constexpr int64_t kClusterBlocksMax = 16;
constexpr std::string_view kAxis = "xyz";

void check_block(const Scope& scope, const Launch& launch, const std::string& pointer) {
  if (launch.block.size() != 3)
    return scope.problem(pointer, "a block of {} extents; expected 3", launch.block.size());
  const auto& b = launch.block;
  if (b[0] < 1 || b[1] < 1 || b[2] < 1 || b[0] > kThreadsPerBlockMax ||
      b[1] > kThreadsPerBlockMax || b[0] * b[1] > kThreadsPerBlockMax ||
      b[2] > kThreadsPerBlockMax || b[0] * b[1] * b[2] > kThreadsPerBlockMax)
    scope.problem(pointer, "a block of [{}, {}, {}]; expected 1 to {} threads, no extent 0", b[0],
                  b[1], b[2], kThreadsPerBlockMax);
  else if (b[2] > kBlockDepthMax)
    scope.problem(pointer, "a block {} deep in z; expected at most {}", b[2], kBlockDepthMax);
}

void check_grid(const Scope& scope, const Launch& launch, const std::string& pointer) {
  if (launch.grid.size() != 3)
    return scope.problem(pointer, "a grid of {} extents; expected 3", launch.grid.size());
  const bool clustered = launch.cluster.size() == 3;
  for (size_t i = 0; i < 3; ++i) {
    const auto high = scope.check_expr(launch.grid[i], fmt::format("{}/grid/{}", pointer, i));
    if (!high) continue;
    const auto low = eval(launch.grid[i], scope.low);
    if (!low || *low < 1)
      scope.problem(pointer, "grid.{} is 0 at the vars' lower bounds", kAxis[i]);
    if (*high > kGridMax[i])
      scope.problem(pointer, "grid.{} reaches {} at the vars' bounds; expected at most {}",
                    kAxis[i], *high, kGridMax[i]);
    if (!clustered || launch.cluster[i] < 1 || !low) continue;
    for (const int64_t value : {*low, *high})
      if (value % launch.cluster[i] != 0) {
        scope.problem(pointer, "grid.{} can be {}, which the cluster's {} does not divide",
                      kAxis[i], value, launch.cluster[i]);
        break;
      }
  }
}

void check_cluster(const Scope& scope, const Launch& launch, const std::string& pointer) {
  if (launch.cluster.empty()) return;
  const auto& c = launch.cluster;
  if (c.size() != 3) return scope.problem(pointer, "a cluster of {} extents; expected 3", c.size());
  const auto fits = [](int64_t extent) { return extent >= 1 && extent <= kClusterBlocksMax; };
  if (!fits(c[0]) || !fits(c[1]) || !fits(c[2]) || c[0] * c[1] * c[2] > kClusterBlocksMax)
    scope.problem(pointer, "a cluster of [{}, {}, {}]; expected 1 to {} blocks, no extent 0", c[0],
                  c[1], c[2], kClusterBlocksMax);
}

void check_kernel(const Scope& scope, const Launch& launch, const std::string& pointer) {
  if (launch.entry.empty()) scope.problem(pointer, "an empty entry");
  if (scope.module(launch.module) == nullptr)
    scope.problem(pointer, "unknown module `{}`", launch.module);
  check_block(scope, launch, pointer);
  check_grid(scope, launch, pointer);
  check_cluster(scope, launch, pointer);
  if (launch.algo) scope.problem(pointer, "`algo` goes with built-ins only");
  if (!launch.shared_mem) return;
  const auto bytes = scope.check_expr(*launch.shared_mem, pointer + "/shared_mem");
  if (bytes && *bytes > kSharedBytesMax)
    scope.problem(pointer,
                  "shared memory reaches {} bytes at the vars' bounds; expected at most {}", *bytes,
                  kSharedBytesMax);
}

void check_when(const Scope& scope, const When& when, const std::string& pointer) {
  if (scope.var(when.var) == nullptr) scope.problem(pointer, "unknown var `{}`", when.var);
  if (when.min && when.max && *when.min > *when.max)
    scope.problem(pointer, "`{}` from {} to {} is never", when.var, *when.min, *when.max);
}

}  // namespace

void verify_launches(const Scope& scope) {
  for (const Op& op : scope.m.ops) {
    for (size_t i = 0; i < op.launches.size(); ++i) {
      const Launch& launch = op.launches[i];
      const std::string pointer = pointer_to(op, i);
      if (launch.when) check_when(scope, *launch.when, pointer + "/when");
      if (launch.is_extern()) {
        if (!launch.module.empty() || !launch.block.empty() || !launch.grid.empty() ||
            launch.shared_mem || !launch.cluster.empty() || launch.pdl)
          scope.problem(pointer, "a built-in has no module and no geometry");
      } else {
        check_kernel(scope, launch, pointer);
      }
    }
  }
}

}  // namespace kern::manifest
