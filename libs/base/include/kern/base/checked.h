#pragma once
/// Overflow-checked arithmetic for sizes that come from files, manifests and sockets.

#include <cstdint>
#include <optional>

namespace kern {

/// a * b, or nothing when it does not fit T.
template <class T>
std::optional<T> checked_mul(T a, T b) {
  T out;
  if (__builtin_mul_overflow(a, b, &out)) return std::nullopt;
  return out;
}
/// a + b, or nothing when it does not fit T.
template <class T>
std::optional<T> checked_add(T a, T b) {
  T out;
  if (__builtin_add_overflow(a, b, &out)) return std::nullopt;
  return out;
}
/// ceil(a / b) for non-negative a and positive b.
template <class T>
constexpr T ceil_div(T a, T b) {
  return a / b + (a % b != 0);
}
/// The smallest multiple of `step` that is at least `a`.
template <class T>
constexpr T round_up(T a, T step) {
  return ceil_div(a, step) * step;
}

}  // namespace kern
