#include <sys/socket.h>

#include "kern/base/prng.h"
#include "kern/transport/tcp.h"
#include "loop.h"

using namespace kern_test;

namespace {

using Block = std::vector<std::byte>;

Block random_block(size_t size, uint64_t seed) {
  Prng prng(seed);
  Block block(size);
  for (size_t i = 0; i + 8 <= size; i += 8) {
    const uint64_t word = prng.next();
    std::memcpy(block.data() + i, &word, 8);
  }
  return block;
}

/// Two links that face each other, each side of the test playing a device thread.
struct Links {
  explicit Links(LoopThread& loop) {
    loop.on_loop([&] { connections.emplace(pair_of(loop.io, Purpose::link)); });
    receiver = std::make_unique<TcpLink>(loop.io, std::move(*connections->listener));
    sender = std::make_unique<TcpLink>(loop.io, std::move(*connections->dialer));
  }
  std::optional<Meeting> connections;
  std::unique_ptr<TcpLink> sender, receiver;
};

bool sent(Link& link, Ticket ticket) {
  const auto done = link.wait_send(ticket, 5 * kSecondNs);
  return done && *done;
}
bool received(Link& link, Ticket ticket) {
  const auto done = link.wait_receive(ticket, 5 * kSecondNs);
  return done && *done;
}

}  // namespace

TEST_CASE("an item's tensors arrive in pieces and order as posted", "[transport][link]") {
  LoopThread loop;
  Links links(loop);
  for (uint64_t item = 1; item <= 5; ++item) {
    const Block hidden = random_block(size_t{3} << 20, item);
    const Block bank = random_block(70001, item + 100);
    Block hidden_in(hidden.size()), bank_in(bank.size());
    const auto out = links.sender->post_send(
        item, {{"hidden", {ByteSpan(hidden).first(1000), ByteSpan(hidden).subspan(1000)}},
               {"nothing", {}},
               {"bank.0", {ByteSpan(bank)}}});
    const auto in = links.receiver->post_receive(
        item,
        {{"hidden", {MutableByteSpan(hidden_in)}},
         {"nothing", {}},
         {"bank.0", {MutableByteSpan(bank_in).first(3), MutableByteSpan(bank_in).subspan(3)}}});
    REQUIRE(out);
    REQUIRE(in);
    REQUIRE(received(*links.receiver, *in));
    REQUIRE(sent(*links.sender, *out));
    CHECK(hidden_in == hidden);
    CHECK(bank_in == bank);
  }
  CHECK(links.receiver->counters().items_received == 5);
  CHECK(links.sender->counters().items_sent == 5);
}

TEST_CASE("nothing is read before a receive is posted, and the sender waits", "[transport][link]") {
  LoopThread loop;
  Links links(loop);
  const Block big = random_block(size_t{40} << 20, 1);
  const auto out = links.sender->post_send(1, {{"big", {ByteSpan(big)}}});
  REQUIRE(out);
  const auto done = links.sender->wait_send(*out, 200 * kMillisecondNs);
  REQUIRE(done);
  CHECK_FALSE(*done);
  CHECK(links.receiver->counters().bytes_received == 0);
  Block in_block(big.size());
  const auto in = links.receiver->post_receive(1, {{"big", {MutableByteSpan(in_block)}}});
  REQUIRE(in);
  REQUIRE(received(*links.receiver, *in));
  REQUIRE(sent(*links.sender, *out));
  CHECK(in_block == big);
}

TEST_CASE("many posts may be under way, up to a limit", "[transport][link]") {
  LoopThread loop;
  Links links(loop);
  const Block block = random_block(size_t{1} << 20, 2);
  std::vector<Block> in_blocks(kPostsMax, Block(block.size()));
  Ticket last = 0;
  for (size_t i = 0; i < kPostsMax; ++i) {
    const auto in = links.receiver->post_receive(i, {{"x", {MutableByteSpan(in_blocks[i])}}});
    REQUIRE(in);
    last = *in;
  }
  const auto more = links.receiver->post_receive(kPostsMax, {});
  REQUIRE_FALSE(more);
  CHECK(more.error().kind == Kind::busy);
  for (size_t i = 0; i < kPostsMax; ++i) {
    const auto out = links.sender->post_send(i, {{"x", {ByteSpan(block)}}});
    REQUIRE(out);
    if (i % 16 == 15) REQUIRE(sent(*links.sender, *out));
  }
  REQUIRE(received(*links.receiver, last));
  for (const Block& got : in_blocks) REQUIRE(got == block);
}

