#include "digest.h"
#include "kern/base/assert.h"
#include "part_head.h"
#include "sockets.h"

namespace kern::transport {
namespace {

constexpr size_t kBytesPerCall = size_t{1} << 20;
constexpr size_t kBytesPerTurn = size_t{4} << 20;  ///< then other connections have theirs
constexpr size_t kDrainBytes = size_t{64} << 10;

}  // namespace

struct PartReceiver::Impl : Buried {
  struct Peer;

  Impl(IoContext& context, PartReceiverOptions chosen) : io(context), options(std::move(chosen)) {
    KERN_ASSERT(options.expect && options.landed && options.failed && options.closed);
  }
  void drop(Peer& peer, const Error& why);

  IoContext& io;
  PartReceiverOptions options;
  PartReceiverCounters counters;
  std::map<uint64_t, std::unique_ptr<Peer>> peers;
  uint64_t next_id = 1;
  bool closed = false;
};

/// One sender's connection: a head, then that part's bytes into their destination or the drain.
struct PartReceiver::Impl::Peer : Buried {
  Peer(Impl& all, uint64_t number, Connection made)
      : owner(all),
        id(number),
        connection(std::move(made)),
        watch(all.io, connection.socket.fd()),
        stall(all.io),
        assembler(kPartHeadBytesMax, kHandshakeFrames) {
    wait();
  }

  void wait() {
    watch.readable([this] { read(); });
  }
  void read();
  Result<bool> step(size_t* budget);
  Result<bool> head_step();
  Result<bool> body_step(size_t* budget);
  void begin_part();
  void refuse(std::string sentence);
  void end_part();
  void watch_stall();
  bool gone() const { return over || owner.closed; }

