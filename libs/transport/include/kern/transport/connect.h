#pragma once
/// From an address to an authenticated connection, both ways: a Listener accepts, a Dialer dials
/// until it succeeds. What comes out is a Connection: a socket whose other end has proved itself.
/// A Channel, a TcpLink, a Mesh or a PartReceiver is then built on it.
/// Thread safety: everything on the IoContext's thread.
/// Ownership: destroying a Listener or Dialer cancels it; its callbacks do not run afterwards.

#include <functional>
#include <memory>

#include "kern/transport/handshake.h"
#include "kern/transport/io.h"
#include "kern/transport/socket.h"

namespace kern::transport {

/// An authenticated, non-blocking socket at a frame boundary.
struct Connection {
  Socket socket;
  Identity peer;
  std::string remote;  ///< "10.0.0.3:4711", for sentences

  /// "stage 3 at 10.0.0.3:4711"
  std::string name() const { return peer.name() + " at " + remote; }
};

struct ListenerOptions {
  Terms terms;
  TimeNs handshake_timeout = 3 * kSecondNs;
  /// Connections that have not proved themselves yet; beyond it the oldest is closed.
  size_t strangers_max = 32;
  std::function<void(Connection)> accepted;
  /// A connection that did not become one, for the log. May be empty.
  std::function<void(const Error&)> rejected;
};

class Listener {
 public:
  Listener(IoContext& io, ListenSocket port, ListenerOptions options);
  ~Listener();
  const Address& address() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct DialOptions {
  Terms terms;
  TimeNs attempt_timeout = 3 * kSecondNs;  ///< connecting and handshake together
  TimeNs backoff_first = 50 * kMillisecondNs;
  TimeNs backoff_max = kSecondNs;  ///< the pause doubles up to this
  TimeNs give_up_after = 0;        ///< 0: never
  int attempts_max = 0;            ///< 0: any number
  bool retry_refused = false;      ///< else a refusal (key, version, plan, role) ends dialing
  std::function<void(Result<Connection>)> done;  ///< once
  /// Each failed attempt, for the log. May be empty.
  std::function<void(const Error&)> failed_attempt;
};

/// Dials now and again until done, given up or destroyed.
class Dialer {
 public:
  Dialer(IoContext& io, Address address, DialOptions options);
  ~Dialer();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Dials from a thread that may block, on a context of its own; `done` is not used.
Result<Connection> dial_blocking(const Address& address, DialOptions options);

}  // namespace kern::transport
