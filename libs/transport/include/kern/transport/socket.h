#pragma once
/// Addresses and owned sockets.
/// Thread safety: plain values.
/// Ownership: a Socket closes its descriptor when destroyed.

#include <cstdint>
#include <string>

#include "kern/base/result.h"

namespace kern::transport {

/// "HOST:PORT" as people write it; HOST is a name, an IPv4 address or an IPv6 one in brackets.
struct Address {
  std::string host;
  uint16_t port = 0;

  /// Fails with kind caller and says what was expected. Port 0 is allowed (the system chooses).
  static Result<Address> parse(std::string_view text);
  std::string text() const;
  /// Whether the host is `localhost` or a literal loopback address.
  bool is_loopback() const;
  friend bool operator==(const Address&, const Address&) = default;
};

/// Owns a file descriptor.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(other.release()) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();

  int fd() const { return fd_; }
  bool open() const { return fd_ >= 0; }
  /// Gives the descriptor away.
  int release();
  void close();

 private:
  int fd_ = -1;
};

/// A bound, listening socket. Connections wait in the kernel until somebody accepts them, so an
/// address can be announced before its Listener or Mesh exists.
struct ListenSocket {
  Socket socket;
  Address address;  ///< with the port that was really bound
};

/// Binds and listens; a port left by a killed process binds again. Without a cluster key only a
/// loopback address is allowed. Fails with kind caller (host, key) or io (port in use).
Result<ListenSocket> listen_on(const Address& address, bool has_key);

}  // namespace kern::transport
