#include "kern/transport/channel.h"

#include "kern/base/assert.h"
#include "stream.h"

namespace kern::transport {
namespace {

constexpr TimeNs kLinger = kSecondNs;
constexpr size_t kReasonBytesMax = 300;
constexpr int kPingsPerTimeout = 4;

}  // namespace

struct Channel::Impl : Buried {
  enum class State : uint8_t { open, closing, closed };

  Impl(IoContext& context, Connection made, ChannelOptions chosen)
      : io(context),
        connection(std::move(made)),
        name(connection.name()),
        options(std::move(chosen)),
        stream(io, connection.socket.fd(),
               {.length_max = kControlBytesMax,
                .sequence = kHandshakeFrames,
                .read_ahead = true,
                .frame = [this](const Frame& frame) { receive(frame); },
                .failed = [this](const Error& why, bool) { lost(why); },
                .drained = [this] { drained(); }}),
        beat(io),
        linger(io) {
    KERN_ASSERT(options.message && options.closed && options.peer_timeout > 0);
    stream.start_reading();
    next_beat();
  }

  void next_beat() {
    beat.after(options.peer_timeout / kPingsPerTimeout, [this] {
      judge();
      if (state != State::open) return;
      ByteWriter now;
      now.put(io.now());
      stream.send(static_cast<uint16_t>(FrameType::ping), now.view());
      next_beat();
    });
  }
  /// When this process itself was stopped, what the peer sent meanwhile still lies in the socket.
  void judge() {
    if (io.now() - stream.last_received() <= options.peer_timeout) return;
    stream.read_now();
    if (state != State::open || io.now() - stream.last_received() <= options.peer_timeout) return;
    finish(fmt::format("nothing came from {} for {:.1f} s", name,
                       static_cast<double>(options.peer_timeout) / kSecondNs));
  }

  void receive(const Frame& frame);
  void receive_own(const Frame& frame);

  void lost(const Error& why) {
    if (state == State::closing)
      finish(reason);
    else
      finish(fmt::format("{}: {}", name, why.text()));
  }
  void drained() {
    if (state == State::closing) ::shutdown(connection.socket.fd(), SHUT_WR);
  }
  void close(std::string why) {
    if (state != State::open) return;
    state = State::closing;
    reason = std::move(why);
    beat.cancel();
    linger.after(kLinger, [this] { finish(reason); });
    stream.send(static_cast<uint16_t>(FrameType::goodbye),
                as_bytes(std::string_view(reason).substr(0, kReasonBytesMax)));
  }
  void silence() {
    state = State::closed;
    stream.stop();
    beat.cancel();
    linger.cancel();
    ::shutdown(connection.socket.fd(), SHUT_RDWR);
  }
  void finish(std::string why) {
    if (state == State::closed) return;
    silence();
    options.closed(Error{Kind::peer, std::move(why), {}});
  }

  IoContext& io;
  Connection connection;
  std::string name;
  ChannelOptions options;
  State state = State::open;
  std::string reason;
  TimeNs round_trip = 0;
  Stream stream;
  Timer beat;
  Timer linger;
};

void Channel::Impl::receive(const Frame& frame) {
  if (state != State::open) return;
  if (frame.type >= kFirstMessageType) return options.message({frame.type, frame.payload});
  receive_own(frame);
}

void Channel::Impl::receive_own(const Frame& frame) {
  ByteReader reader(frame.payload);
  switch (static_cast<FrameType>(frame.type)) {
    case FrameType::ping:
      if (frame.payload.size() != sizeof(TimeNs)) break;
      return stream.send(static_cast<uint16_t>(FrameType::pong), frame.payload);
    case FrameType::pong: {
      const auto sent = reader.get<TimeNs>();
      if (!reader.finish("pong") || sent > io.now()) break;
      round_trip = io.now() - sent;
      return;
    }
    case FrameType::goodbye:
      return finish(
          fmt::format("{} said goodbye: {}", name, printable(frame.payload, kReasonBytesMax)));
    default:
      break;
  }
  finish(fmt::format("{} sent a frame of type {} with {} bytes out of turn", name, frame.type,
                     frame.payload.size()));
}

Channel::Channel(IoContext& io, Connection connection, ChannelOptions options) {
  KERN_ASSERT(connection.peer.purpose == Purpose::control);
  impl_ = std::make_unique<Impl>(io, std::move(connection), std::move(options));
}

Channel::~Channel() {
  if (impl_->state != Impl::State::closed) impl_->silence();
  IoContext& io = impl_->io;
  io.bury(std::move(impl_));
}

const Identity& Channel::peer() const {
  return impl_->connection.peer;
}
const std::string& Channel::name() const {
  return impl_->name;
}
size_t Channel::queued_bytes() const {
  return impl_->stream.queued_bytes();
}
TimeNs Channel::round_trip() const {
  return impl_->round_trip;
}
void Channel::close(std::string reason) {
  impl_->close(std::move(reason));
}

Result<void> Channel::send(uint16_t type, ByteSpan payload) {
  KERN_ASSERT(type >= kFirstMessageType, "type {} is the transport's own", type);
  if (impl_->state != Impl::State::open) return fail(Kind::peer, "{} is gone", impl_->name);
  if (payload.size() > kControlBytesMax)
    return fail(Kind::caller, "a message of {} bytes, at most {} allowed", payload.size(),
                kControlBytesMax);
  if (queued_bytes() + sizeof(FrameHeader) + payload.size() > impl_->options.queue_bytes_max)
    return fail(Kind::busy, "{} does not keep up: {} bytes are queued", impl_->name,
                queued_bytes());
  impl_->stream.send(type, payload);
  return {};
}

}  // namespace kern::transport
