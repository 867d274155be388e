#include "part_head.h"

namespace kern::transport {

std::vector<std::byte> encode_part_head(const PartHead& head) {
  ByteWriter out;
  out.put(head.request);
  out.put(head.generation);
  out.put(head.bytes);
  out.put(head.digest);
  out.put_text(head.state);
  return out.take();
}

Result<PartHead> read_part_head(ByteSpan payload) {
  ByteReader in(payload);
  PartHead head;
  head.request = in.get<uint64_t>();
  head.generation = in.get<uint64_t>();
  head.bytes = in.get<uint64_t>();
  head.digest = in.get<uint64_t>();
  head.state = in.get_text(kStateNameBytesMax);
  KERN_TRY_VOID(in.finish("head of a part"));
  if (head.bytes > kPartBytesMax)
    return fail(Kind::peer, "a part of {} bytes, at most {} allowed", head.bytes, kPartBytesMax);
  return head;
}

}  // namespace kern::transport
