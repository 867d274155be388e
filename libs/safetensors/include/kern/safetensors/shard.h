#pragma once
/// One safetensors file, mapped read-only: a little-endian u64 header length, that many bytes of
/// JSON, then the tensors' bytes without gap or overlap. Everything the header says is checked when
/// the shard is opened; afterwards a view is only a pointer and a length.
/// Thread safety: immutable once opened; views may be read from any thread.
/// Ownership: views point into the map and die with the Shard. The file must not shrink meanwhile.
/// Does not: convert a value or know what a tensor is for.

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kern/base/bytes.h"
#include "kern/base/file.h"

namespace kern::safetensors {

/// Bits of one element of a format dtype ("BF16": 16, "F4": 4), or nothing for an unknown word.
std::optional<int64_t> bits_of(std::string_view dtype);

/// Bytes of a tensor, or nothing when the dtype is unknown, an extent is negative, the product
/// overflows, or the elements do not fill whole bytes.
std::optional<int64_t> bytes_of_tensor(std::string_view dtype, std::span<const int64_t> shape);

/// One tensor of a shard.
struct Tensor {
  std::string name;
  std::string dtype;           ///< as the file spells it: "BF16", "U8", "F8_E4M3"
  std::vector<int64_t> shape;  ///< empty for a scalar
  ByteSpan bytes;              ///< exactly the size that dtype and shape give
};

class Shard {
 public:
  /// Maps and checks a file. A malformed one is kind weight_artifact, and the sentence names the
  /// file and, where there is one, the tensor; a file that cannot be opened is kind io.
  static Result<Shard> open(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  /// Every tensor, in the order of its bytes; tensors without bytes come by name among equals.
  std::span<const Tensor> tensors() const { return tensors_; }

 private:
  Shard(std::filesystem::path path, MappedFile file)
      : path_(std::move(path)), file_(std::move(file)) {}

  std::filesystem::path path_;
  MappedFile file_;
  std::vector<Tensor> tensors_;
};

}  // namespace kern::safetensors
