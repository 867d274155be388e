#include "kern/transport/frame.h"

#include <xxhash.h>

#include "kern/base/assert.h"

namespace kern::transport {
namespace {

uint32_t header_check(FrameHeader header) {
  header.check = 0;
  return static_cast<uint32_t>(XXH3_64bits(&header, sizeof header));
}

/// A whole header, of a version that is not ours.
bool has_other_version(ByteSpan bytes) {
  FrameHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  return header.magic == kFrameMagic && header.check == header_check(header) &&
         header.version != kProtocolVersion;
}

}  // namespace

uint64_t frame_bytes_max(Purpose purpose) {
  switch (purpose) {
    case Purpose::control:
      return kControlBytesMax;
    case Purpose::link:
      return kLinkHeadBytesMax;
    case Purpose::mesh:
      return kMeshBytesMax;
    case Purpose::parts:
      return kPartHeadBytesMax;
  }
  return 0;
}

std::string_view to_string(Purpose purpose) {
  switch (purpose) {
    case Purpose::control:
      return "control";
    case Purpose::link:
      return "data link";
    case Purpose::mesh:
      return "mesh";
    case Purpose::parts:
      return "hand-off";
  }
  return "unknown";
}

uint64_t digest64(ByteSpan bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

FrameHeader make_header(uint16_t type, uint32_t flags, uint64_t sequence, uint64_t length,
                        uint64_t digest) {
  FrameHeader header;
  header.type = type;
  header.flags = flags;
  header.sequence = sequence;
  header.length = length;
  header.digest = digest;
  header.check = header_check(header);
  return header;
}

Result<FrameHeader> read_header(ByteSpan bytes, uint64_t sequence, uint64_t length_max) {
  KERN_ASSERT(bytes.size() == sizeof(FrameHeader), "{} bytes", bytes.size());
  FrameHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != kFrameMagic)
    return fail(Kind::peer, "frame {}: expected magic {:#010x}, got {:#010x}", sequence,
                kFrameMagic, header.magic);
  if (header.check != header_check(header))
    return fail(Kind::peer, "frame {}: its header was altered on the way", sequence);
  if (header.version != kProtocolVersion)
    return fail(Kind::peer, "frame {}: expected protocol version {}, got {}", sequence,
                kProtocolVersion, header.version);
  if (header.sequence != sequence)
    return fail(Kind::peer, "frame {}: got number {}; a frame was lost, repeated or swapped",
                sequence, header.sequence);
  if (header.length > length_max)
    return fail(Kind::peer, "frame {}: {} bytes of payload, at most {} allowed", sequence,
                header.length, length_max);
  return header;
}

std::vector<std::byte> encode_frame(uint16_t type, uint64_t sequence, ByteSpan payload) {
  const FrameHeader header = make_header(type, 0, sequence, payload.size(), digest64(payload));
  std::vector<std::byte> bytes(sizeof header + payload.size());
  std::memcpy(bytes.data(), &header, sizeof header);
  if (!payload.empty()) std::memcpy(bytes.data() + sizeof header, payload.data(), payload.size());
  return bytes;
}

FrameAssembler::FrameAssembler(uint64_t length_max, uint64_t sequence)
    : length_max_(length_max), sequence_(sequence) {}

size_t FrameAssembler::wanted() const {
  const size_t have = bytes_.size() - at_;
  const size_t whole = sizeof(FrameHeader) + (header_ ? header_->length : 0);
  return have < whole ? whole - have : 1;
}

void FrameAssembler::append(ByteSpan bytes) {
  if (failed_) return;
  if (at_ == bytes_.size()) {
    bytes_.clear();
    at_ = 0;
  } else if (at_ > bytes_.size() / 2) {
    bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<ptrdiff_t>(at_));
    at_ = 0;
  }
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
}

Result<std::optional<Frame>> FrameAssembler::next() {
  if (failed_) return tl::unexpected<Error>(*failed_);
  const ByteSpan have = ByteSpan(bytes_).subspan(at_);
  if (!header_) {
    if (have.size() < sizeof(FrameHeader)) return std::optional<Frame>();
    auto header = read_header(have.first(sizeof(FrameHeader)), sequence_, length_max_);
    if (!header) {
      failed_ = header.error();
      other_version_ = has_other_version(have);
      return tl::unexpected<Error>(*failed_);
    }
    header_ = *header;
  }
  KERN_ASSERT(header_->length <= length_max_);
  if (have.size() < sizeof(FrameHeader) + header_->length) return std::optional<Frame>();
  const ByteSpan payload = have.subspan(sizeof(FrameHeader), header_->length);
  if (digest64(payload) != header_->digest) {
    failed_ = Error{
        Kind::peer, fmt::format("frame {}: its payload was altered on the way", sequence_), {}};
    return tl::unexpected<Error>(*failed_);
  }
  const Frame frame{header_->type, header_->flags, payload};
  at_ += sizeof(FrameHeader) + payload.size();
  header_.reset();
  ++sequence_;
  return std::optional<Frame>(frame);
}

}  // namespace kern::transport
