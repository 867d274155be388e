#include "kern/cuda/tensormap.h"

#include <algorithm>
#include <array>

#include "kern/base/assert.h"

namespace kern::cuda {
namespace {

constexpr size_t kDimsMax = 5;

/// Word and the driver's number; 16 four-bit values lie packed in 8 bytes.
constexpr std::array<std::pair<std::string_view, int>, 12> kDtypes = {{{"u8", 0},
                                                                       {"u16", 1},
                                                                       {"u32", 2},
                                                                       {"i32", 3},
                                                                       {"u64", 4},
                                                                       {"i64", 5},
                                                                       {"f16", 6},
                                                                       {"f32", 7},
                                                                       {"f64", 8},
                                                                       {"bf16", 9},
                                                                       {"tf32", 11},
                                                                       {"u4", 13}}};

std::optional<int> dtype_of(std::string_view word) {
  for (const auto& [name, number] : kDtypes)
    if (name == word) return number;
  return std::nullopt;
}

/// 0, 32, 64, 128 are 0, 1, 2, 3; and for the promotion 0, 64, 128, 256.
int steps_of(int64_t bytes, int64_t first) {
  int steps = 0;
  for (int64_t at = first; at <= bytes; at *= 2) ++steps;
  return steps;
}

std::string joined(std::span<const int64_t> values) {
  return fmt::format("[{}]", fmt::join(values, ", "));
}

}  // namespace

Result<api::TensorMap> encode_tensormap(const Driver& driver, api::Pointer address,
                                        const TensormapShape& shape) {
  const size_t rank = shape.dims.size();
  const auto dtype = dtype_of(shape.dtype);
  if (!dtype || rank < 1 || rank > kDimsMax || shape.strides.size() + 1 != rank ||
      shape.box.size() != rank)
    return fail(Kind::manifest, "a tensormap of `{}` with {} dims, {} strides and a box of {}",
                shape.dtype, rank, shape.strides.size(), shape.box.size());
  std::array<uint64_t, kDimsMax> dims{}, strides{};
  std::array<uint32_t, kDimsMax> box{}, steps{};
  for (size_t i = 0; i < rank; ++i) {
    dims[i] = static_cast<uint64_t>(shape.dims[i]);
    box[i] = static_cast<uint32_t>(shape.box[i]);
    steps[i] = 1;
    if (i + 1 < rank) strides[i] = static_cast<uint64_t>(shape.strides[i]);
  }
  api::TensorMap map = {};
  const api::Status status = driver->tensor_map_encode_tiled(
      &map, *dtype, static_cast<uint32_t>(rank), reinterpret_cast<void*>(address), dims.data(),
      strides.data(), box.data(), steps.data(), 0, steps_of(shape.swizzle, 32),
      steps_of(shape.l2_promotion, 64), shape.oob_nan ? 1 : 0);
  if (status != api::kSuccess)
    return fail(Kind::manifest,
                "the driver refuses a tensormap of `{}` at {:#x}: dims {}, strides {}, box {}, "
                "swizzle {}: {}",
                shape.dtype, address, joined(shape.dims), joined(shape.strides), joined(shape.box),
                shape.swizzle, driver.check("cuTensorMapEncodeTiled", status).error().message);
  return map;
}

}  // namespace kern::cuda
