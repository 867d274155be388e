#include "kern/transport/channel.h"

#include <sys/socket.h>

#include "kern/base/prng.h"
#include "loop.h"

using namespace kern_test;

namespace {

constexpr uint16_t kType = kFirstMessageType + 5;

/// A channel and all that it told.
struct End {
  End(IoContext& io, Connection connection, TimeNs timeout = 5 * kSecondNs,
      size_t queue_bytes_max = size_t{64} << 20)
      : channel(std::make_unique<Channel>(io, std::move(connection),
                                          ChannelOptions{.peer_timeout = timeout,
                                                         .queue_bytes_max = queue_bytes_max,
                                                         .message =
                                                             [this](const Message& message) {
                                                               CHECK(message.type == kType);
                                                               messages.emplace_back(
                                                                   as_text(message.payload));
                                                             },
                                                         .closed =
                                                             [this](const Error& why) {
                                                               CHECK(why.kind == Kind::peer);
                                                               closed.push_back(why.text());
                                                             }})) {}
  std::vector<std::string> messages;
  std::vector<std::string> closed;
  std::unique_ptr<Channel> channel;
};

/// A channel on the listener's side and a bare socket in its peer's place.
struct BadPeer {
  explicit BadPeer(IoContext& io, TimeNs timeout = 5 * kSecondNs) {
    auto pair = pair_of(io);
    end = std::make_unique<End>(io, std::move(*pair.listener), timeout);
    socket = std::move(pair.dialer->socket);
  }
  /// What closed the channel after these bytes.
  std::string close_after(IoContext& io, ByteSpan bytes) {
    raw_send(socket, bytes);
    ::shutdown(socket.fd(), SHUT_WR);
    REQUIRE(run_until(io, [&] { return !end->closed.empty(); }));
    CHECK(end->closed.size() == 1);
    return end->closed[0];
  }
  std::unique_ptr<End> end;
  Socket socket;
};

}  // namespace

TEST_CASE("messages of all sizes arrive in order in both directions", "[transport][channel]") {
  IoContext io;
  auto pair = pair_of(io);
  End a(io, std::move(*pair.listener)), b(io, std::move(*pair.dialer));
  std::vector<std::string> sent;
  Prng prng(4);
  for (int i = 0; i < 200; ++i) {
    const size_t size = i == 100 ? size_t{9} << 20 : prng.below(3000);
    sent.emplace_back(size, static_cast<char>('a' + i % 26));
    REQUIRE(a.channel->send(kType, as_bytes(sent.back())));
    REQUIRE(b.channel->send(kType, as_bytes(sent.back())));
  }
  REQUIRE(run_until(io, [&] { return a.messages.size() == 200 && b.messages.size() == 200; }));
  CHECK(a.messages == sent);
  CHECK(b.messages == sent);
  CHECK(a.channel->queued_bytes() == 0);
}

TEST_CASE("an idle channel lives by its heartbeats and measures the round trip",
          "[transport][channel]") {
  IoContext io;
  auto pair = pair_of(io);
  End a(io, std::move(*pair.listener), 100 * kMillisecondNs);
  End b(io, std::move(*pair.dialer), 100 * kMillisecondNs);
  CHECK_FALSE(run_until(
      io, [&] { return !a.closed.empty() || !b.closed.empty(); }, 500 * kMillisecondNs));
  CHECK(a.channel->round_trip() > 0);
  CHECK(b.channel->round_trip() > 0);
}

TEST_CASE("a peer that falls silent is closed within its time-out", "[transport][channel]") {
  IoContext io;
  BadPeer peer(io, 200 * kMillisecondNs);
  const TimeNs begun = io.now();
  REQUIRE(run_until(io, [&] { return !peer.end->closed.empty(); }));
  const TimeNs took = io.now() - begun;
  CHECK(took >= 190 * kMillisecondNs);
  CHECK(took < 600 * kMillisecondNs);
  CHECK_THAT(peer.end->closed[0], Catch::Contains("nothing came from stage 1"));
  CHECK_THAT(peer.end->closed[0], Catch::Contains("for 0.2 s"));
}

TEST_CASE("a loop that was held up does not blame a peer that spoke meanwhile",
          "[transport][channel]") {
  IoContext io;
  BadPeer peer(io, 100 * kMillisecondNs);
  raw_send(peer.socket, encode_frame(kType, kHandshakeFrames, as_bytes("still here")));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  CHECK_FALSE(run_until(
      io, [&] { return !peer.end->closed.empty(); }, 50 * kMillisecondNs));
  CHECK(peer.end->messages == std::vector<std::string>{"still here"});
}

TEST_CASE("a close sends what was queued and its reason, once on each side",
          "[transport][channel]") {
  IoContext io;
  auto pair = pair_of(io);
  End a(io, std::move(*pair.listener)), b(io, std::move(*pair.dialer));
  REQUIRE(a.channel->send(kType, as_bytes(std::string(5 << 20, 'x'))));
  REQUIRE(a.channel->send(kType, as_bytes("last words")));
  a.channel->close("the stage is draining");
  a.channel->close("again");
  CHECK(a.closed.empty());
  CHECK_FALSE(a.channel->send(kType, as_bytes("too late")));
  REQUIRE(run_until(io, [&] { return !a.closed.empty() && !b.closed.empty(); }));
  run_until(
      io, [] { return false; }, 20 * kMillisecondNs);
  REQUIRE(b.messages.size() == 2);
  CHECK(b.messages[1] == "last words");
  CHECK(a.closed == std::vector<std::string>{"the stage is draining"});
  REQUIRE(b.closed.size() == 1);
  CHECK_THAT(b.closed[0],
             Catch::Contains("stage 0") && Catch::Contains("said goodbye: the stage is draining"));
}

