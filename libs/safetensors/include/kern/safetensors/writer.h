#pragma once
/// Writes a checkpoint: shards and, for more than one, their index.
/// The layout is decided from the list of tensors alone, before a byte is written; the bytes then
/// arrive in any order and in any number of pieces, so a checkpoint larger than memory can be made.
/// Thread safety: one thread.
/// Determinism: the same specs and bytes give the same files. Within a shard, tensors of wider
/// elements come first, then by name, and the data begins on a 64-byte boundary.
/// Does not: check a value.

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kern/base/bytes.h"

namespace kern::safetensors {

struct TensorSpec {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  bool starts_shard = false;  ///< the first tensor of a new shard
};

struct WriterOptions {
  /// A shard ends before the tensor that would take its data over this; a larger tensor is alone.
  int64_t shard_bytes_max = 5'000'000'000;
};

class Writer {
 public:
  /// Lays out and creates the files in `dir`, which is made if it is missing. An unknown dtype, a
  /// bad shape, an empty or repeated name is kind caller; a full disk is kind io.
  static Result<Writer> create(const std::filesystem::path& dir, std::span<const TensorSpec> specs,
                               const WriterOptions& options = {});
  Writer(Writer&&) noexcept;
  Writer& operator=(Writer&&) noexcept;
  /// Removes what `finish` did not complete.
  ~Writer();

  /// Writes part of a tensor at a byte offset within it. Kind caller when it does not fit.
  Result<void> write(std::string_view name, ByteSpan bytes, int64_t offset_bytes = 0);
  /// Puts the files in place under their names. Kind caller when a tensor is not whole.
  Result<void> finish();

 private:
  struct State;
  explicit Writer(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace kern::safetensors