  Impl& owner;
  uint64_t id;
  Connection connection;
  Watch watch;
  Timer stall;
  FrameAssembler assembler;
  std::optional<PartHead> head;  ///< of the part whose bytes are arriving
  Gather into;                   ///< empty while draining
  uint64_t left = 0;
  RunningDigest digest;
  std::optional<std::string> unwanted;  ///< why this part is drained
  bool revoked = false;                 ///< nobody wants to hear of it
  bool over = false;
};

void PartReceiver::Impl::Peer::read() {
  size_t budget = kBytesPerTurn;
  while (!gone() && budget > 0) {
    auto more = step(&budget);
    if (gone()) return;
    if (!more) return owner.drop(*this, more.error());
    if (!*more) break;
  }
  if (gone()) return;
  wait();
  watch_stall();
}

/// A sender that stops in the middle keeps the part's staging memory: it has until the time-out.
void PartReceiver::Impl::Peer::watch_stall() {
  if (!head && !assembler.inside_frame()) return stall.cancel();
  stall.after(owner.options.peer_timeout, [this] {
    if (gone()) return;
    size_t budget = kBytesPerTurn;
    const auto more = step(&budget);
    if (gone()) return;
    if (!more || !*more)
      return owner.drop(
          *this, more ? Error{Kind::peer, "it stopped in the middle of a part", {}} : more.error());
    read();
  });
}

Result<bool> PartReceiver::Impl::Peer::step(size_t* budget) {
  return head ? body_step(budget) : head_step();
}

Result<bool> PartReceiver::Impl::Peer::head_step() {
  std::byte buffer[sizeof(FrameHeader) + kPartHeadBytesMax];
  const size_t want = std::min(sizeof buffer, assembler.wanted());
  KERN_TRY(count, read_some(connection.socket.fd(), MutableByteSpan(buffer, want)));
  if (count == 0) return false;
  assembler.append(ByteSpan(buffer, count));
  KERN_TRY(frame, assembler.next());
  if (!frame) return true;
  if (frame->type != static_cast<uint16_t>(FrameType::part))
    return fail(Kind::peer, "a frame of type {} out of turn", frame->type);
  KERN_TRY(part, read_part_head(frame->payload));
  head = std::move(part);
  begin_part();
  return true;
}

void PartReceiver::Impl::Peer::begin_part() {
  left = head->bytes;
  digest.reset();
  into.clear();
  unwanted.reset();
  revoked = false;
  auto answer = owner.options.expect(*head, connection.peer);
  if (gone()) return;
  if (const auto* refusal = std::get_if<Refusal>(&answer)) {
    if (!unwanted) refuse(refusal->sentence);
  } else if (!unwanted) {
    for (const MutableByteSpan span : std::get<Destination>(answer)) into.add(span);
    if (into.left() != head->bytes)
      refuse(fmt::format("expected {} bytes, got {}", into.left(), head->bytes));
  }
  if (left == 0) end_part();
}

void PartReceiver::Impl::Peer::refuse(std::string sentence) {
  into.clear();
  unwanted = std::move(sentence);
  ++owner.counters.refused;
}

Result<bool> PartReceiver::Impl::Peer::body_step(size_t* budget) {
  const size_t most = std::min<uint64_t>({kBytesPerCall, *budget, left});
  size_t count = 0;
  if (unwanted) {
    std::byte drain[kDrainBytes];
    KERN_TRY(got, read_some(connection.socket.fd(),
                            MutableByteSpan(drain, std::min(most, kDrainBytes))));
    owner.counters.drained_bytes += got;
    count = got;
  } else {
    KERN_TRY(got, read_some(connection.socket.fd(), into.window(most)));
    into.advance(got, [this](ByteSpan run) { digest.add(run); });
    owner.counters.bytes += got;
    count = got;
  }
  if (count == 0) return false;
  KERN_ASSERT(count <= left);
  left -= count;
  *budget -= std::min(*budget, count);
  if (left == 0) end_part();
  return true;
}

void PartReceiver::Impl::Peer::end_part() {
  const PartHead part = std::move(*head);
  head.reset();
  if (revoked) return;
  if (unwanted)
    return owner.options.failed(part, connection.peer, Error{Kind::peer, *unwanted, {}});
  if (digest.finish() != part.digest) {
    ++owner.counters.digest_failures;
    return owner.options.failed(part, connection.peer,
                                Error{Kind::peer,
                                      fmt::format("state `{}` of request {} was altered on the way "
                                                  "from {}",
                                                  part.state, part.request, connection.name()),
                                      {}});
  }
  ++owner.counters.parts;
  owner.options.landed(part, connection.peer);
}

void PartReceiver::Impl::drop(Peer& peer, const Error& why) {
  Error error = why;
  error.context.push_back("hand-off from " + peer.connection.name());
  peer.over = true;
  peer.stall.cancel();
  ::shutdown(peer.connection.socket.fd(), SHUT_RDWR);
  const auto it = peers.find(peer.id);
  KERN_ASSERT(it != peers.end(), "sender {} is not here", peer.id);
  const Identity from = peer.connection.peer;
  const bool cut = peer.head && !peer.revoked;
  const PartHead part = cut ? *peer.head : PartHead{};
  io.bury(std::move(it->second));
  peers.erase(it);
  if (cut) {
    ++counters.cut;
    options.failed(part, from, error);
  }
  if (!closed) options.closed(from, error);
}

PartReceiver::PartReceiver(IoContext& io, PartReceiverOptions options)
    : impl_(std::make_unique<Impl>(io, std::move(options))) {}

PartReceiver::~PartReceiver() {
  impl_->closed = true;
  IoContext& io = impl_->io;
  for (auto& [id, peer] : impl_->peers) {
    ::shutdown(peer->connection.socket.fd(), SHUT_RDWR);
    io.bury(std::move(peer));
  }
  impl_->peers.clear();
  io.bury(std::move(impl_));
}

void PartReceiver::add(Connection connection) {
  KERN_ASSERT(connection.peer.purpose == Purpose::parts);
  const uint64_t id = impl_->next_id++;
  impl_->peers.emplace(id, std::make_unique<Impl::Peer>(*impl_, id, std::move(connection)));
}

void PartReceiver::revoke(uint64_t request, uint64_t generation) {
  for (auto& [id, peer] : impl_->peers) {
    if (!peer->head || peer->head->request != request || peer->head->generation != generation)
      continue;
    if (!peer->unwanted) peer->refuse("revoked");
    peer->revoked = true;
  }
}

const PartReceiverCounters& PartReceiver::counters() const {
  return impl_->counters;
}

}  // namespace kern::transport
