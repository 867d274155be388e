#pragma once
/// Manifests of the model for a device and a layout.
/// Thread safety: free functions; only `pinned_modules` reads files.
/// Determinism: the same config, options and modules give the same manifest.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "gen/config.h"
#include "kern/base/result.h"
#include "kern/manifest/types.h"

namespace k3 {

/// Bounds a manifest is generated for; what is left out has a default that fits the model.
struct Limits {
  std::optional<int64_t> seqs_max;  ///< sequences of a decode step
  std::optional<int64_t> ctx_max;   ///< positions of one sequence
  std::optional<int64_t> chunk;     ///< rows of a prefill call
  std::optional<int64_t> pack;      ///< sequences of a prefill call
  /// Blocks of a collective on device cuda; few where several ranks share a GPU, because blocks
  /// that wait for a peer keep room that the peer's own kernels need.
  std::optional<int64_t> collective_blocks;
};

struct Options {
  std::string model;  ///< the manifest's label
  kern::manifest::Device device = kern::manifest::Device::host;
  /// Nothing beyond plain version 7: greedy, NCCL collectives, no snapshots. Device cuda only.
  bool plain = false;
  /// A step's tokens are the caller's, never the last step's: what `kern cut` needs.
  bool unfed = false;
  bool spelled_out = false;  ///< experts bind by a segment each, without extension `series`
  Limits limits;
  std::vector<kern::manifest::Module> modules;  ///< those not used are left out
};

/// A device's modules in a folder, hashed: kern-host-<family>.so of every family, or every .cubin.
/// Kind kernel_artifact when there are none or one is missing.
kern::Result<std::vector<kern::manifest::Module>> pinned_modules(kern::manifest::Device device,
                                                                 const std::filesystem::path& dir);

/// Prefill and decode on one process, with `logits` as an output.
kern::Result<kern::manifest::Manifest> one_rank(const Config& config, const Options& options);
/// The whole prefill program, to be cut into stages.
kern::Result<kern::manifest::Manifest> prefill(const Config& config, const Options& options);
/// One decode rank of `ranks`; every rank loads the same manifest.
kern::Result<kern::manifest::Manifest> decode(const Config& config, const Options& options,
                                              int64_t ranks);

/// The layers at which `stages` even stages start, the first left out.
kern::Result<std::vector<int64_t>> even_cuts(const Config& config, int64_t stages);
/// Cuts a whole prefill manifest before the given layers; without any it stays whole.
kern::Result<std::vector<kern::manifest::Manifest>> stages(const kern::manifest::Manifest& whole,
                                                           const std::vector<int64_t>& layers);

}  // namespace k3
