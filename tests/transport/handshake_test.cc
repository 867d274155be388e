#include "kern/transport/handshake.h"

#include "loop.h"

using namespace kern_test;

namespace {

/// How a handshake between two machines without sockets ends.
struct End {
  bool dialer_done = false, listener_done = false;
  std::string dialer_error, listener_error;
  bool dialer_final = false, listener_final = false;
};

/// Changes one message on its way: its number (0 is the dialer's greeting) and its bytes.
using Tamper = std::function<void(int, std::vector<std::byte>&)>;

class Side {
 public:
  Side(Handshake::Side side, Terms terms) : handshake_(side, std::move(terms)) {}
  std::vector<std::byte> start() {
    auto first = handshake_.start();
    REQUIRE(first);
    return *first;
  }
  std::vector<std::byte> hear(ByteSpan bytes) {
    if (over()) return {};
    assembler_.append(bytes);
    auto frame = assembler_.next();
    if (!frame) {
      error = frame.error().text();
      return handshake_.give_up(frame.error(), assembler_.other_version());
    }
    if (!*frame) return {};
    auto step = handshake_.receive(**frame);
    if (step.failed) error = step.failed->text();
    final = step.final;
    return step.send;
  }
  bool over() const { return !error.empty() || handshake_.done(); }
  bool done() const { return handshake_.done(); }
  const Identity& peer() const { return handshake_.peer(); }

  std::string error;
  bool final = false;

 private:
  Handshake handshake_;
  FrameAssembler assembler_{kHandshakeBytesMax};
};

End shake(Terms listener_terms, Terms dialer_terms, const Tamper& tamper = {}) {
  Side dialer(Handshake::Side::dialer, std::move(dialer_terms));
  Side listener(Handshake::Side::listener, std::move(listener_terms));
  CHECK(listener.start().empty());
  auto bytes = dialer.start();
  for (int number = 0; !bytes.empty() && number < 8; ++number) {
    if (tamper) tamper(number, bytes);
    bytes = number % 2 == 0 ? listener.hear(bytes) : dialer.hear(bytes);
  }
  return {dialer.done(),  listener.done(), dialer.error,
          listener.error, dialer.final,    listener.final};
}

}  // namespace

TEST_CASE("two ends with one key, plan and epoch accept each other", "[transport][handshake]") {
  const End end = shake(terms_of(0), terms_of(1));
  CHECK(end.dialer_done);
  CHECK(end.listener_done);
  CHECK(end.dialer_error == "");
  CHECK(end.listener_error == "");
}

TEST_CASE("two ends without a key accept each other", "[transport][handshake]") {
  Terms a = terms_of(0), b = terms_of(1);
  a.key.reset();
  b.key.reset();
  const End end = shake(a, b);
  CHECK(end.dialer_done);
  CHECK(end.listener_done);
}

TEST_CASE("different keys are told to both ends, for good", "[transport][handshake]") {
  Terms wrong = terms_of(1);
  wrong.key = key_of('x');
  const End end = shake(terms_of(0), wrong);
  CHECK_FALSE(end.dialer_done);
  CHECK_FALSE(end.listener_done);
  CHECK(end.dialer_error == "the cluster keys differ");
  CHECK(end.listener_error == "refused by the peer: the cluster keys differ");
  CHECK(end.dialer_final);
  CHECK(end.listener_final);
}

TEST_CASE("a key on one end only is told to both ends", "[transport][handshake]") {
  Terms none = terms_of(1);
  none.key.reset();
  End end = shake(terms_of(0), none);
  CHECK(end.listener_error == "this end has a cluster key and the other has none");
  CHECK(end.dialer_error ==
        "refused by the peer: this end has a cluster key and the other has none");
  end = shake(none, terms_of(1));
  CHECK(end.listener_error == "this end has no cluster key and the other has one");
  CHECK_FALSE(end.dialer_done);
}

TEST_CASE("another role, index, purpose or plan is refused for good", "[transport][handshake]") {
  Terms rank = terms_of(1);
  rank.self.role = Role::rank;
  End end = shake(terms_of(0), rank);
  CHECK(end.listener_error == "expected stage, got rank 1");
  CHECK(end.dialer_error == "refused by the peer: expected stage, got rank 1");
  CHECK((end.dialer_final && end.listener_final));

  Terms two = terms_of(1);
  two.peer_index = 2;
  end = shake(terms_of(0), two);
  CHECK(end.dialer_error == "expected stage 2, got stage 0");

  end = shake(terms_of(0, Purpose::parts), terms_of(1, Purpose::link));
  CHECK(end.dialer_error == "stage 0 came to a data link port as a hand-off connection");

  Terms plan = terms_of(1);
  plan.self.plan = sha256(as_bytes("another plan"));
  end = shake(terms_of(0), plan);
  CHECK_THAT(end.dialer_error, Catch::Contains("the manifests do not belong together"));
  CHECK(end.dialer_final);
  CHECK_FALSE(end.listener_done);
}

