#include "kern/base/bytes.h"

namespace kern {

void ByteWriter::put_text(std::string_view text) {
  put_bytes(as_bytes(text));
}

void ByteWriter::put_bytes(ByteSpan bytes) {
  put(static_cast<uint32_t>(bytes.size()));
  append(bytes);
}

void ByteWriter::append(ByteSpan bytes) {
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
}

ByteSpan ByteReader::take(size_t count) {
  if (!ok_ || count > left()) {
    ok_ = false;
    return {};
  }
  const ByteSpan out = bytes_.subspan(at_, count);
  at_ += count;
  return out;
}

std::string ByteReader::get_text(size_t bytes_max) {
  return std::string(as_text(get_bytes(bytes_max)));
}

ByteSpan ByteReader::get_bytes(size_t bytes_max) {
  const auto count = get<uint32_t>();
  if (count > bytes_max) ok_ = false;
  return take(ok_ ? count : 0);
}

Result<void> ByteReader::finish(std::string_view what) const {
  if (!ok_)
    return fail(Kind::peer, "`{}`: message is cut short or holds a length out of bounds", what);
  if (left() != 0)
    return fail(Kind::peer, "`{}`: {} bytes left over after the message", what, left());
  return {};
}

}  // namespace kern
