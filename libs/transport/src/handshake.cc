#include "kern/transport/handshake.h"

#include "kern/base/assert.h"
#include "sockets.h"

namespace kern::transport {
namespace {

constexpr size_t kSentenceBytesMax = 300;

void put_digest(ByteWriter& writer, const Digest& digest) {
  for (const std::byte byte : digest) writer.put(byte);
}

Digest get_digest(ByteReader& reader) {
  Digest digest;
  for (std::byte& byte : digest) byte = reader.get<std::byte>();
  return digest;
}

void put_hello(ByteWriter& writer, const Identity& self, bool has_key, const Digest& challenge) {
  writer.put(self.role);
  writer.put(self.purpose);
  writer.put(static_cast<uint8_t>(has_key));
  writer.put(self.index);
  writer.put(self.epoch);
  put_digest(writer, self.plan);
  put_digest(writer, challenge);
}

std::string short_hex(const Digest& digest) {
  return to_hex(ByteSpan(digest).first(6));
}

std::string refusal_text(std::string_view sentence) {
  return std::string(sentence.substr(0, kSentenceBytesMax));
}

}  // namespace

std::string_view to_string(Role role) {
  switch (role) {
    case Role::stage:
      return "stage";
    case Role::rank:
      return "rank";
  }
  return "unknown";
}

std::string Identity::name() const {
  return fmt::format("{} {}", to_string(role), index);
}

struct Handshake::Mismatch {
  std::string sentence;
  bool final = true;
};

Handshake::Handshake(Side side, Terms terms) : side_(side), terms_(std::move(terms)) {
  KERN_ASSERT(!terms_.admit || side_ == Side::listener, "only a listener admits");
}

Result<std::vector<std::byte>> Handshake::start() {
  KERN_TRY_VOID(fill_random(own_challenge_));
  if (side_ == Side::listener) return std::vector<std::byte>();
  ByteWriter hello;
  put_hello(hello, terms_.self, terms_.key.has_value(), own_challenge_);
  return frame(FrameType::hello, hello.view());
}

Handshake::Step Handshake::receive(const Frame& frame) {
  KERN_ASSERT(stage_ != Stage::done && stage_ != Stage::failed, "the handshake is over");
  const auto type = static_cast<FrameType>(frame.type);
  if (type == FrameType::refuse) return refused_by_peer(frame.payload);
  if (stage_ == Stage::hello && type == FrameType::hello) return receive_hello(frame.payload);
  if (stage_ == Stage::proof && type == FrameType::proof) return receive_proof(frame.payload);
  if (stage_ == Stage::accept && type == FrameType::accept && frame.payload.empty()) {
    stage_ = Stage::done;
    return {};
  }
  return fail_here(fmt::format("handshake: a frame of type {} out of turn", frame.type), false,
                   true);
}

std::vector<std::byte> Handshake::give_up(const Error& why, bool final) {
  return fail_here(why.text(), final, true).send;
}

/// `tell`: whether the peer gets the sentence too.
Handshake::Step Handshake::fail_here(std::string sentence, bool final, bool tell) {
  stage_ = Stage::failed;
  Step step;
  if (tell) {
    ByteWriter payload;
    payload.put(static_cast<uint8_t>(final));
    payload.put_text(refusal_text(sentence));
    step.send = frame(FrameType::refuse, payload.view());
  }
  step.failed = Error{Kind::peer, std::move(sentence), {}};
  step.final = final;
  return step;
}

Handshake::Step Handshake::refused_by_peer(ByteSpan payload) {
  ByteReader reader(payload);
  const bool final = reader.get<uint8_t>() != 0;
  const std::string sentence = reader.get_text(kSentenceBytesMax);
  if (!reader.ok()) return fail_here("handshake: a refusal that cannot be read", false, false);
  return fail_here("refused by the peer: " + printable(as_bytes(sentence), kSentenceBytesMax),
                   final, false);
}

Result<void> Handshake::read_hello(ByteSpan payload, Digest* proof) {
  ByteReader reader(payload);
  peer_.role = reader.get<Role>();
  peer_.purpose = reader.get<Purpose>();
  const auto has_key = reader.get<uint8_t>();
  peer_.index = reader.get<uint32_t>();
  peer_.epoch = reader.get<uint64_t>();
  peer_.plan = get_digest(reader);
  peer_challenge_ = get_digest(reader);
  if (proof != nullptr) *proof = get_digest(reader);
  KERN_TRY_VOID(reader.finish("handshake"));
  peer_has_key_ = has_key == 1;
  if (has_key > 1 || to_string(peer_.role) == "unknown" || to_string(peer_.purpose) == "unknown")
    return fail(Kind::peer, "handshake: a greeting with an unknown role, purpose or key word");
  return {};
}

Handshake::Step Handshake::receive_hello(ByteSpan payload) {
  Digest proof{};
  const bool dialer = side_ == Side::dialer;
  if (auto read = read_hello(payload, dialer ? &proof : nullptr); !read)
    return fail_here(read.error().text(), false, true);
  if (peer_has_key_ != terms_.key.has_value())
    return fail_here(fmt::format("this end has {} cluster key and the other has {}",
                                 terms_.key ? "a" : "no", peer_has_key_ ? "one" : "none"),
                     true, true);
  if (!dialer) {
    ByteWriter hello;
    put_hello(hello, terms_.self, terms_.key.has_value(), own_challenge_);
    put_digest(hello, prove(Side::listener));
    stage_ = Stage::proof;
    return {frame(FrameType::hello, hello.view()), std::nullopt, false};
  }
  if (!digests_equal(proof, prove(Side::listener)))
    return fail_here("the cluster keys differ", true, true);
  if (auto wrong = mismatch()) return fail_here(std::move(wrong->sentence), wrong->final, true);
  ByteWriter answer;
  put_digest(answer, prove(Side::dialer));
  stage_ = Stage::accept;
  return {frame(FrameType::proof, answer.view()), std::nullopt, false};
}

Handshake::Step Handshake::receive_proof(ByteSpan payload) {
  ByteReader reader(payload);
  const Digest proof = get_digest(reader);
  if (auto read = reader.finish("handshake proof"); !read)
    return fail_here(read.error().text(), false, true);
  if (!digests_equal(proof, prove(Side::dialer)))
    return fail_here("the cluster keys differ", true, true);
  if (auto wrong = mismatch()) return fail_here(std::move(wrong->sentence), wrong->final, true);
  if (terms_.admit)
    if (auto admitted = terms_.admit(peer_); !admitted)
      return fail_here(admitted.error().text(), false, true);
  stage_ = Stage::done;
  return {frame(FrameType::accept, {}), std::nullopt, false};
}

std::optional<Handshake::Mismatch> Handshake::mismatch() const {
  const Identity& self = terms_.self;
  if (peer_.purpose != self.purpose)
    return Mismatch{fmt::format("{} came to a {} port as a {} connection", peer_.name(),
                                to_string(self.purpose), to_string(peer_.purpose)),
                    true};
  if (peer_.role != terms_.peer_role || (terms_.peer_index && peer_.index != *terms_.peer_index))
    return Mismatch{
        fmt::format("expected {}{}, got {}", to_string(terms_.peer_role),
                    terms_.peer_index ? fmt::format(" {}", *terms_.peer_index) : "", peer_.name()),
        true};
  if (peer_.plan != self.plan)
    return Mismatch{
        fmt::format("the manifests do not belong together: {} has {}, {} has {}", self.name(),
                    short_hex(self.plan), peer_.name(), short_hex(peer_.plan)),
        true};
  if (peer_.epoch != self.epoch)
    return Mismatch{fmt::format("{} is of epoch {}, {} of epoch {}", self.name(), self.epoch,
                                peer_.name(), peer_.epoch),
                    false};
  return std::nullopt;
}

/// Covers everything both ends said of themselves; the label keeps one end's proof from being
/// played back as the other's. Without a key it only shows that both heard the same.
Digest Handshake::prove(Side side) const {
  const bool dialer = side_ == Side::dialer;
  ByteWriter said;
  said.put_text(side == Side::dialer ? "kern handshake 1 dialer" : "kern handshake 1 listener");
  if (dialer) put_hello(said, terms_.self, terms_.key.has_value(), own_challenge_);
  put_hello(said, peer_, peer_has_key_, peer_challenge_);
  if (!dialer) put_hello(said, terms_.self, terms_.key.has_value(), own_challenge_);
  return terms_.key ? terms_.key->sign(said.view()) : sha256(said.view());
}

std::vector<std::byte> Handshake::frame(FrameType type, ByteSpan payload) {
  KERN_ASSERT(payload.size() <= kHandshakeBytesMax, "{} bytes", payload.size());
  return encode_frame(static_cast<uint16_t>(type), sequence_++, payload);
}

}  // namespace kern::transport
