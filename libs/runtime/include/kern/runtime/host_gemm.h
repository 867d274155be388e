#pragma once
/// C = A * W^T on the host, with bytes that depend on nothing but the row and the weights.
/// A sum over k is kept in 16 f32 lanes: lane i takes the products of k = i, i + 16, i + 32, … in
/// that order, then the lanes are added as a fixed tree (i with i+8, i+4, i+2, i+1). A product of
/// two bf16 values is exact in f32 (inside f32's normal range), so fused and separate multiplies
/// agree and every instruction set gives the same bits; tiles and threads cut only rows and
/// columns. Thread safety: pure functions. Determinism: a row of C depends on its own row of A, on
/// W and on k. Does not: start threads or allocate; the runtime splits a call over its workers.

#include <cstdint>
#include <span>

#include "kern/runtime/host_module.h"

namespace kern::runtime {

/// An instruction set that the kernel is built for, slowest first.
enum class Isa : uint8_t { sse42, avx2, avx512 };
const char* to_string(Isa isa);

/// Those this processor runs, slowest first; never empty.
std::span<const Isa> supported_isas();

/// What becomes of a sum.
enum class GemmStore : uint8_t {
  bf16,      ///< rounded to bf16, nearest even
  bf16_add,  ///< added to the bf16 that stands in C, then rounded
  f32,       ///< as it is
};

/// One product. bf16 values are their raw 16 bits; strides are in elements.
struct Gemm {
  const uint16_t* a = nullptr;  ///< [m, k], rows a_stride apart
  const uint16_t* w = nullptr;  ///< [n, k], dense
  void* c = nullptr;            ///< [m, n] uint16_t or float, rows c_stride apart
  int64_t m = 0, n = 0, k = 0;
  int64_t c_stride = 0, a_stride = 0;
  GemmStore store = GemmStore::bf16;
};

/// Half-open ranges of C that one call computes.
struct GemmTile {
  int64_t row_begin = 0, row_end = 0;
  int64_t col_begin = 0, col_end = 0;
};

/// Computes a tile on this thread. `isa` must be one of supported_isas().
void gemm_tile(Isa isa, const Gemm& gemm, const GemmTile& tile);

/// The table handed to modules, single-threaded, with the kernel of that instruction set.
const kern_host_services& host_services(Isa isa);

}  // namespace kern::runtime
