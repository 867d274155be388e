#pragma once
/// Little-endian encoding of small messages, with bounds checked on the way in.
/// A ByteReader never reads past its span: the first short read makes it `!ok()`, every later read
/// returns zero or empty, and the caller checks once at the end with `finish`.
/// Thread safety: one thread each.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "kern/base/result.h"

namespace kern {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);

using ByteSpan = std::span<const std::byte>;
using MutableByteSpan = std::span<std::byte>;

inline ByteSpan as_bytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}
inline std::string_view as_text(ByteSpan bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
template <class T>
ByteSpan bytes_of(std::span<const T> values) {
  static_assert(std::is_trivially_copyable_v<T>);
  return std::as_bytes(values);
}

/// Appends values to a growing byte string.
class ByteWriter {
 public:
  /// Any integer, floating-point or enum value, little-endian.
  template <class T>
  void put(T value) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    append({reinterpret_cast<const std::byte*>(&value), sizeof(T)});
  }
  /// u32 count, then the bytes.
  void put_text(std::string_view text);
  void put_bytes(ByteSpan bytes);
  /// u32 count, then the elements.
  template <class T>
  void put_vector(std::span<const T> values) {
    put(static_cast<uint32_t>(values.size()));
    append(std::as_bytes(values));
  }
  template <class T>
  void put_vector(const std::vector<T>& values) {
    put_vector(std::span<const T>(values));
  }
  ByteSpan view() const { return bytes_; }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  void append(ByteSpan bytes);

  std::vector<std::byte> bytes_;
};

/// Reads what a ByteWriter wrote from bytes nobody trusts.
class ByteReader {
 public:
  explicit ByteReader(ByteSpan bytes) : bytes_(bytes) {}

  template <class T>
  T get() {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    T value{};
    const ByteSpan raw = take(sizeof(T));
    if (raw.size() == sizeof(T)) std::memcpy(&value, raw.data(), sizeof(T));
    return value;
  }
  std::string get_text(size_t bytes_max);
  /// A view into the reader's own span.
  ByteSpan get_bytes(size_t bytes_max);
  template <class T>
  std::vector<T> get_vector(size_t count_max) {
    const auto count = get<uint32_t>();
    if (count > count_max) fail_read();
    const ByteSpan raw = take(ok_ ? size_t{count} * sizeof(T) : 0);
    std::vector<T> values(raw.size() / sizeof(T));
    if (!raw.empty()) std::memcpy(values.data(), raw.data(), raw.size());
    return values;
  }
  bool ok() const { return ok_; }
  void fail_read() { ok_ = false; }
  size_t left() const { return bytes_.size() - at_; }
  /// Success when every read was whole and no byte is left; else a `peer` error naming `what`.
  Result<void> finish(std::string_view what) const;

 private:
  ByteSpan take(size_t count);

  ByteSpan bytes_;
  size_t at_ = 0;
  bool ok_ = true;
};

}  // namespace kern
