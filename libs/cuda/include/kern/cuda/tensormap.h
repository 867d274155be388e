#pragma once
/// The 128 bytes with which a kernel's bulk copies find a tile of a tensor.
/// Thread safety: a pure function but for the driver's own check.

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "kern/cuda/driver.h"

namespace kern::cuda {

/// A tensor of up to five dimensions, innermost first.
struct TensormapShape {
  std::string_view dtype;            ///< u4 u8 u16 u32 i32 u64 i64 f16 bf16 f32 f64 tf32
  std::span<const int64_t> dims;     ///< elements
  std::span<const int64_t> strides;  ///< bytes, of every dimension but the innermost
  std::span<const int64_t> box;      ///< elements
  int64_t swizzle = 0;               ///< 0, 32, 64, 128
  int64_t l2_promotion = 0;          ///< 0, 64, 128, 256
  bool oob_nan = false;              ///< what lies outside reads as NaN and not as zero
};

/// Kind manifest when the driver refuses the shape, with all of it.
Result<api::TensorMap> encode_tensormap(const Driver& driver, api::Pointer address,
                                        const TensormapShape& shape);

}  // namespace kern::cuda
