#pragma once
/// Host names to socket addresses, without blocking the context's thread.

#include <functional>
#include <memory>
#include <vector>

#include "kern/transport/io.h"
#include "sockets.h"

namespace kern::transport {

/// One question at a time; destroying it cancels.
class Resolver {
 public:
  explicit Resolver(IoContext& io);
  ~Resolver();
  void resolve(const Address& address,
               std::function<void(Result<std::vector<SocketAddress>>)> done);
  void cancel();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kern::transport
