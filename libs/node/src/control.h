#pragma once
/// Control channels as daemons use them: engine and join messages in, engine and join messages out.
/// Thread safety: everything on the IoContext's thread.

#include <functional>
#include <memory>
#include <vector>

#include "kern/base/log.h"
#include "kern/engine/wire.h"
#include "kern/node/join.h"
#include "kern/node/pace.h"
#include "kern/transport/channel.h"

namespace kern::node {

struct ControlHandlers {
  std::function<Result<void>(ByteSpan)> engine;  ///< one encoded engine message
  std::function<Result<void>(JoinMessage)> join;
  std::function<void(const Error&)> closed;
};

/// Opens a channel whose messages go to the handlers. A handler's error closes the channel with it.
std::unique_ptr<transport::Channel> open_control(transport::IoContext& io,
                                                 transport::Connection connection,
                                                 TimeNs peer_timeout, ControlHandlers handlers);

/// Sends, or closes a channel whose peer does not keep up.
void send_engine(transport::Channel& channel, const std::vector<std::byte>& message);
void send_join(transport::Channel& channel, const JoinMessage& message);

/// Warns that a connection was turned away, unless many were in the last minute.
void warn_refused(const Log& log, Throttle& throttle, TimeNs now, std::string_view who,
                  const Error& why);

}  // namespace kern::node
