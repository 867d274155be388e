#include "sockets.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>

#include "kern/base/assert.h"

namespace kern::transport {
namespace {

constexpr int kBacklog = 128;
constexpr size_t kWindowPieces = 64;

std::string last_error() {
  return std::strerror(errno);
}

void set_option(int fd, int level, int name, int value) {
  ::setsockopt(fd, level, name, &value, sizeof value);
}

void set_stream_options(int fd) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
}

tl::unexpected<Error> broken_stream() {
  if (errno == ECONNRESET || errno == EPIPE) return fail(Kind::peer, "the connection was reset");
  return fail(Kind::peer, "connection lost: {}", last_error());
}

bool would_block() {
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

}  // namespace

Result<Address> Address::parse(std::string_view text) {
  const size_t colon = text.rfind(':');
  const auto refuse = [&] {
    return fail(Kind::caller, "address `{}`: expected HOST:PORT, IPv6 hosts in brackets", text);
  };
  if (colon == std::string_view::npos || colon == 0 || text.size() > 300) return refuse();
  std::string_view host = text.substr(0, colon);
  const std::string_view digits = text.substr(colon + 1);
  if (host.front() == '[') {
    if (host.size() < 3 || host.back() != ']') return refuse();
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return refuse();
  }
  uint16_t port = 0;
  const auto [end, failed] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (failed != std::errc() || end != digits.data() + digits.size()) return refuse();
  return Address{std::string(host), port};
}

std::string Address::text() const {
  const bool brackets = host.find(':') != std::string::npos;
  return brackets ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

bool Address::is_loopback() const {
  const auto address = literal(*this);
  return address && address->is_loopback();
}

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = other.release();
  }
  return *this;
}

Socket::~Socket() {
  close();
}

int Socket::release() {
  const int fd = fd_;
  fd_ = -1;
  return fd;
}

void Socket::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

SocketAddress::SocketAddress(const sockaddr* address, socklen_t size) : length(size) {
  KERN_ASSERT(size <= sizeof storage, "{} bytes", size);
  std::memcpy(&storage, address, size);
}

std::string SocketAddress::host() const {
  char text[INET6_ADDRSTRLEN] = "";
  if (storage.ss_family == AF_INET)
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(storage).sin_addr, text,
                sizeof text);
  else if (storage.ss_family == AF_INET6)
    ::inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6&>(storage).sin6_addr, text,
                sizeof text);
  return text;
}

uint16_t SocketAddress::port() const {
  if (storage.ss_family == AF_INET)
    return ntohs(reinterpret_cast<const sockaddr_in&>(storage).sin_port);
  return ntohs(reinterpret_cast<const sockaddr_in6&>(storage).sin6_port);
}

bool SocketAddress::is_loopback() const {
  if (storage.ss_family == AF_INET) {
    const auto& in = reinterpret_cast<const sockaddr_in&>(storage);
    return (ntohl(in.sin_addr.s_addr) >> 24) == 127;
  }
  if (storage.ss_family != AF_INET6) return false;
  const in6_addr& in = reinterpret_cast<const sockaddr_in6&>(storage).sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&in) || (IN6_IS_ADDR_V4MAPPED(&in) && in.s6_addr[12] == 127);
}

std::optional<SocketAddress> literal(const Address& address) {
  // What may be spoken to without a key is no table's to say, and there may be none (RFC 6761).
  const char* const v4_host = address.host == "localhost" ? "127.0.0.1" : address.host.c_str();
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_port = htons(address.port);
  if (::inet_pton(AF_INET, v4_host, &v4.sin_addr) == 1)
    return SocketAddress(reinterpret_cast<const sockaddr*>(&v4), sizeof v4);
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(address.port);
  if (::inet_pton(AF_INET6, address.host.c_str(), &v6.sin6_addr) == 1)
    return SocketAddress(reinterpret_cast<const sockaddr*>(&v6), sizeof v6);
  return std::nullopt;
}

namespace {

/// A name is looked up here and now: listening starts before anything else runs.
Result<SocketAddress> bindable(const Address& address) {
  if (const auto found = literal(address)) return *found;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* list = nullptr;
  const int failed =
      ::getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &list);
  if (failed != 0 || list == nullptr)
    return fail(Kind::caller, "cannot listen on `{}`: {}", address.text(), ::gai_strerror(failed));
  const SocketAddress found(list->ai_addr, list->ai_addrlen);
  ::freeaddrinfo(list);
  return found;
}

}  // namespace

