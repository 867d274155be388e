#pragma once
/// What loading a manifest would take and run, decided as a load decides it, but without a module,
/// a checkpoint, a peer or a byte of its memory: so a whole cluster's share is planned anywhere.
/// Thread safety: a pure function.
/// Determinism: the same manifest and capacity give the same plan.
/// Does not: say that modules have their entries or that a checkpoint fits (`check_binds`).

#include <cstdint>
#include <string>
#include <vector>

#include "kern/manifest/verify.h"
#include "kern/runtime/runtime.h"

namespace kern::runtime {

/// A function that a module must have.
struct NeededEntry {
  std::string module, entry;
  friend bool operator==(const NeededEntry&, const NeededEntry&) = default;
};

struct PlannedProgram {
  std::string name;
  int64_t launches = 0;
  int64_t arena_bytes = 0;  ///< its workspaces and scratch, by liveness
};

/// Bytes are one rank's.
struct Plan {
  int64_t state_bytes = 0;           ///< at the capacity
  int64_t weight_bytes = 0;          ///< may lie in the checkpoint
  int64_t buffer_bytes = 0;          ///< inputs, outputs, carries: buffers with memory of their own
  int64_t arena_bytes = 0;           ///< shared by all programs in turn
  int64_t shared_bytes_max = 0;      ///< of one launch, for each worker
  int64_t collective_bytes_max = 0;  ///< of the blocks that one collective gathers
  std::vector<PlannedProgram> programs;
  std::vector<NeededEntry> entries;  ///< each once, in the order of first use

  int64_t bytes() const { return state_bytes + weight_bytes + buffer_bytes + arena_bytes; }
};

/// Refuses whatever `Runtime::load` would refuse on the manifest's or the capacity's account, with
/// the same sentences (this folder's README lists what `verify` cannot see). Every group's rank is
/// taken to be 0: no plan depends on it.
Result<Plan> plan(const manifest::Verified& manifest, const Capacity& capacity);

}  // namespace kern::runtime
