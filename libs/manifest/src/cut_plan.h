#pragma once
/// Where a manifest is sliced and what crosses each edge, before any stage is built.
/// Thread safety: plain values.
/// Ownership: borrows the verified manifest.

#include <set>
#include <span>
#include <string>
#include <vector>

#include "kern/manifest/verify.h"

namespace kern::manifest {

/// A program that runs on every stage: stage s has the calls starts[s] up to starts[s + 1].
struct CutProgram {
  const Program* program = nullptr;
  std::vector<size_t> starts;
};

struct CutPlan {
  size_t stages = 0;
  std::vector<CutProgram> programs;
  /// Positions of the buffers that are live over edge e, from stage e to stage e + 1.
  std::vector<std::set<size_t>> crossing;

  bool receives(size_t stage, size_t buffer) const {
    return stage > 0 && crossing[stage - 1].count(buffer) != 0;
  }
  bool hands_on(size_t stage, size_t buffer) const {
    return stage + 1 < stages && crossing[stage].count(buffer) != 0;
  }
};

/// Refuses labels that do not stand once and in order in every serving program, and what cannot be
/// sliced: a state or a carry that two stages touch, an output with a fill that would have to
/// cross.
tl::expected<CutPlan, Diagnostics> plan_cut(const Verified& whole,
                                            std::span<const std::string> labels);

/// One stage of the plan.
tl::expected<Manifest, Diagnostics> build_stage(const Verified& whole, const CutPlan& plan,
                                                size_t stage, const std::string& id);

}  // namespace kern::manifest