TEST_CASE("another item, name or size breaks the link with a sentence", "[transport][link]") {
  struct Case {
    uint64_t item;
    std::string name;
    size_t size;
    std::string sentence;
  };
  for (const Case& c :
       {Case{2, "hidden", 64, "expected item 1, got item 2"},
        Case{1, "bank", 64, "expected tensor `hidden` of 64 bytes, got `bank` of 64"},
        Case{1, "hidden", 63, "expected tensor `hidden` of 64 bytes, got `hidden` of 63"}}) {
    LoopThread loop;
    Links links(loop);
    const Block block(c.size);
    Block into(64, std::byte{0xEE});
    const auto in = links.receiver->post_receive(1, {{"hidden", {MutableByteSpan(into)}}});
    REQUIRE(in);
    REQUIRE(links.sender->post_send(c.item, {{c.name, {ByteSpan(block)}}}));
    const auto done = links.receiver->wait_receive(*in, 5 * kSecondNs);
    REQUIRE_FALSE(done);
    CHECK(done.error().kind == Kind::peer);
    CHECK_THAT(done.error().text(), Catch::Contains(c.sentence));
    CHECK_THAT(done.error().text(), Catch::StartsWith("data link with stage 1 at "));
    CHECK(into == Block(64, std::byte{0xEE}));
    CHECK_FALSE(links.receiver->post_receive(2, {}));
  }
}

TEST_CASE("shutdown wakes a waiter and frees the posted memory", "[transport][link]") {
  LoopThread loop;
  Links links(loop);
  Block into(1000, std::byte{0xEE});
  const auto in = links.receiver->post_receive(1, {{"x", {MutableByteSpan(into)}}});
  REQUIRE(in);
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    links.receiver->shutdown("the daemon stops");
  });
  const auto done = links.receiver->wait_receive(*in, 60 * kSecondNs);
  other.join();
  REQUIRE_FALSE(done);
  CHECK_THAT(done.error().text(), Catch::Contains("the daemon stops"));
  const Block block(1000);
  (void)links.sender->post_send(1, {{"x", {ByteSpan(block)}}});
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  CHECK(into == Block(1000, std::byte{0xEE}));
  links.sender->shutdown("its block goes away");
}

TEST_CASE("a peer that goes away in the middle of an item breaks the link", "[transport][link]") {
  LoopThread loop;
  Links links(loop);
  const Block big = random_block(size_t{40} << 20, 1);
  REQUIRE(links.sender->post_send(1, {{"big", {ByteSpan(big)}}}));
  Block into(big.size());
  const auto in = links.receiver->post_receive(1, {{"big", {MutableByteSpan(into)}}});
  REQUIRE(in);
  links.sender.reset();
  const auto done = links.receiver->wait_receive(*in, 5 * kSecondNs);
  REQUIRE_FALSE(done);
  CHECK(done.error().kind == Kind::peer);
}

TEST_CASE("every altered byte of an item on the wire is caught", "[transport][link]") {
  // The wire bytes of one item, recorded from a link that sends to a bare socket.
  const Block block = random_block(48, 3);
  Block wire;
  {
    LoopThread loop;
    Links links(loop);
    links.receiver.reset();
    std::optional<Meeting> meeting;
    loop.on_loop([&] { meeting.emplace(pair_of(loop.io, Purpose::link)); });
    TcpLink link(loop.io, std::move(*meeting->dialer));
    const auto out = link.post_send(1, {{"x", {ByteSpan(block)}}});
    REQUIRE(out);
    REQUIRE(sent(link, *out));
    link.shutdown("sent");
    wire = raw_read_all(meeting->listener->socket);
  }
  REQUIRE(wire.size() == 2 * sizeof(FrameHeader) + (8 + 4 + 4 + 1 + 8) + 48 + 8);
  for (size_t at = 0; at <= wire.size(); at += 3) {
    LoopThread loop;
    std::optional<Meeting> meeting;
    loop.on_loop([&] { meeting.emplace(pair_of(loop.io, Purpose::link)); });
    TcpLink link(loop.io, std::move(*meeting->listener));
    Block into(48), bytes = wire;
    if (at < wire.size()) bytes[at] ^= std::byte{0x10};
    const auto in = link.post_receive(1, {{"x", {MutableByteSpan(into)}}});
    REQUIRE(in);
    raw_send(meeting->dialer->socket, bytes);
    const auto done = link.wait_receive(*in, 5 * kSecondNs);
    INFO("byte " << at);
    if (at < wire.size()) REQUIRE_FALSE(done);
    if (done) CHECK((*done && into == block));
  }
}
