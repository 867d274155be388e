#include "kern/node/machine_group.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <thread>

#include "kern/base/assert.h"

namespace kern::node {
namespace {

constexpr uint32_t kMagic = 0x6B657267;
constexpr TimeNs kDialAgain = 20 * kMillisecondNs;

/// What a member says first.
struct Hello {
  uint32_t magic, rank, size;
};

struct Address {
  sockaddr_un value = {};
  socklen_t length = 0;
};

/// A name of the abstract namespace: it goes with the socket and leaves no file.
Result<Address> address_of(const std::string& name) {
  Address out;
  const std::string whole = "kern/" + name;
  out.value.sun_family = AF_UNIX;
  if (whole.size() + 1 > sizeof(out.value.sun_path))
    return fail(Kind::caller, "a group's name of {} bytes, expected at most {}", name.size(),
                sizeof(out.value.sun_path) - 1 - (whole.size() - name.size()));
  std::memcpy(out.value.sun_path + 1, whole.data(), whole.size());
  out.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + whole.size());
  return out;
}

Result<Descriptor> make_socket() {
  Descriptor fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.is_open()) return fail(Kind::io, "no socket: {}", std::strerror(errno));
  return fd;
}

Result<void> set_timeout(const Descriptor& fd, TimeNs timeout) {
  timeval value = {};
  value.tv_sec = timeout / kSecondNs;
  value.tv_usec = timeout % kSecondNs / 1000 + 1;
  for (const int option : {SO_RCVTIMEO, SO_SNDTIMEO})
    if (::setsockopt(fd.get(), SOL_SOCKET, option, &value, sizeof(value)) != 0)
      return fail(Kind::io, "a socket takes no timeout: {}", std::strerror(errno));
  return {};
}

/// Whether the other end belongs to this user.
bool is_own_user(const Descriptor& fd) {
  ucred other = {};
  socklen_t size = sizeof(other);
  return ::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &other, &size) == 0 &&
         other.uid == ::geteuid();
}

tl::unexpected<Error> lost(int rank, ssize_t got) {
  const bool late = got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
  return fail(Kind::peer, "rank {} {}", rank,
              got == 0 ? "has left"
              : late   ? "is late"
                       : std::strerror(errno));
}