TEST_CASE("another epoch and a peer not admitted are refused for now", "[transport][handshake]") {
  Terms late = terms_of(1);
  late.self.epoch = 6;
  End end = shake(terms_of(0), late);
  CHECK(end.dialer_error == "stage 1 is of epoch 6, stage 0 of epoch 7");
  CHECK_FALSE(end.dialer_final);

  Terms full = terms_of(0);
  full.admit = [](const Identity& peer) -> Result<void> {
    return fail(Kind::peer, "{} is already here", peer.name());
  };
  end = shake(full, terms_of(1));
  CHECK(end.dialer_error == "refused by the peer: stage 1 is already here");
  CHECK_FALSE(end.dialer_final);
  CHECK_FALSE(end.listener_done);
}

TEST_CASE("no flipped bit of a handshake leaves both ends content", "[transport][handshake]") {
  size_t flips = 0;
  for (int message = 0; message < 4; ++message)
    for (size_t bit = 0;; ++bit) {
      bool applied = false;
      const End end = shake(terms_of(0), terms_of(1), [&](int number, auto& bytes) {
        if (number != message || bit / 8 >= bytes.size()) return;
        bytes[bit / 8] ^= std::byte(1 << (bit % 8));
        applied = true;
      });
      if (!applied) break;
      ++flips;
      INFO("message " << message << " bit " << bit);
      REQUIRE_FALSE((end.dialer_done && end.listener_done));
      // Only the last word, accept, comes after the listener is content.
      REQUIRE(end.listener_done == (message == 3));
    }
  CHECK(flips > 2000);
}

TEST_CASE("an altered greeting with a repaired digest still fails its proof",
          "[transport][handshake]") {
  const size_t size = 1 + 1 + 1 + 4 + 8 + 32 + 32;
  for (size_t at = 0; at < size; ++at) {
    const End end = shake(terms_of(0), terms_of(1), [&](int number, auto& bytes) {
      if (number != 0) return;
      auto payload = std::vector<std::byte>(bytes.begin() + sizeof(FrameHeader), bytes.end());
      REQUIRE(payload.size() == size);
      payload[at] ^= std::byte{1};
      bytes = encode_frame(static_cast<uint16_t>(FrameType::hello), 0, payload);
    });
    INFO("byte " << at);
    REQUIRE_FALSE(end.listener_done);
    REQUIRE_FALSE(end.dialer_done);
  }
}

TEST_CASE("a proof cannot be played back in another handshake", "[transport][handshake]") {
  std::vector<std::byte> hello, proof;
  shake(terms_of(0), terms_of(1), [&](int number, auto& bytes) {
    if (number == 0) hello = bytes;
    if (number == 2) proof = bytes;
  });
  const End end = shake(terms_of(0), terms_of(1), [&](int number, auto& bytes) {
    if (number == 0) bytes = hello;
    if (number == 2) bytes = proof;
  });
  CHECK_FALSE(end.listener_done);
}

TEST_CASE("a listener's proof cannot be reflected by a dialer without a key",
          "[transport][handshake]") {
  Side listener(Handshake::Side::listener, terms_of(0));
  listener.start();
  Side dialer(Handshake::Side::dialer, terms_of(1));
  const auto answer = listener.hear(dialer.start());
  const ByteSpan proof = ByteSpan(answer).last(32);
  listener.hear(encode_frame(static_cast<uint16_t>(FrameType::proof), 1, proof));
  CHECK_FALSE(listener.done());
  CHECK(listener.error == "the cluster keys differ");
}

TEST_CASE("a message before the handshake is done is out of turn", "[transport][handshake]") {
  Side listener(Handshake::Side::listener, terms_of(0));
  listener.start();
  CHECK_FALSE(listener.hear(encode_frame(kFirstMessageType, 0, as_bytes("hi"))).empty());
  CHECK(listener.error == "handshake: a frame of type 256 out of turn");
}
