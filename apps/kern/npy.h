#pragma once
/// Arrays in NumPy's .npy format, version 1, little-endian, in C order.

#include <filesystem>
#include <string>
#include <vector>

#include "kern/base/bytes.h"
#include "kern/manifest/types.h"

namespace kern::app {

struct Array {
  std::string descr;  ///< NumPy's word for the elements: "<f4", "<u2"
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
  int64_t rows() const { return shape.empty() ? 1 : shape[0]; }
};

Result<Array> read_npy(const std::filesystem::path& path);
Result<void> write_npy(const std::filesystem::path& path, const Array& array);

/// Bytes per element of a descr; 0 when unknown.
int64_t npy_element_bytes(std::string_view descr);

/// What a buffer's elements become: bf16 widens to f32, which is exact; packed types stay bytes.
std::string npy_descr(manifest::Dtype dtype);
/// Elements of a buffer, appended in the form of `npy_descr`.
void append_as_npy(manifest::Dtype dtype, ByteSpan from, std::vector<std::byte>& to);

/// The array's bytes as elements of a buffer: bf16 from f32 or f64 (nearest even) or raw 16 bits,
/// f32 from f32 or f64, i32 from i32 or i64, others from their own kind.
Result<std::vector<std::byte>> as_buffer(const Array& array, manifest::Dtype dtype);

}  // namespace kern::app
