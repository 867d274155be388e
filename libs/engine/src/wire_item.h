#pragma once
/// How the values that messages share are written and read. Readers never throw and never allocate
/// more than the bytes in hand can fill; what does not read leaves the reader `!ok()`.

#include "kern/base/bytes.h"
#include "kern/engine/wire.h"

namespace kern::engine::wire {

void put(ByteWriter& out, const Sampling& value);
void put(ByteWriter& out, const Slice& value);
void put(ByteWriter& out, const HandoffState& value);
void put(ByteWriter& out, const Place& value);
void put(ByteWriter& out, const Emitted& value);
void put(ByteWriter& out, const Item& value);
void put(ByteWriter& out, const ItemResult& value);
void put(ByteWriter& out, const GroupHello& value);

void get(ByteReader& in, const WireLimits& limits, Sampling& value);
void get(ByteReader& in, const WireLimits& limits, Slice& value);
void get(ByteReader& in, const WireLimits& limits, HandoffState& value);
void get(ByteReader& in, const WireLimits& limits, Place& value);
void get(ByteReader& in, const WireLimits& limits, Emitted& value);
void get(ByteReader& in, const WireLimits& limits, Item& value);
void get(ByteReader& in, const WireLimits& limits, ItemResult& value);
void get(ByteReader& in, const WireLimits& limits, GroupHello& value);

/// A bool is one byte, 0 or 1; an enum one byte up to its last value.
inline void put_bool(ByteWriter& out, bool value) {
  out.put<uint8_t>(value ? 1 : 0);
}
bool get_bool(ByteReader& in);
template <class E>
E get_enum(ByteReader& in, E last) {
  const auto value = in.get<uint8_t>();
  if (value > static_cast<uint8_t>(last)) in.fail_read();
  return in.ok() ? static_cast<E>(value) : E{};
}
/// A count of things that take at least `bytes_each` bytes on the wire.
size_t get_count(ByteReader& in, size_t count_max, size_t bytes_each);

}  // namespace kern::engine::wire