Result<void> send_all(const Descriptor& to, int rank, ByteSpan bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(to.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return lost(rank, n);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return {};
}

Result<void> receive_all(const Descriptor& from, int rank, MutableByteSpan bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::recv(from.get(), bytes.data(), bytes.size(), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return lost(rank, n);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return {};
}

/// A message of one byte that carries a descriptor, and room for it.
struct Carrier {
  Carrier() {
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
  }
  Carrier(const Carrier&) = delete;
  Carrier& operator=(const Carrier&) = delete;

  char byte = 'd';
  iovec part = {&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
};

Result<void> send_descriptor(const Descriptor& to, int rank, int fd) {
  Carrier carrier;
  cmsghdr* header = CMSG_FIRSTHDR(&carrier.message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  const ssize_t n = ::sendmsg(to.get(), &carrier.message, MSG_NOSIGNAL);
  if (n <= 0) return lost(rank, n);
  return {};
}

Result<Descriptor> receive_descriptor(const Descriptor& from, int rank) {
  Carrier carrier;
  const ssize_t n = ::recvmsg(from.get(), &carrier.message, MSG_CMSG_CLOEXEC);
  if (n <= 0) return lost(rank, n);
  const cmsghdr* header = CMSG_FIRSTHDR(&carrier.message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS)
    return fail(Kind::peer, "rank {} sent no descriptor", rank);
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(header), sizeof(fd));
  return Descriptor(fd);
}

MutableByteSpan block_of(MutableByteSpan all, int rank, size_t bytes) {
  return all.subspan(static_cast<size_t>(rank) * bytes, bytes);
}

}  // namespace

Result<std::unique_ptr<MachineGroup>> MachineGroup::join(const std::string& name, int rank,
                                                         int size, TimeNs timeout) {
  KERN_ASSERT(size >= 1 && rank >= 0 && rank < size, "rank {} of {}", rank, size);
  auto group = std::make_unique<MachineGroup>(rank, size);
  KERN_TRY_VOID(with_context(rank == 0 ? group->listen(name, timeout) : group->dial(name, timeout),
                             "group `{}`", name));
  return group;
}

Result<void> MachineGroup::listen(const std::string& name, TimeNs timeout) {
  links_.resize(static_cast<size_t>(size_));
  KERN_TRY(address, address_of(name));
  KERN_TRY(door, make_socket());
  if (::bind(door.get(), reinterpret_cast<const sockaddr*>(&address.value), address.length) != 0)
    return errno == EADDRINUSE ? fail(Kind::caller, "another process is its rank 0")
                               : fail(Kind::io, "no name for it: {}", std::strerror(errno));
  if (::listen(door.get(), size_) != 0)
    return fail(Kind::io, "nobody can come: {}", std::strerror(errno));
  const SystemClock clock;
  const TimeNs deadline = clock.now() + timeout;
  for (int missing = size_ - 1; missing > 0;) {
    const TimeNs left = deadline - clock.now();
    pollfd ready = {door.get(), POLLIN, 0};
    if (left <= 0 || ::poll(&ready, 1, static_cast<int>(left / kMillisecondNs) + 1) == 0)
      return fail(Kind::peer, "{} of {} ranks have not come", missing, size_);
    Descriptor link(::accept4(door.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!link.is_open() || !is_own_user(link)) continue;
    KERN_TRY_VOID(set_timeout(link, timeout));
    Hello hello = {};
    if (!receive_all(link, -1, std::as_writable_bytes(std::span(&hello, 1))) ||
        hello.magic != kMagic)
      continue;
    if (hello.size != static_cast<uint32_t>(size_) || hello.rank == 0 || hello.rank >= hello.size)
      return fail(Kind::peer, "rank {} of {} came, expected ranks 1 to {} of {}", hello.rank,
                  hello.size, size_ - 1, size_);
    if (links_[hello.rank].is_open())
      return fail(Kind::peer, "two processes say that they are rank {}", hello.rank);
    links_[hello.rank] = std::move(link);
    --missing;
  }
  return {};
}

Result<void> MachineGroup::dial(const std::string& name, TimeNs timeout) {
  KERN_TRY(address, address_of(name));
  const SystemClock clock;
  const TimeNs deadline = clock.now() + timeout;
  for (;;) {
    KERN_TRY(link, make_socket());
    if (::connect(link.get(), reinterpret_cast<const sockaddr*>(&address.value), address.length) ==
            0 &&
        is_own_user(link)) {
      KERN_TRY_VOID(set_timeout(link, timeout));
      const Hello hello = {kMagic, static_cast<uint32_t>(rank_), static_cast<uint32_t>(size_)};
      KERN_TRY_VOID(send_all(link, 0, std::as_bytes(std::span(&hello, 1))));
      links_.push_back(std::move(link));
      return {};
    }
    if (clock.now() >= deadline) return fail(Kind::peer, "rank 0 has not come");
    std::this_thread::sleep_for(std::chrono::nanoseconds(kDialAgain));
  }
}

Result<void> MachineGroup::all_gather(ByteSpan send, MutableByteSpan receive) {
  KERN_ASSERT(receive.size() == send.size() * static_cast<size_t>(size_), "{} bytes",
              receive.size());
  if (rank_ != 0) {
    KERN_TRY_VOID(send_all(links_[0], 0, send));
    return receive_all(links_[0], 0, receive);
  }
  const MutableByteSpan own = block_of(receive, 0, send.size());
  std::copy(send.begin(), send.end(), own.begin());
  for (int rank = 1; rank < size_; ++rank)
    KERN_TRY_VOID(
        receive_all(links_[static_cast<size_t>(rank)], rank, block_of(receive, rank, send.size())));
  for (int rank = 1; rank < size_; ++rank)
    KERN_TRY_VOID(send_all(links_[static_cast<size_t>(rank)], rank, receive));
  return {};
}

/// For the few small tables of a load: everybody hears everything.
Result<void> MachineGroup::all_to_all(ByteSpan send, MutableByteSpan receive) {
  const auto size = static_cast<size_t>(size_);
  KERN_ASSERT(receive.size() == send.size() && send.size() % size == 0, "{} bytes", send.size());
  std::vector<std::byte> all(send.size() * size);
  KERN_TRY_VOID(all_gather(send, all));
  const size_t block = send.size() / size;
  for (size_t rank = 0; rank < size; ++rank) {
    const auto from = all.begin() + static_cast<ptrdiff_t>(rank * send.size() +
                                                           static_cast<size_t>(rank_) * block);
    std::copy(from, from + static_cast<ptrdiff_t>(block),
              receive.begin() + static_cast<ptrdiff_t>(rank * block));
  }
  return {};
}

Result<std::vector<Descriptor>> MachineGroup::all_gather_descriptors(Descriptor mine) {
  std::vector<Descriptor> all;
  if (rank_ != 0) {
    KERN_TRY_VOID(send_descriptor(links_[0], 0, mine.get()));
    for (int rank = 0; rank < size_; ++rank) {
      KERN_TRY(theirs, receive_descriptor(links_[0], 0));
      all.push_back(std::move(theirs));
    }
    return all;
  }
  all.push_back(std::move(mine));
  for (int rank = 1; rank < size_; ++rank) {
    KERN_TRY(theirs, receive_descriptor(links_[static_cast<size_t>(rank)], rank));
    all.push_back(std::move(theirs));
  }
  for (int rank = 1; rank < size_; ++rank)
    for (const Descriptor& each : all)
      KERN_TRY_VOID(send_descriptor(links_[static_cast<size_t>(rank)], rank, each.get()));
  return all;
}

std::optional<int> MachineGroup::gone() const {
  for (size_t rank = 0; rank < links_.size(); ++rank) {
    if (!links_[rank].is_open()) continue;
    pollfd link = {links_[rank].get(), POLLRDHUP, 0};
    if (::poll(&link, 1, 0) > 0) return static_cast<int>(rank);
  }
  return std::nullopt;
}

}  // namespace kern::node
