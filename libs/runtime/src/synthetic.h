#pragma once
/// Weights that no checkpoint gives: pseudo-random values at the magnitude that a trained tensor of
/// that shape has, so that shapes without a checkpoint run on numbers that are not special.
/// Thread safety: a pure function. Determinism: the same buffer and seed give the same bytes.

#include <vector>

#include "kern/base/bytes.h"
#include "kern/manifest/types.h"

namespace kern::runtime {

/// Most bytes of a block: sixteen times a prime, so that rows of a usual length repeat late.
constexpr int64_t kSyntheticBlockBytes = int64_t{16} * 65537;

/// The first bytes of a buffer of `bytes` bytes; those behind them repeat these. Floats of a matrix
/// are normal with a deviation of one over the root of its last extent, those of a vector lie
/// around one; scales (e8m0) around 2^-6; packed bytes (u8) are any; fp8 is below two; other
/// integers, which may be indices, are zero. Nothing is NaN or infinite.
std::vector<std::byte> synthetic_block(const manifest::Buffer& buffer, int64_t bytes,
                                       uint64_t seed);

}  // namespace kern::runtime
