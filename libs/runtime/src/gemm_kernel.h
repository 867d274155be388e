// The register-blocked kernel, compiled once per instruction set. The including file defines, in an
// unnamed namespace before the include, `Vec` (kLanes, kRows, zero, load_bf16, fma, store), and no
// inline function of a shared header may be called here: the linker would keep only one of its
// builds.
#pragma once

namespace {

constexpr int kVirtualLanes = 16;
constexpr int kCols = 4;
constexpr int64_t kRowChunkBytes = 256 << 10;  // rows of A kept in the second-level cache

inline float widen(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  __builtin_memcpy(&value, &wide, sizeof(value));
  return value;
}

inline uint16_t narrow(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

/// ((l0+l8)+(l4+l12)) + … : the fixed tree over 16 lanes.
inline float reduce(const float* lanes) {
  const __m128 low = _mm_add_ps(_mm_load_ps(lanes), _mm_load_ps(lanes + 8));
  const __m128 high = _mm_add_ps(_mm_load_ps(lanes + 4), _mm_load_ps(lanes + 12));
  const __m128 four = _mm_add_ps(low, high);
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

/// Sums of kRowCount rows by kCols columns; `w` holds one pointer a column.
template <int kRowCount>
inline void sums(const uint16_t* a, int64_t a_stride, const uint16_t* const* w, int64_t k,
                 float (*out)[kCols]) {
  alignas(64) float lanes[kRowCount][kCols][kVirtualLanes];
  const int64_t whole = k / kVirtualLanes * kVirtualLanes;
  for (int part = 0; part < kVirtualLanes; part += Vec::kLanes) {
    typename Vec::T acc[kRowCount][kCols];
#pragma GCC unroll 8
    for (int r = 0; r < kRowCount; ++r)
#pragma GCC unroll 8
      for (int c = 0; c < kCols; ++c) acc[r][c] = Vec::zero();
    for (int64_t at = part; at < whole; at += kVirtualLanes) {
      typename Vec::T col[kCols];
#pragma GCC unroll 8
      for (int c = 0; c < kCols; ++c) col[c] = Vec::load_bf16(w[c] + at);
#pragma GCC unroll 8
      for (int r = 0; r < kRowCount; ++r) {
        const typename Vec::T row = Vec::load_bf16(a + r * a_stride + at);
#pragma GCC unroll 8
        for (int c = 0; c < kCols; ++c) acc[r][c] = Vec::fma(row, col[c], acc[r][c]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRowCount; ++r)
#pragma GCC unroll 8
      for (int c = 0; c < kCols; ++c) Vec::store(&lanes[r][c][part], acc[r][c]);
  }
  for (int r = 0; r < kRowCount; ++r)
    for (int c = 0; c < kCols; ++c) {
      for (int64_t at = whole; at < k; ++at)
        lanes[r][c][at - whole] += widen(a[r * a_stride + at]) * widen(w[c][at]);
      out[r][c] = reduce(lanes[r][c]);
    }
}

template <int kRowCount>
void block(const Gemm& g, int64_t row, int64_t col, int cols) {
  const uint16_t* w[kCols];
  for (int c = 0; c < kCols; ++c) w[c] = g.w + (col + (c < cols ? c : cols - 1)) * g.k;
  float out[kRowCount][kCols];
  sums<kRowCount>(g.a + row * g.a_stride, g.a_stride, w, g.k, out);
  for (int r = 0; r < kRowCount; ++r) {
    const int64_t at = (row + r) * g.c_stride + col;
    if (g.store == GemmStore::f32) {
      float* c = static_cast<float*>(g.c) + at;
      for (int i = 0; i < cols; ++i) c[i] = out[r][i];
    } else {
      uint16_t* c = static_cast<uint16_t*>(g.c) + at;
      for (int i = 0; i < cols; ++i)
        c[i] = narrow(g.store == GemmStore::bf16 ? out[r][i] : widen(c[i]) + out[r][i]);
    }
  }
}

void rows_of_block(const Gemm& g, int64_t row, int64_t rows, int64_t col, int cols) {
  static_assert(Vec::kRows <= 6);
  while (rows > 0) {
    const int now = rows < Vec::kRows ? static_cast<int>(rows) : Vec::kRows;
    switch (now) {
      case 1:
        block<1>(g, row, col, cols);
        break;
      case 2:
        block<2>(g, row, col, cols);
        break;
      case 3:
        block<3>(g, row, col, cols);
        break;
      case 4:
        if constexpr (Vec::kRows >= 4) block<4>(g, row, col, cols);
        break;
      case 5:
        if constexpr (Vec::kRows >= 5) block<5>(g, row, col, cols);
        break;
      default:
        if constexpr (Vec::kRows >= 6) block<6>(g, row, col, cols);
        break;
    }
    row += now;
    rows -= now;
  }
}

void tile_of(const Gemm& g, const GemmTile& tile) {
  const int64_t row_bytes = g.k * 2 + 1;
  const int64_t fit = kRowChunkBytes / row_bytes / Vec::kRows * Vec::kRows;
  const int64_t chunk = fit < Vec::kRows ? Vec::kRows : fit;
  for (int64_t row = tile.row_begin; row < tile.row_end; row += chunk) {
    const int64_t left = tile.row_end - row;
    for (int64_t col = tile.col_begin; col < tile.col_end; col += kCols) {
      const int64_t cols = tile.col_end - col;
      rows_of_block(g, row, left < chunk ? left : chunk, col,
                    cols < kCols ? static_cast<int>(cols) : kCols);
    }
  }
}

}  // namespace
