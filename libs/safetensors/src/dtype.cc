#include <array>

#include "kern/base/checked.h"
#include "kern/safetensors/shard.h"

namespace kern::safetensors {
namespace {

struct Row {
  std::string_view name;
  int64_t bits;
};

constexpr std::array kDtypes = {
    Row{"BOOL", 8},    Row{"U8", 8},   Row{"I8", 8},   Row{"F8_E4M3", 8}, Row{"F8_E5M2", 8},
    Row{"F8_E8M0", 8}, Row{"I16", 16}, Row{"U16", 16}, Row{"F16", 16},    Row{"BF16", 16},
    Row{"I32", 32},    Row{"U32", 32}, Row{"F32", 32}, Row{"I64", 64},    Row{"U64", 64},
    Row{"F64", 64},    Row{"C64", 64}, Row{"F4", 4},   Row{"F6_E2M3", 6}, Row{"F6_E3M2", 6},
};

}  // namespace

std::optional<int64_t> bits_of(std::string_view dtype) {
  for (const Row& row : kDtypes)
    if (row.name == dtype) return row.bits;
  return std::nullopt;
}

std::optional<int64_t> bytes_of_tensor(std::string_view dtype, std::span<const int64_t> shape) {
  const std::optional<int64_t> bits = bits_of(dtype);
  if (!bits) return std::nullopt;
  std::optional<int64_t> total = *bits;
  bool empty = false;
  for (const int64_t extent : shape) {
    if (extent < 0) return std::nullopt;
    if (extent == 0) {
      empty = true;
      continue;
    }
    total = checked_mul(*total, extent);
    if (!total) return std::nullopt;
  }
  if (empty) return 0;
  if (*total % 8 != 0) return std::nullopt;
  return *total / 8;
}

}  // namespace kern::safetensors
