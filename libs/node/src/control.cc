#include "control.h"

namespace kern::node {
namespace {

void send(transport::Channel& channel, ControlType type, ByteSpan payload) {
  const auto sent = channel.send(static_cast<uint16_t>(type), payload);
  // A channel that is closed already has said so, or will, through its handler.
  if (!sent && sent.error().kind != Kind::peer) channel.close(sent.error().text());
}

}  // namespace

std::unique_ptr<transport::Channel> open_control(transport::IoContext& io,
                                                 transport::Connection connection,
                                                 TimeNs peer_timeout, ControlHandlers handlers) {
  // The channel's own callback needs the channel, which exists only after the call.
  auto self = std::make_shared<transport::Channel*>(nullptr);
  transport::ChannelOptions options;
  options.peer_timeout = peer_timeout;
  options.closed = std::move(handlers.closed);
  options.message = [self, engine = std::move(handlers.engine),
                     join = std::move(handlers.join)](const transport::Message& message) {
    Result<void> done = fail(Kind::peer, "message type {} is not known", message.type);
    if (message.type == static_cast<uint16_t>(ControlType::engine)) {
      done = engine(message.payload);
    } else if (message.type == static_cast<uint16_t>(ControlType::join)) {
      auto decoded = decode_join(message.payload);
      done = decoded ? join(std::move(*decoded)) : fail(Kind::peer, "{}", decoded.error().text());
    }
    if (!done && *self != nullptr) (*self)->close(done.error().text());
  };
  auto channel =
      std::make_unique<transport::Channel>(io, std::move(connection), std::move(options));
  *self = channel.get();
  return channel;
}

void send_engine(transport::Channel& channel, const std::vector<std::byte>& message) {
  send(channel, ControlType::engine, message);
}

void send_join(transport::Channel& channel, const JoinMessage& message) {
  send(channel, ControlType::join, encode(message));
}

void warn_refused(const Log& log, Throttle& throttle, TimeNs now, std::string_view who,
                  const Error& why) {
  const Throttle::Turn turn = throttle.next(now);
  if (turn.held_back > 0) log.warn("{} refused: {} more times before", who, turn.held_back);
  if (turn.write) log.warn("{} refused: {}", who, why.text());
}

}  // namespace kern::node
