#pragma once
/// What the choice of a product's algorithm and its run share.

#include <vector>

#include "kern/cuda/blas.h"

namespace kern::cuda {

/// Of the last class of row counts, which serves all that are more.
inline constexpr int64_t kNoBound = INT64_MAX;

/// The library sees column-major matrices: C^T [n, m] = W [n, k] * A^T [k, m].
struct Matmul::Layouts {
  explicit Layouts(const Blas& b) : blas(b) {}
  Layouts(const Layouts&) = delete;
  Layouts& operator=(const Layouts&) = delete;
  ~Layouts() {
    for (blas_api::Layout layout : {w, a, c})
      if (layout != nullptr) blas->layout_destroy(layout);
  }

  const Blas& blas;
  int64_t m = 0;
  blas_api::Layout w = nullptr, a = nullptr, c = nullptr;
};

/// Row counts to try up to the largest, ascending: all small ones, and around the powers of two.
std::vector<int64_t> row_counts(int64_t m_max);

}  // namespace kern::cuda
