#pragma once
/// Files: whole reads, read-only maps, atomic writes. Failures are kind io and name the path.

#include <filesystem>
#include <string>
#include <vector>

#include "kern/base/bytes.h"

namespace kern {

/// The whole file; refuses one larger than `bytes_max`.
Result<std::string> read_file(const std::filesystem::path& path, size_t bytes_max);
/// Writes beside `path` and renames, so a reader sees the old bytes or the new ones.
Result<void> write_file(const std::filesystem::path& path, ByteSpan bytes);

/// A read-only memory map of a whole file.
class MappedFile {
 public:
  static Result<MappedFile> open(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();
  ByteSpan bytes() const { return {data_, size_}; }

 private:
  MappedFile(const std::byte* data, size_t size) : data_(data), size_(size) {}
  const std::byte* data_;
  size_t size_;
};

}  // namespace kern
