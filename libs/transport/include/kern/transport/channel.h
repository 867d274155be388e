#pragma once
/// A control channel: messages in order over an authenticated connection, with heartbeats.
/// Thread safety: everything on the IoContext's thread; another thread posts to it.
/// Ownership: destroying the channel closes the connection without a callback. It may be destroyed
/// inside its own callbacks. `closed` runs exactly once for every channel that is not destroyed
/// first, whoever closed it, and nothing runs after it.
/// A sender that outruns its peer is told `busy` at the queue's cap; what is queued still goes.

#include <functional>
#include <memory>

#include "kern/transport/connect.h"

namespace kern::transport {

/// One received message; the payload is good during the callback.
struct Message {
  uint16_t type = 0;  ///< kFirstMessageType or above
  ByteSpan payload;
};

struct ChannelOptions {
  /// A peer that sends nothing for this long is dead. Pings go out four times in it.
  TimeNs peer_timeout = 5 * kSecondNs;
  size_t queue_bytes_max = size_t{64} << 20;
  std::function<void(const Message&)> message;
  std::function<void(const Error&)> closed;  ///< kind peer: why
};

class Channel {
 public:
  Channel(IoContext& io, Connection connection, ChannelOptions options);
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  const Identity& peer() const;
  /// "stage 3 at 10.0.0.3:4711"
  const std::string& name() const;
  /// Queues a copy. Fails with kind busy at the queue's cap, kind peer once closed, and kind caller
  /// for a payload above kControlBytesMax.
  Result<void> send(uint16_t type, ByteSpan payload);
  /// Sends what is queued, tells the peer why, and closes; waits for neither longer than a second.
  void close(std::string reason);
  size_t queued_bytes() const;
  /// The last measured round trip; 0 before the first.
  TimeNs round_trip() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kern::transport
