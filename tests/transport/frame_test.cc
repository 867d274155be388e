#include "kern/transport/frame.h"

#include <catch2/catch.hpp>

#include "kern/base/prng.h"
#include "kern/base/sha256.h"

using namespace kern;
using namespace kern::transport;

namespace {

constexpr uint16_t kType = 0x123;

/// The frames that come out of a byte stream, or the sentence that ended it.
struct Heard {
  std::vector<std::string> payloads;
  std::string error;
};

Heard hear(ByteSpan bytes, size_t step = SIZE_MAX, uint64_t length_max = 1000) {
  FrameAssembler assembler(length_max);
  Heard heard;
  while (!bytes.empty() && heard.error.empty()) {
    const size_t count = std::min(step, bytes.size());
    assembler.append(bytes.first(count));
    bytes = bytes.subspan(count);
    for (;;) {
      auto frame = assembler.next();
      if (!frame) {
        CHECK(frame.error().kind == Kind::peer);
        heard.error = frame.error().text();
        CHECK_FALSE(assembler.next());
        break;
      }
      if (!*frame) break;
      CHECK((*frame)->type == kType);
      heard.payloads.emplace_back(as_text((*frame)->payload));
    }
  }
  return heard;
}

std::vector<std::byte> stream_of(const std::vector<std::string>& payloads) {
  std::vector<std::byte> all;
  for (size_t i = 0; i < payloads.size(); ++i) {
    const auto one = encode_frame(kType, i, as_bytes(payloads[i]));
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

}  // namespace

TEST_CASE("a frame is these bytes", "[transport][frame]") {
  CHECK(to_hex(encode_frame(kType, 2, as_bytes("abc"))) ==
        "4b45524e"          // magic
        "01002301"          // version, type
        "00000000"          // flags
        "3590ff9f"          // check
        "0200000000000000"  // sequence
        "0300000000000000"  // length
        "50392f89945faf78"  // digest: the published xxh3-64 of abc, 78af5f94892f3950
        "616263");
}

TEST_CASE("frames come out whole and in order however the bytes are cut", "[transport][frame]") {
  const std::vector<std::string> payloads{"first", "", "third one", std::string(700, 'x')};
  const auto bytes = stream_of(payloads);
  for (size_t step = 1; step < bytes.size(); step += step < 60 ? 1 : 97)
    REQUIRE(hear(bytes, step).payloads == payloads);
  CHECK(hear(bytes).payloads == payloads);
}

TEST_CASE("no truncation delivers anything but the frames before it", "[transport][frame]") {
  const auto bytes = stream_of({"first", "second"});
  const size_t first = sizeof(FrameHeader) + 5;
  for (size_t size = 0; size < bytes.size(); ++size) {
    const auto heard = hear(ByteSpan(bytes).first(size));
    REQUIRE(heard.error.empty());
    REQUIRE(heard.payloads.size() == (size >= first ? 1 : 0));
  }
}

TEST_CASE("an assembler knows when an end of stream cuts a frame", "[transport][frame]") {
  const auto bytes = stream_of({"first", "second"});
  const size_t first = sizeof(FrameHeader) + 5;
  for (size_t size = 0; size < bytes.size(); ++size) {
    FrameAssembler assembler(1000);
    assembler.append(ByteSpan(bytes).first(size));
    while (true) {
      auto frame = assembler.next();
      REQUIRE(frame);
      if (!*frame) break;
    }
    REQUIRE(assembler.inside_frame() == (size != 0 && size != first));
    REQUIRE(assembler.wanted() >= 1);
    REQUIRE(size + assembler.wanted() <= bytes.size());
  }
}

TEST_CASE("every flipped bit of a frame is an error and never a message", "[transport][frame]") {
  const auto good = stream_of({"only one"});
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    auto bytes = good;
    bytes[bit / 8] ^= std::byte(1 << (bit % 8));
    const auto heard = hear(bytes);
    INFO("bit " << bit);
    REQUIRE(heard.payloads.empty());
    REQUIRE_FALSE(heard.error.empty());
  }
}

TEST_CASE("a frame that is repeated, lost or swapped is an error", "[transport][frame]") {
  const auto a = encode_frame(kType, 0, as_bytes("a"));
  const auto b = encode_frame(kType, 1, as_bytes("b"));
  const auto joined = [](std::vector<std::vector<std::byte>> frames) {
    std::vector<std::byte> all;
    for (const auto& frame : frames) all.insert(all.end(), frame.begin(), frame.end());
    return all;
  };
  CHECK(hear(joined({a, a})).error ==
        "frame 1: got number 0; a frame was lost, repeated or swapped");
  CHECK(hear(joined({b})).error == "frame 0: got number 1; a frame was lost, repeated or swapped");
  CHECK(hear(joined({b, a})).payloads.empty());
  CHECK(hear(joined({a, b})).error.empty());
}

TEST_CASE("a length above the limit is refused before a byte of it arrives", "[transport][frame]") {
  for (const uint64_t length : {uint64_t{1001}, uint64_t{1} << 40, UINT64_MAX}) {
    const FrameHeader header = make_header(kType, 0, 0, length, 0);
    const auto heard = hear(std::as_bytes(std::span(&header, 1)));
    CHECK(heard.error == fmt::format("frame 0: {} bytes of payload, at most 1000 allowed", length));
  }
}

TEST_CASE("another protocol version is told from an altered header", "[transport][frame]") {
  FrameHeader header = make_header(kType, 0, 0, 0, digest64({}));
  header.version = 2;
  FrameAssembler altered(1000);
  altered.append(std::as_bytes(std::span(&header, 1)));
  auto failed = altered.next();
  REQUIRE_FALSE(failed);
  CHECK(failed.error().text() == "frame 0: its header was altered on the way");
  CHECK_FALSE(altered.other_version());

  header.check = 0;
  header.check = static_cast<uint32_t>(digest64(std::as_bytes(std::span(&header, 1))));
  FrameAssembler other(1000);
  other.append(std::as_bytes(std::span(&header, 1)));
  failed = other.next();
  REQUIRE_FALSE(failed);
  CHECK(failed.error().text() == "frame 0: expected protocol version 1, got 2");
  CHECK(other.other_version());
}

TEST_CASE("random bytes never make a frame", "[transport][frame][prop]") {
  Prng prng(20);
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::byte> bytes(prng.below(200));
    for (auto& byte : bytes) byte = std::byte(prng.below(256));
    REQUIRE(hear(bytes, 1 + prng.below(50)).payloads.empty());
  }
}