Result<ListenSocket> listen_on(const Address& address, bool has_key) {
  KERN_TRY(at, bindable(address));
  if (!has_key && !at.is_loopback())
    return fail(Kind::caller,
                "cannot listen on `{}`: without a cluster key only loopback addresses are allowed",
                address.text());
  Socket socket(::socket(at.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.open()) return fail(Kind::io, "cannot open a socket: {}", last_error());
  set_option(socket.fd(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (::bind(socket.fd(), at.get(), at.length) != 0) {
    if (errno == EADDRINUSE)
      return fail(Kind::io, "cannot listen on `{}`: the port is in use", address.text());
    return fail(Kind::io, "cannot listen on `{}`: {}", address.text(), last_error());
  }
  if (::listen(socket.fd(), kBacklog) != 0) {
    if (errno == EADDRINUSE)
      return fail(Kind::io, "cannot listen on `{}`: the port is in use", address.text());
    return fail(Kind::io, "cannot listen on `{}`: {}", address.text(), last_error());
  }
  SocketAddress bound;
  bound.length = sizeof bound.storage;
  if (::getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&bound.storage), &bound.length) != 0)
    return fail(Kind::io, "cannot listen on `{}`: {}", address.text(), last_error());
  return ListenSocket{std::move(socket), Address{address.host, bound.port()}};
}

Result<Socket> start_connect(const SocketAddress& address) {
  Socket socket(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.open()) return fail(Kind::io, "cannot open a socket: {}", last_error());
  set_stream_options(socket.fd());
  if (::connect(socket.fd(), address.get(), address.length) != 0 && errno != EINPROGRESS)
    return fail(Kind::peer, "cannot connect to {}: {}", address.text(), last_error());
  return socket;
}

Result<void> connect_outcome(int fd) {
  int error = 0;
  socklen_t size = sizeof error;
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  if (error != 0) return fail(Kind::peer, "cannot connect: {}", std::strerror(error));
  // A port nobody listens on may be given to the dialing socket itself, which then meets itself.
  sockaddr_storage own{}, other{};
  socklen_t own_size = sizeof own, other_size = sizeof other;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_size) == 0 &&
      ::getpeername(fd, reinterpret_cast<sockaddr*>(&other), &other_size) == 0 &&
      own_size == other_size && std::memcmp(&own, &other, own_size) == 0)
    return fail(Kind::peer, "cannot connect: nobody listens there");
  return {};
}

Result<std::optional<Accepted>> accept_one(int fd) {
  Accepted accepted;
  accepted.from.length = sizeof accepted.from.storage;
  accepted.socket = Socket(::accept4(fd, reinterpret_cast<sockaddr*>(&accepted.from.storage),
                                     &accepted.from.length, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!accepted.socket.open()) {
    if (would_block() || errno == ECONNABORTED) return std::optional<Accepted>();
    return fail(Kind::busy, "cannot accept a connection: {}", last_error());
  }
  set_stream_options(accepted.socket.fd());
  return std::optional<Accepted>(std::move(accepted));
}

Result<size_t> read_some(int fd, std::span<const iovec> into) {
  KERN_ASSERT(!into.empty());
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(into.data());
  message.msg_iovlen = into.size();
  const ssize_t count = ::recvmsg(fd, &message, MSG_DONTWAIT);
  if (count > 0) return static_cast<size_t>(count);
  if (count == 0) return fail(Kind::peer, "it closed the connection");
  if (would_block()) return size_t{0};
  return broken_stream();
}

Result<size_t> read_some(int fd, MutableByteSpan into) {
  const iovec one{into.data(), into.size()};
  return read_some(fd, std::span(&one, 1));
}

Result<size_t> write_some(int fd, std::span<const iovec> from) {
  KERN_ASSERT(!from.empty());
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(from.data());
  message.msg_iovlen = from.size();
  const ssize_t count = ::sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (count >= 0) return static_cast<size_t>(count);
  if (would_block()) return size_t{0};
  return broken_stream();
}

bool is_stale(int fd) {
  std::byte one;
  const ssize_t count = ::recv(fd, &one, 1, MSG_DONTWAIT | MSG_PEEK);
  return count >= 0 || !would_block();
}

std::string printable(ByteSpan text, size_t bytes_max) {
  std::string out(as_text(text.first(std::min(text.size(), bytes_max))));
  for (char& c : out)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = '?';
  return out;
}

void Gather::add(ByteSpan bytes) {
  if (bytes.empty()) return;
  pieces_.push_back(bytes);
  left_ += bytes.size();
}

void Gather::clear() {
  pieces_.clear();
  at_ = 0;
  left_ = 0;
}

std::span<const iovec> Gather::window(size_t bytes_max) {
  window_.clear();
  size_t bytes = 0;
  for (size_t i = at_; i < pieces_.size() && window_.size() < kWindowPieces; ++i) {
    const size_t size = std::min(pieces_[i].size(), bytes_max - bytes);
    if (size == 0) break;
    window_.push_back({const_cast<std::byte*>(pieces_[i].data()), size});
    bytes += size;
  }
  return window_;
}

void Gather::take(size_t count) {
  KERN_ASSERT(at_ < pieces_.size() && count <= pieces_[at_].size());
  pieces_[at_] = pieces_[at_].subspan(count);
  left_ -= count;
  if (pieces_[at_].empty()) ++at_;
}

}  // namespace kern::transport
