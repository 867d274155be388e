#include "kern/transport/parts.h"

#include <sys/socket.h>

#include <mutex>

#include "kern/base/prng.h"
#include "loop.h"

using namespace kern_test;

namespace {

using Block = std::vector<std::byte>;

Block random_block(size_t size, uint64_t seed) {
  Prng prng(seed);
  Block block(size);
  for (auto& byte : block) byte = std::byte(prng.next() & 0xFF);
  return block;
}

/// A rank's receiving end with staging memory by state name, on its own loop.
struct Rank {
  explicit Rank(uint32_t index, TimeNs timeout = 5 * kSecondNs) {
    loop.on_loop([&] {
      receiver = std::make_unique<PartReceiver>(
          loop.io, PartReceiverOptions{
                       .peer_timeout = timeout,
                       .expect = [this](const PartHead& head, const Identity& from)
                           -> std::variant<Destination, Refusal> { return expect(head, from); },
                       .landed = [this](const PartHead& head,
                                        const Identity&) { note("landed " + head.state); },
                       .failed = [this](const PartHead& head, const Identity&,
                                        const Error& why) { note(head.state + ": " + why.text()); },
                       .closed =
                           [this](const Identity& from, const Error& why) {
                             note("closed " + from.name() + ": " + why.text());
                           }});
      auto port = listen_on(loopback(), true);
      REQUIRE(port);
      address = port->address;
      Terms terms = terms_of(index, Purpose::parts);
      terms.self.role = Role::rank;
      listener = std::make_unique<Listener>(
          loop.io, std::move(*port),
          ListenerOptions{.terms = terms,
                          .accepted = [this](Connection made) { receiver->add(std::move(made)); },
                          .rejected = {}});
    });
  }
  ~Rank() {
    loop.on_loop([&] {
      listener.reset();
      receiver.reset();
    });
  }
  std::variant<Destination, Refusal> expect(const PartHead& head, const Identity& from) {
    if (from.role != Role::stage) return Refusal{"not a stage"};
    if (head.generation != 4) return Refusal{fmt::format("generation {} is over", head.generation)};
    const std::lock_guard lock(mutex);
    Block& staging = states[head.state];
    if (staging.empty()) return Refusal{"no such state"};
    const MutableByteSpan all(staging);
    return Destination{all.first(all.size() / 3), all.subspan(all.size() / 3)};
  }
  void note(std::string line) {
    const std::lock_guard lock(mutex);
    notes.push_back(std::move(line));
  }
  /// Waits until `count` things were told.
  std::vector<std::string> wait_notes(size_t count) {
    for (int i = 0; i < 1000; ++i) {
      {
        const std::lock_guard lock(mutex);
        if (notes.size() >= count) return notes;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return notes;
  }
  PartReceiverCounters counters() {
    PartReceiverCounters copy;
    loop.on_loop([&] { copy = receiver->counters(); });
    return copy;
  }

  LoopThread loop;
  std::mutex mutex;
  std::map<std::string, Block> states;
  std::vector<std::string> notes;
  Address address;
  std::unique_ptr<PartReceiver> receiver;
  std::unique_ptr<Listener> listener;
};

Terms stage_terms(uint32_t index) {
  Terms terms = terms_of(index, Purpose::parts);
  terms.peer_role = Role::rank;
  return terms;
}

OutPart part_of(const Rank& rank, const std::string& state, const Block& block,
                uint64_t generation = 4) {
  const ByteSpan all(block);
  return {rank.address,
          9,
          generation,
          state,
          {all.first(block.size() / 2), all.subspan(block.size() / 2)}};
}

}  // namespace

TEST_CASE("parts for several ranks land byte for byte in their staging memory",
          "[transport][parts]") {
  Rank a(0), b(1);
  const Block kv = random_block(size_t{5} << 20, 1), kda = random_block(100001, 2);
  for (Rank* rank : {&a, &b}) {
    rank->states["kv.0"] = Block(kv.size());
    rank->states["kda.1"] = Block(kda.size());
  }
  PartSender sender({.terms = stage_terms(3)});
  for (int round = 1; round <= 3; ++round) {
    REQUIRE(sender.send({part_of(a, "kv.0", kv), part_of(b, "kv.0", kv), part_of(a, "kda.1", kda),
                         part_of(b, "kda.1", kda)},
                        5 * kSecondNs));
    for (Rank* rank : {&a, &b}) {
      const auto notes = rank->wait_notes(static_cast<size_t>(round) * 2);
      REQUIRE(notes.size() == static_cast<size_t>(round) * 2);
      CHECK(notes.back() == "landed kda.1");
      CHECK(rank->states["kv.0"] == kv);
      CHECK(rank->states["kda.1"] == kda);
    }
  }
  CHECK(sender.counters().parts == 12);
  CHECK(a.counters().parts == 6);
  CHECK(a.counters().bytes == 3 * (kv.size() + kda.size()));
}

TEST_CASE("a late generation and a wrong size are drained and the next part lands",
          "[transport][parts]") {
  Rank rank(0);
  const Block block = random_block(300000, 1);
  rank.states["kv.0"] = Block(block.size());
  rank.states["kv.1"] = Block(block.size() + 1, std::byte{0xEE});
  PartSender sender({.terms = stage_terms(3)});
  REQUIRE(sender.send({part_of(rank, "kv.0", block, 3), part_of(rank, "kv.1", block),
                       part_of(rank, "kv.2", block), part_of(rank, "kv.0", block)},
                      5 * kSecondNs));
  const auto notes = rank.wait_notes(4);
  CHECK(notes == std::vector<std::string>{"kv.0: generation 3 is over",
                                          "kv.1: expected 300001 bytes, got 300000",
                                          "kv.2: no such state", "landed kv.0"});
  CHECK(rank.states["kv.0"] == block);
  CHECK(rank.states["kv.1"] == Block(block.size() + 1, std::byte{0xEE}));
  CHECK(rank.counters().refused == 3);
  CHECK(rank.counters().drained_bytes == 3 * block.size());
}

TEST_CASE("altered bytes fail their part alone and are counted", "[transport][parts]") {
  Rank rank(0);
  rank.states["kv.0"] = Block(64);
  auto made =
      dial_blocking(rank.address, {.terms = stage_terms(3), .give_up_after = 5 * kSecondNs});
  REQUIRE(made);
  const Block block = random_block(64, 1);
  const auto send = [&](uint64_t sequence, size_t flip) {
    ByteWriter head;
    head.put(uint64_t{9});
    head.put(uint64_t{4});
    head.put(uint64_t{64});
    head.put(digest64(block));
    head.put_text("kv.0");
    raw_send(made->socket,
             encode_frame(static_cast<uint16_t>(FrameType::part), sequence, head.view()));
    Block bytes = block;
    if (flip < 64) bytes[flip] ^= std::byte{0x40};
    raw_send(made->socket, bytes);
  };
  for (size_t i = 0; i <= 64; ++i) send(kHandshakeFrames + i, i);
  const auto notes = rank.wait_notes(65);
  REQUIRE(notes.size() == 65);
  for (size_t i = 0; i < 64; ++i)
    CHECK_THAT(notes[i], Catch::StartsWith("kv.0: state `kv.0` of request 9 was altered on the "
                                           "way from stage 3"));
  CHECK(notes[64] == "landed kv.0");
  CHECK(rank.counters().digest_failures == 64);
  CHECK(rank.states["kv.0"] == block);
}

TEST_CASE("every flipped bit of a part's head ends the connection and lands nothing",
          "[transport][parts]") {
  Rank rank(0);
  rank.states["kv.0"] = Block(8, std::byte{0xEE});
  ByteWriter head;
  head.put(uint64_t{9});
  head.put(uint64_t{4});
  head.put(uint64_t{8});
  head.put(digest64(as_bytes("8 bytes.")));
  head.put_text("kv.0");
  const auto good =
      encode_frame(static_cast<uint16_t>(FrameType::part), kHandshakeFrames, head.view());
  size_t told = 0;
  for (size_t bit = 0; bit < good.size() * 8; bit += 11) {
    auto made =
        dial_blocking(rank.address, {.terms = stage_terms(3), .give_up_after = 5 * kSecondNs});
    REQUIRE(made);
    auto bytes = good;
    bytes[bit / 8] ^= std::byte(1 << (bit % 8));
    raw_send(made->socket, bytes);
    const auto notes = rank.wait_notes(++told);
    REQUIRE(notes.size() == told);
    INFO("bit " << bit);
    REQUIRE_THAT(notes.back(), Catch::StartsWith("closed stage 3: hand-off from stage 3 at "));
  }
  CHECK(rank.states["kv.0"] == Block(8, std::byte{0xEE}));
  CHECK(rank.counters().parts == 0);
}

TEST_CASE("a head that announces too much ends the connection", "[transport][parts]") {
  Rank rank(0);
  auto made =
      dial_blocking(rank.address, {.terms = stage_terms(3), .give_up_after = 5 * kSecondNs});
  REQUIRE(made);
  ByteWriter head;
  for (const uint64_t word : {uint64_t{9}, uint64_t{4}, kPartBytesMax + 1, uint64_t{0}})
    head.put(word);
  head.put_text("kv.0");
  raw_send(made->socket,
           encode_frame(static_cast<uint16_t>(FrameType::part), kHandshakeFrames, head.view()));
  CHECK_THAT(rank.wait_notes(1)[0], Catch::Contains("a part of 17179869185 bytes, at most"));
}

TEST_CASE("a sender that stops or goes in the middle of a part fails it", "[transport][parts]") {
  Rank rank(0, 200 * kMillisecondNs);
  rank.states["kv.0"] = Block(1000);
  ByteWriter head;
  head.put(uint64_t{9});
  head.put(uint64_t{4});
  head.put(uint64_t{1000});
  head.put(uint64_t{1});
  head.put_text("kv.0");
  const auto frame =
      encode_frame(static_cast<uint16_t>(FrameType::part), kHandshakeFrames, head.view());
  for (const bool goes : {true, false}) {
    auto made =
        dial_blocking(rank.address, {.terms = stage_terms(3), .give_up_after = 5 * kSecondNs});
    REQUIRE(made);
    raw_send(made->socket, frame);
    raw_send(made->socket, Block(10));
    if (goes) ::shutdown(made->socket.fd(), SHUT_RDWR);
    const auto notes = rank.wait_notes(goes ? 2 : 4);
    REQUIRE(notes.size() == (goes ? 2 : 4));
    CHECK_THAT(notes[goes ? 0 : 2],
               Catch::StartsWith("kv.0: ") &&
                   Catch::Contains(goes ? "it closed the connection"
                                        : "it stopped in the middle of a part"));
    CHECK_THAT(notes[goes ? 1 : 3], Catch::StartsWith("closed stage 3"));
  }
  CHECK(rank.counters().cut == 2);
}

TEST_CASE("a revoked part is not written any more and the next one lands", "[transport][parts]") {
  Rank rank(0);
  rank.states["kv.0"] = Block(1000, std::byte{0xEE});
  auto made =
      dial_blocking(rank.address, {.terms = stage_terms(3), .give_up_after = 5 * kSecondNs});
  REQUIRE(made);
  const Block block = random_block(1000, 1);
  const auto send_head = [&](uint64_t sequence) {
    ByteWriter head;
    head.put(uint64_t{9});
    head.put(uint64_t{4});
    head.put(uint64_t{1000});
    head.put(digest64(block));
    head.put_text("kv.0");
    raw_send(made->socket,
             encode_frame(static_cast<uint16_t>(FrameType::part), sequence, head.view()));
  };
  send_head(kHandshakeFrames);
  raw_send(made->socket, ByteSpan(block).first(10));
  while (rank.counters().bytes < 10) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  rank.loop.on_loop([&] { rank.receiver->revoke(9, 4); });
  raw_send(made->socket, ByteSpan(block).subspan(10));
  while (rank.counters().drained_bytes < 990)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  CHECK(rank.states["kv.0"][10] == std::byte{0xEE});
  CHECK(rank.notes.empty());
  send_head(kHandshakeFrames + 1);
  raw_send(made->socket, block);
  CHECK(rank.wait_notes(1) == std::vector<std::string>{"landed kv.0"});
}

TEST_CASE("a rank that is gone fails its own parts and not the others'", "[transport][parts]") {
  Rank alive(0);
  const Block block = random_block(1000, 1);
  alive.states["kv.0"] = Block(1000);
  Address gone;
  {
    const auto port = listen_on(loopback(), true);
    REQUIRE(port);
    gone = port->address;
  }
  PartSender sender({.terms = stage_terms(3)});
  OutPart lost = part_of(alive, "kv.0", block);
  lost.to = gone;
  const auto done = sender.send({lost, part_of(alive, "kv.0", block)}, 5 * kSecondNs);
  REQUIRE_FALSE(done);
  CHECK(done.error().kind == Kind::peer);
  CHECK_THAT(done.error().text(), Catch::Contains(gone.text()));
  CHECK(alive.wait_notes(1) == std::vector<std::string>{"landed kv.0"});
  CHECK(sender.counters().failures == 1);
  CHECK(sender.send({part_of(alive, "kv.0", block)}, 5 * kSecondNs));
}

TEST_CASE("a sender dials again when its rank closed the connection", "[transport][parts]") {
  Rank rank(0);
  const Block block = random_block(1000, 1);
  rank.states["kv.0"] = Block(1000);
  PartSender sender({.terms = stage_terms(3)});
  REQUIRE(sender.send({part_of(rank, "kv.0", block)}, 5 * kSecondNs));
  REQUIRE(rank.wait_notes(1).size() == 1);
  rank.loop.on_loop([&] {
    PartReceiverOptions same{
        .expect = [&](const PartHead& head,
                      const Identity& from) { return rank.expect(head, from); },
        .landed = [&](const PartHead&, const Identity&) { rank.note("new"); },
        .failed = [](const PartHead&, const Identity&, const Error&) {},
        .closed = [](const Identity&, const Error&) {}};
    rank.receiver = std::make_unique<PartReceiver>(rank.loop.io, std::move(same));
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  REQUIRE(sender.send({part_of(rank, "kv.0", block)}, 5 * kSecondNs));
  CHECK(rank.wait_notes(2).back() == "new");
}

TEST_CASE("a rank that does not read costs a sender its deadline and no more",
          "[transport][parts]") {
  LoopThread loop;
  auto port = listen_on(loopback(), true);
  REQUIRE(port);
  const Address address = port->address;
  std::vector<Connection> kept;
  std::unique_ptr<Listener> listener;
  loop.on_loop([&] {
    Terms terms = terms_of(0, Purpose::parts);
    terms.self.role = Role::rank;
    listener = std::make_unique<Listener>(
        loop.io, std::move(*port),
        ListenerOptions{.terms = terms,
                        .accepted = [&](Connection made) { kept.push_back(std::move(made)); },
                        .rejected = {}});
  });
  PartSender sender({.terms = stage_terms(3)});
  const Block big(size_t{30} << 20);
  const SystemClock clock;
  const TimeNs begun = clock.now();
  const auto done = sender.send({{address, 9, 4, "kv.0", {ByteSpan(big)}}}, 300 * kMillisecondNs);
  REQUIRE_FALSE(done);
  CHECK_THAT(done.error().text(), Catch::Contains("it does not take the bytes in time"));
  CHECK(clock.now() - begun < kSecondNs);
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    sender.shutdown("the daemon stops");
  });
  const auto stopped = sender.send({{address, 9, 4, "kv.0", {ByteSpan(big)}}}, 60 * kSecondNs);
  other.join();
  REQUIRE_FALSE(stopped);
  CHECK_THAT(stopped.error().text(), Catch::Contains("the daemon stops"));
  loop.on_loop([&] { listener.reset(); });
}
