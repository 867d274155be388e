#pragma once
/// What every connection of this project carries: frames with a fixed little-endian header.
/// A frame's header has a check of its own, its payload a digest, and frames count up from zero in
/// each direction, so a frame that is cut, altered, duplicated, lost or swapped is an error of kind
/// peer and never a message.
/// Thread safety: plain values; a FrameAssembler belongs to one thread.
/// Does not: read sockets, know what a message means, or protect against someone who has the
/// cluster key; connections are authenticated before the first message (handshake.h).

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "kern/base/bytes.h"

namespace kern::transport {

inline constexpr uint32_t kFrameMagic = 0x4E52454B;  ///< "KERN" on the wire
/// Every version keeps the header's size and the places of magic, version and check.
inline constexpr uint16_t kProtocolVersion = 1;

/// The wire form; integers little-endian.
struct FrameHeader {
  uint32_t magic = kFrameMagic;
  uint16_t version = kProtocolVersion;
  uint16_t type = 0;
  uint32_t flags = 0;
  uint32_t check = 0;     ///< low half of the xxh3-64 of this header with check = 0
  uint64_t sequence = 0;  ///< counts up by one in each direction
  uint64_t length = 0;    ///< of the payload that follows
  uint64_t digest = 0;    ///< xxh3-64 of the payload
};
static_assert(sizeof(FrameHeader) == 40 && alignof(FrameHeader) == 8);
static_assert(offsetof(FrameHeader, magic) == 0 && offsetof(FrameHeader, version) == 4);
static_assert(offsetof(FrameHeader, type) == 6 && offsetof(FrameHeader, flags) == 8);
static_assert(offsetof(FrameHeader, check) == 12 && offsetof(FrameHeader, sequence) == 16);
static_assert(offsetof(FrameHeader, length) == 24 && offsetof(FrameHeader, digest) == 32);
static_assert(std::is_trivially_copyable_v<FrameHeader>);

/// Types below this are the transport's own; messages of a daemon start here.
inline constexpr uint16_t kFirstMessageType = 0x100;

enum class FrameType : uint16_t {
  hello = 1,      ///< who a peer is, and its challenge
  proof = 2,      ///< the dialer's answer
  accept = 3,     ///< the listener's: messages may follow
  refuse = 4,     ///< a sentence; the connection ends
  ping = 5,       ///< u64 chosen by the sender
  pong = 6,       ///< the same u64
  goodbye = 7,    ///< a sentence; the connection ends
  item = 8,       ///< a data link's item: names and sizes, raw bytes follow
  digests = 9,    ///< … and the digests of those bytes
  part = 10,      ///< head of a hand-off part, raw bytes follow
  gather = 11,    ///< one member's block of an all_gather
  exchange = 12,  ///< one member's block of an all_to_all
};

/// What a connection is for. It decides how long a frame may be.
enum class Purpose : uint8_t { control = 1, link = 2, mesh = 3, parts = 4 };

inline constexpr uint64_t kHandshakeBytesMax = 1024;
inline constexpr uint64_t kControlBytesMax = uint64_t{64} << 20;
inline constexpr uint64_t kLinkHeadBytesMax = uint64_t{64} << 10;
inline constexpr uint64_t kMeshBytesMax = uint64_t{1} << 30;
inline constexpr uint64_t kPartHeadBytesMax = 256;

/// The longest payload a frame may announce on an authenticated connection of this purpose.
uint64_t frame_bytes_max(Purpose purpose);
std::string_view to_string(Purpose purpose);

/// xxh3-64, the digest of payloads, tensors and parts.
uint64_t digest64(ByteSpan bytes);

/// A whole header, check included, for a payload with this length and digest.
FrameHeader make_header(uint16_t type, uint32_t flags, uint64_t sequence, uint64_t length,
                        uint64_t digest);
/// Reads and checks one header: magic, check, version, sequence and length.
/// `header` holds exactly sizeof(FrameHeader) bytes. Fails with kind peer.
Result<FrameHeader> read_header(ByteSpan header, uint64_t sequence, uint64_t length_max);
/// A header and its payload as one byte string.
std::vector<std::byte> encode_frame(uint16_t type, uint64_t sequence, ByteSpan payload);

/// One received frame; the payload is a view that is good until the assembler's next call.
struct Frame {
  uint16_t type = 0;
  uint32_t flags = 0;
  ByteSpan payload;
};

/// Turns a byte stream that nobody trusts into frames.
/// After the first error it stays failed: every later call returns the same error.
class FrameAssembler {
 public:
  /// `sequence`: of the first frame to come.
  explicit FrameAssembler(uint64_t length_max, uint64_t sequence = 0);

  /// Bytes still missing from the frame that is being read; at least one.
  size_t wanted() const;
  /// Takes bytes as they arrive, any number of them.
  void append(ByteSpan bytes);
  /// The next whole frame, or nothing yet. Fails with kind peer.
  Result<std::optional<Frame>> next();
  /// Whether a frame has begun and is not whole: an end of stream here cuts it.
  bool inside_frame() const { return bytes_.size() > at_; }
  uint64_t sequence() const { return sequence_; }
  /// Whether it failed because the peer speaks another protocol version.
  bool other_version() const { return other_version_; }

 private:
  uint64_t length_max_;
  uint64_t sequence_;
  std::vector<std::byte> bytes_;
  size_t at_ = 0;                      ///< start of the frame being read
  std::optional<FrameHeader> header_;  ///< of that frame, once checked
  std::optional<Error> failed_;
  bool other_version_ = false;
};

}  // namespace kern::transport
