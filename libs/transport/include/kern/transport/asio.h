#pragma once
/// For the HTTP front alone: the Asio context under an IoContext, so that one thread runs both.
/// Thread safety: as IoContext. Lifetime: the reference is good as long as the IoContext.

#include "kern/transport/io.h"

namespace boost::asio {
class io_context;
}

namespace kern::transport {

boost::asio::io_context& raw_context(IoContext& io);

}  // namespace kern::transport
