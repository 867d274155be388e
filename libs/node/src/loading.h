#pragma once
/// From flags to a runtime that can run items: manifest, modules, weights, state memory.

#include <map>
#include <memory>
#include <string>

#include "kern/base/sha256.h"
#include "kern/node/config.h"
#include "kern/node/runtime_executor.h"
#include "kern/safetensors/catalog.h"

namespace kern::node {

struct LoadedModel {
  std::unique_ptr<manifest::Verified> manifest;
  std::unique_ptr<safetensors::Catalog> weights;  ///< mapped; the runtime uses it in place
  std::unique_ptr<runtime::Runtime> runtime;
  std::unique_ptr<RuntimeExecutor> executor;
  engine::ExecutorLimits limits;  ///< of this process, by its manifest and flags
  int64_t page_tokens = 64;
  Digest manifest_digest{};  ///< of the file's bytes: the same on all ranks of a group
  Digest pipeline{};         ///< of the cut's id: the same on all stages
  Digest model{};            ///< of the config: the same on stages and ranks
};

/// Reads the manifest alone: who this process is, before anything large is loaded.
struct ReadManifest {
  std::unique_ptr<manifest::Verified> manifest;
  Digest digest{};
};
Result<ReadManifest> read_manifest(const DaemonConfig& config);

/// Loads the rest. `peers`: by group name, for the runtime's collectives.
Result<LoadedModel> load_model(const DaemonConfig& config, ReadManifest read,
                               std::map<std::string, runtime::PeerGroup*> peers, const Log& log);

}  // namespace kern::node
