#pragma once
/// A whole checkpoint: every tensor of its shards by name.
/// A folder holds `model.safetensors.index.json` and the shards it names, or one
/// `model.safetensors`; a path to a single file works too. Headers are read and checked at open, no
/// tensor's bytes are touched before somebody looks at them.
/// Thread safety: immutable once opened.
/// Ownership: views point into the maps and die with the Catalog; moving the Catalog keeps them.
/// Does not: read a byte of a tensor, or know a model.

#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "kern/safetensors/shard.h"

namespace kern::safetensors {

class Catalog {
 public:
  /// Opens a checkpoint. A missing or malformed shard, an index that names a shard or tensor that
  /// is not there, or a name in two places is kind weight_artifact and names the file and the
  /// tensor.
  static Result<Catalog> open(const std::filesystem::path& path);

  /// The tensor of that name, or null.
  const Tensor* find(std::string_view name) const;
  /// The tensor of that name, or a weight_artifact error that names it and the checkpoint.
  Result<const Tensor*> get(std::string_view name) const;
  /// Every tensor, sorted by name.
  std::span<const Tensor* const> tensors() const { return by_name_; }
  std::span<const Shard> shards() const { return shards_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  explicit Catalog(std::filesystem::path path) : path_(std::move(path)) {}

  std::filesystem::path path_;
  std::vector<Shard> shards_;  ///< sorted by file name; never resized after open
  std::vector<const Tensor*> by_name_;
};

}  // namespace kern::safetensors