TEST_CASE("a close does not wait longer than a second for a peer that does not read",
          "[transport][channel]") {
  IoContext io;
  BadPeer peer(io);
  REQUIRE(peer.end->channel->send(kType, as_bytes(std::string(30 << 20, 'x'))));
  const TimeNs begun = io.now();
  peer.end->channel->close("enough");
  REQUIRE(run_until(io, [&] { return !peer.end->closed.empty(); }));
  CHECK(io.now() - begun < 2 * kSecondNs);
  CHECK(peer.end->closed == std::vector<std::string>{"enough"});
}

TEST_CASE("a peer that vanishes closes the channel once, with its name", "[transport][channel]") {
  IoContext io;
  auto pair = pair_of(io);
  End a(io, std::move(*pair.listener)), b(io, std::move(*pair.dialer));
  b.channel.reset();
  REQUIRE(run_until(io, [&] { return !a.closed.empty(); }));
  CHECK(a.closed.size() == 1);
  CHECK_THAT(a.closed[0],
             Catch::StartsWith("stage 1 at ") && Catch::Contains("it closed the connection"));
  CHECK(b.closed.empty());
}

TEST_CASE("a full queue is busy and keeps what it has", "[transport][channel]") {
  IoContext io;
  auto pair = pair_of(io);
  End a(io, std::move(*pair.listener), 5 * kSecondNs, size_t{20} << 20);
  const std::string big(size_t{7} << 20, 'x');
  int sent = 0;
  Result<void> last;
  for (; sent < 20; ++sent) {
    last = a.channel->send(kType, as_bytes(big));
    if (!last) break;
  }
  REQUIRE_FALSE(last);
  CHECK(last.error().kind == Kind::busy);
  CHECK_THAT(last.error().text(), Catch::Contains("does not keep up"));
  CHECK(a.channel->queued_bytes() <= size_t{20} << 20);
  End b(io, std::move(*pair.dialer));
  REQUIRE(run_until(io, [&] { return b.messages.size() == static_cast<size_t>(sent); }));
  CHECK(b.messages.back() == big);
  CHECK(a.channel->send(kType, as_bytes("room again")));
}

TEST_CASE("every flipped bit of a message closes the channel and delivers nothing",
          "[transport][channel]") {
  IoContext io;
  const auto good = encode_frame(kType, kHandshakeFrames, as_bytes("payload"));
  for (size_t bit = 0; bit < good.size() * 8; bit += 5) {
    BadPeer peer(io);
    auto bytes = good;
    bytes[bit / 8] ^= std::byte(1 << (bit % 8));
    INFO("bit " << bit);
    const std::string why = peer.close_after(io, bytes);
    REQUIRE(peer.end->messages.empty());
    REQUIRE_THAT(why, Catch::Contains("stage 1 at ") && Catch::Contains("frame 2: "));
  }
}

TEST_CASE("every cut of a message closes the channel and delivers nothing",
          "[transport][channel]") {
  IoContext io;
  const auto good = encode_frame(kType, kHandshakeFrames, as_bytes("payload"));
  for (size_t size = 0; size < good.size(); ++size) {
    BadPeer peer(io);
    const std::string why = peer.close_after(io, ByteSpan(good).first(size));
    REQUIRE(peer.end->messages.empty());
    REQUIRE_THAT(why, Catch::Contains("it closed the connection"));
    REQUIRE((why.find("in the middle of a frame") != std::string::npos) == (size > 0));
  }
}

TEST_CASE("a repeated frame, an oversized one and one out of turn close the channel",
          "[transport][channel]") {
  IoContext io;
  const auto good = encode_frame(kType, kHandshakeFrames, as_bytes("once"));
  {
    BadPeer peer(io);
    raw_send(peer.socket, good);
    CHECK_THAT(peer.close_after(io, good), Catch::Contains("lost, repeated or swapped"));
    CHECK(peer.end->messages == std::vector<std::string>{"once"});
  }
  {
    BadPeer peer(io);
    const FrameHeader header = make_header(kType, 0, kHandshakeFrames, kControlBytesMax + 1, 0);
    CHECK_THAT(peer.close_after(io, std::as_bytes(std::span(&header, 1))),
               Catch::Contains("at most 67108864 allowed"));
  }
  for (const uint16_t type : {0, 1, 4, 8, 10, 99}) {
    BadPeer peer(io);
    CHECK_THAT(peer.close_after(io, encode_frame(type, kHandshakeFrames, as_bytes("x"))),
               Catch::Contains("out of turn"));
  }
}

TEST_CASE("a channel may be destroyed by its own callbacks", "[transport][channel]") {
  IoContext io;
  auto pair = pair_of(io);
  End b(io, std::move(*pair.dialer));
  std::unique_ptr<Channel> channel;
  int calls = 0;
  channel =
      std::make_unique<Channel>(io, std::move(*pair.listener),
                                ChannelOptions{.message =
                                                   [&](const Message&) {
                                                     ++calls;
                                                     channel.reset();
                                                   },
                                               .closed = [&](const Error&) { calls += 100; }});
  REQUIRE(b.channel->send(kType, as_bytes("one")));
  REQUIRE(b.channel->send(kType, as_bytes("two")));
  REQUIRE(run_until(io, [&] { return !b.closed.empty(); }));
  CHECK(calls == 1);
}
