#pragma once
/// The wire form of a part's head.

#include "kern/transport/parts.h"

namespace kern::transport {

std::vector<std::byte> encode_part_head(const PartHead& head);
/// Fails with kind peer: cut, too long, or more bytes than a part may have.
Result<PartHead> read_part_head(ByteSpan payload);

}  // namespace kern::transport
