// Any bytes as what a peer sends. Taken whole or in pieces they give the same frames and the same
// error. And the input as payloads of honest frames, of which one byte may be altered: the frames
// before it arrive as they were sent, the altered one never does. And the payloads as the frames of
// a handshake, whose end never takes a stranger for a peer.
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "kern/base/assert.h"
#include "kern/base/prng.h"
#include "kern/transport/frame.h"
#include "kern/transport/handshake.h"

using namespace kern;
using namespace kern::transport;

namespace {

constexpr uint64_t kLengthMax = 4096;

struct Seen {
  std::vector<std::string> frames;
  std::string error;
  friend bool operator==(const Seen&, const Seen&) = default;
};

/// What an assembler makes of the bytes, in pieces of at most `piece`.
Seen seen_in(ByteSpan bytes, size_t piece) {
  FrameAssembler assembler(kLengthMax);
  Seen seen;
  while (seen.error.empty()) {
    const size_t taken = std::min(piece, bytes.size());
    assembler.append(bytes.first(taken));
    bytes = bytes.subspan(taken);
    for (;;) {
      KERN_ASSERT(assembler.wanted() >= 1);
      const auto frame = assembler.next();
      if (!frame) seen.error = frame.error().text();
      if (!frame || !*frame) break;
      seen.frames.push_back(fmt::format("{} {} ", (*frame)->type, (*frame)->flags) +
                            std::string(as_text((*frame)->payload)));
    }
    if (bytes.empty()) break;
  }
  return seen;
}

void check_stream(ByteSpan bytes) {
  const Seen whole = seen_in(bytes, bytes.size() + 1);
  for (const size_t piece : {size_t{1}, size_t{7}, size_t{40}})
    KERN_ASSERT(seen_in(bytes, piece) == whole, "pieces of {} bytes make a difference", piece);
}

/// Cuts the input into payloads by its own bytes.
std::vector<ByteSpan> payloads_of(ByteSpan bytes) {
  std::vector<ByteSpan> out;
  while (!bytes.empty() && out.size() < 8) {
    const size_t wanted = static_cast<size_t>(bytes[0]) * 2;
    const size_t taken = std::min(wanted, bytes.size() - 1);
    out.push_back(bytes.subspan(1, taken));
    bytes = bytes.subspan(1 + taken);
  }
  return out;
}

void check_frames(const std::vector<ByteSpan>& payloads, Prng& random) {
  std::vector<std::byte> stream;
  std::vector<size_t> ends;
  Seen sent;
  for (size_t i = 0; i < payloads.size(); ++i) {
    const auto type = static_cast<uint16_t>(random.below(16));
    const auto frame = encode_frame(type, i, payloads[i]);
    stream.insert(stream.end(), frame.begin(), frame.end());
    ends.push_back(stream.size());
    sent.frames.push_back(fmt::format("{} 0 ", type) + std::string(as_text(payloads[i])));
  }
  KERN_ASSERT(seen_in(stream, 64) == sent, "what was sent is not what arrives");
  if (stream.empty()) return;
  const size_t at = random.below(stream.size());
  stream[at] ^= static_cast<std::byte>(1 + random.below(255));
  const Seen altered = seen_in(stream, 64);
  size_t whole = 0;
  while (ends[whole] <= at) ++whole;
  KERN_ASSERT(altered.frames.size() == whole, "{} frames of {} arrive, byte {} was altered",
              altered.frames.size(), payloads.size(), at);
}

void check_handshake(const std::vector<ByteSpan>& payloads, Prng& random) {
  for (const auto side : {Handshake::Side::dialer, Handshake::Side::listener}) {
    Terms terms;
    terms.self = {Role::stage, 1, Purpose::control, {}, 7};
    terms.key = *ClusterKey::from_bytes(as_bytes("a secret of the cluster"));
    Handshake handshake(side, std::move(terms));
    KERN_ASSERT(handshake.start().has_value());
    for (const ByteSpan payload : payloads) {
      Frame frame;
      frame.type = static_cast<uint16_t>(1 + random.below(5));
      frame.payload = payload;
      const auto step = handshake.receive(frame);
      if (step.failed) break;
    }
    KERN_ASSERT(!handshake.done(), "a stranger is taken for a peer");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const ByteSpan bytes(reinterpret_cast<const std::byte*>(data), size);
  check_stream(bytes);
  const auto payloads = payloads_of(bytes);
  Prng random(digest64(bytes));
  check_frames(payloads, random);
  check_handshake(payloads, random);
  return 0;
}
