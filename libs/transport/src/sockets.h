#pragma once
/// The system's sockets with this library's errors: non-blocking, closed on exec, no SIGPIPE.

#include <sys/socket.h>
#include <sys/uio.h>

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kern/base/bytes.h"
#include "kern/transport/socket.h"

namespace kern::transport {

struct SocketAddress {
  SocketAddress() = default;
  SocketAddress(const sockaddr* address, socklen_t size);

  sockaddr_storage storage{};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  std::string host() const;
  uint16_t port() const;
  std::string text() const { return Address{host(), port()}.text(); }
  bool is_loopback() const;
};

/// The address when the host is a literal or `localhost`, which is 127.0.0.1; nothing for a name.
std::optional<SocketAddress> literal(const Address& address);

/// Starts connecting; connect_outcome tells how it went once the socket is writable.
Result<Socket> start_connect(const SocketAddress& address);
Result<void> connect_outcome(int fd);

struct Accepted {
  Socket socket;
  SocketAddress from;
};
/// Nothing when no connection waits. Kind busy: out of descriptors, try later.
Result<std::optional<Accepted>> accept_one(int fd);

/// Bytes moved; 0: it would block. Fails with kind peer, also at the end of the stream.
Result<size_t> read_some(int fd, std::span<const iovec> into);
Result<size_t> read_some(int fd, MutableByteSpan into);
Result<size_t> write_some(int fd, std::span<const iovec> from);
/// Whether the other end closed or sent something while nobody looked.
bool is_stale(int fd);
/// A line in which every byte that a terminal or log would mind is a question mark.
std::string printable(ByteSpan text, size_t bytes_max);

/// Spans that are written or filled one after another with gathered system calls.
class Gather {
 public:
  void add(ByteSpan bytes);
  void add(MutableByteSpan bytes) { add(ByteSpan(bytes)); }
  void clear();
  bool done() const { return at_ == pieces_.size(); }
  uint64_t left() const { return left_; }
  /// Up to 64 pieces and about `bytes_max` bytes from where it stands.
  std::span<const iovec> window(size_t bytes_max);
  /// Moves on by `count` bytes and shows each run of bytes that was passed.
  template <class Seen>
  void advance(size_t count, Seen&& seen) {
    while (count > 0) {
      ByteSpan& piece = pieces_[at_];
      const size_t step = std::min(count, piece.size());
      seen(piece.first(step));
      take(step);
      count -= step;
    }
  }
  void advance(size_t count) {
    advance(count, [](ByteSpan) {});
  }

 private:
  void take(size_t count);

  std::vector<ByteSpan> pieces_;
  size_t at_ = 0;
  uint64_t left_ = 0;
  std::vector<iovec> window_;
};

}  // namespace kern::transport
