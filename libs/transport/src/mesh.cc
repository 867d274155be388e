#include "kern/transport/mesh.h"

#include <poll.h>

#include "kern/base/assert.h"
#include "sockets.h"
#include "waker.h"

namespace kern::transport {
namespace {

constexpr size_t kBytesPerCall = size_t{1} << 20;

/// The connection to one other member, and how far this step's block has come in each direction.
struct Member {
  Connection connection;
  FrameHeader sent;
  FrameHeader received;
  Gather out;
  Gather in;
  MutableByteSpan block;  ///< where its payload lands
  bool header_checked = false;

  int fd() const { return connection.socket.fd(); }
};

std::string_view collective_name(FrameType type) {
  return type == FrameType::gather ? "all_gather" : "all_to_all";
}

}  // namespace

struct Mesh::Impl {
  Impl(int own_rank, std::vector<Member> all, TimeNs timeout, Waker made)
      : rank(own_rank), members(std::move(all)), peer_timeout(timeout), waker(std::move(made)) {}

  Result<void> exchange(FrameType type, ByteSpan send, size_t stride, size_t block,
                        MutableByteSpan receive);
  void begin(FrameType type, ByteSpan send, size_t stride, size_t block, MutableByteSpan receive);
  Result<void> run(TimeNs deadline);
  Result<void> sleep(size_t awaited, TimeNs deadline);
  Result<bool> push(Member& member);
  Result<bool> pull(Member& member);
  Result<void> check_header(const Member& member) const;
  Result<void> late(const Member& member) const;
  std::string where(const Member& member) const;
  void broke(const Error& why);

  int rank;
  std::vector<Member> members;  ///< in rank order; the own place is empty
  TimeNs peer_timeout;
  Waker waker;
  SystemClock clock;
  uint64_t step = kHandshakeFrames;  ///< also the sequence of every frame of the step
  FrameType type = FrameType::gather;
  std::optional<Error> broken;
  std::vector<pollfd> polled;
};

std::string Mesh::Impl::where(const Member& member) const {
  return fmt::format("member {} of {} ({}), {} step {}", member.connection.peer.index,
                     members.size(), member.connection.remote, collective_name(type),
                     step - kHandshakeFrames);
}

void Mesh::Impl::broke(const Error& why) {
  broken = why;
  // The others learn it from the closed sockets and need not wait for their time-outs.
  for (Member& member : members) {
    member.out.clear();
    member.in.clear();
    member.connection.socket.close();
  }
}

/// stride 0: the same block for everyone.
Result<void> Mesh::Impl::exchange(FrameType what, ByteSpan send, size_t stride, size_t block,
                                  MutableByteSpan receive) {
  if (broken) return tl::unexpected<Error>(*broken);
  type = what;
  begin(what, send, stride, block, receive);
  auto done = run(clock.now() + peer_timeout);
  ++step;
  if (!done) broke(done.error());
  return done;
}

void Mesh::Impl::begin(FrameType what, ByteSpan send, size_t stride, size_t block,
                       MutableByteSpan receive) {
  uint64_t digest = stride == 0 ? digest64(send) : 0;
  for (size_t i = 0; i < members.size(); ++i) {
    Member& member = members[i];
    const ByteSpan out = send.subspan(i * stride, block);
    const MutableByteSpan in = receive.subspan(i * block, block);
    if (i == static_cast<size_t>(rank)) {
      if (block > 0) std::memmove(in.data(), out.data(), block);
      continue;
    }
    if (stride != 0) digest = digest64(out);
    member.sent = make_header(static_cast<uint16_t>(what), 0, step, block, digest);
    member.out.clear();
    member.out.add(std::as_bytes(std::span(&member.sent, 1)));
    member.out.add(out);
    member.in.clear();
    member.in.add(std::as_writable_bytes(std::span(&member.received, 1)));
    member.in.add(in);
    member.block = in;
    member.header_checked = false;
  }
}

/// Sends to everyone, then takes the members' blocks one after another: by the time the awaited
/// one has come most others lie ready in their sockets, so a step sleeps once or twice.
Result<void> Mesh::Impl::run(TimeNs deadline) {
  const size_t count = members.size();
  for (size_t i = 1; i < count; ++i)
    KERN_TRY_VOID(push(members[(static_cast<size_t>(rank) + i) % count]));
  for (size_t i = 1; i < count; ++i) {
    const size_t awaited = (static_cast<size_t>(rank) + i) % count;
    for (;;) {
      KERN_TRY(whole, pull(members[awaited]));
      if (whole) break;
      KERN_TRY_VOID(sleep(awaited, deadline));
    }
  }
  for (size_t i = 1; i < count; ++i) {
    Member& member = members[(static_cast<size_t>(rank) + i) % count];
    while (!member.out.done()) {
      KERN_TRY_VOID(push(member));
      if (!member.out.done()) KERN_TRY_VOID(sleep(member.connection.peer.index, deadline));
    }
  }
  return {};
}

/// Sleeps until the awaited member sends, an unfinished send can go on, or any member is lost.
Result<void> Mesh::Impl::sleep(size_t awaited, TimeNs deadline) {
  polled.clear();
  for (size_t i = 0; i < members.size(); ++i) {
    const Member& member = members[i];
    int events = member.in.done() ? 0 : POLLRDHUP;
    if (i == awaited && !member.in.done()) events |= POLLIN;
    if (!member.out.done()) events |= POLLOUT;
    polled.push_back({events == 0 ? -1 : member.fd(), static_cast<short>(events), 0});
  }
  polled.push_back({waker.fd(), POLLIN, 0});
  const TimeNs left = deadline - clock.now();
  if (left <= 0) return late(members[awaited]);
  const int wait_ms = static_cast<int>(std::min<TimeNs>(left / kMillisecondNs + 1, 1 << 30));
  if (::poll(polled.data(), polled.size(), wait_ms) < 0 && errno != EINTR)
    return fail(Kind::io, "poll: {}", std::strerror(errno));
  if (const auto reason = waker.reason())
    return fail(Kind::peer, "the mesh was shut down: {}", *reason);
  for (size_t i = 0; i < members.size(); ++i) {
    if (polled[i].fd < 0 || polled[i].revents == 0) continue;
    KERN_TRY_VOID(push(members[i]));
    if ((polled[i].revents & ~POLLOUT) != 0) KERN_TRY_VOID(pull(members[i]));
  }
  return {};
}

Result<bool> Mesh::Impl::push(Member& member) {
  while (!member.out.done()) {
    auto count = write_some(member.fd(), member.out.window(kBytesPerCall));
    if (!count)
      return with_context(Result<bool>(tl::unexpected(count.error())), "{}", where(member));
    if (*count == 0) return false;
    member.out.advance(*count);
  }
  return true;
}

/// True when this member's block is whole and checked. What lands before its header was checked, or
/// whose digest is wrong, ends in an error, and the caller then uses none of it.
Result<bool> Mesh::Impl::pull(Member& member) {
  while (!member.in.done()) {
    auto count = read_some(member.fd(), member.in.window(kBytesPerCall));
    if (!count)
      return with_context(Result<bool>(tl::unexpected(count.error())), "{}", where(member));
    if (*count == 0) return false;
    member.in.advance(*count);
    if (!member.header_checked && member.in.left() <= member.block.size()) {
      KERN_TRY_VOID(with_context(check_header(member), "{}", where(member)));
      member.header_checked = true;
    }
    if (member.in.done() && digest64(member.block) != member.received.digest)
      return with_context(Result<bool>(fail(Kind::peer, "its block was altered on the way")), "{}",
                          where(member));
  }
  return true;
}

Result<void> Mesh::Impl::check_header(const Member& member) const {
  KERN_TRY(header, read_header(std::as_bytes(std::span(&member.received, 1)), step, kMeshBytesMax));
  if (header.type != static_cast<uint16_t>(type))
    return fail(Kind::peer, "it calls another collective (frame type {})", header.type);
  if (header.length != member.block.size())
    return fail(Kind::peer, "it sends a block of {} bytes, expected {}", header.length,
                member.block.size());
  return {};
}

Result<void> Mesh::Impl::late(const Member& member) const {
  return with_context(
      Result<void>(fail(Kind::peer, "it {} for {:.1f} s",
                        member.in.done() ? "took nothing" : "did not send its block",
                        static_cast<double>(peer_timeout) / kSecondNs)),
      "{}", where(member));
}

namespace {

/// Fills `members`; every place but the own one.
Result<void> connect_all(ListenSocket port, const MeshOptions& options,
                         std::vector<Member>& members) {
  IoContext io;
  const auto own = static_cast<uint32_t>(options.rank);
  const size_t size = members.size();
  std::optional<Error> failed;
  Error last{Kind::peer, "nobody came", {}};
  Terms terms{.self = {Role::rank, own, Purpose::mesh, options.plan, options.epoch},
              .key = options.key,
              .peer_role = Role::rank,
              .peer_index = std::nullopt,
              .admit = [own, size](const Identity& peer) -> Result<void> {
                if (peer.index > own && peer.index < size) return {};
                return fail(Kind::peer, "{} does not dial rank {} in a group of {}", peer.name(),
                            own, size);
              }};
  const auto place = [&](Connection made) {
    Connection& slot = members[made.peer.index].connection;
    slot = std::move(made);
  };
  const Listener listener(
      io, std::move(port),
      {.terms = terms, .accepted = place, .rejected = [&](const Error& why) { last = why; }});
  terms.admit = nullptr;
  std::vector<std::unique_ptr<Dialer>> dialers;
  for (uint32_t lower = 0; lower < own; ++lower) {
    terms.peer_index = lower;
    dialers.push_back(std::make_unique<Dialer>(
        io, options.addresses[lower],
        DialOptions{.terms = terms,
                    .done =
                        [&](Result<Connection> made) {
                          if (made)
                            place(std::move(*made));
                          else
                            failed = made.error();
                        },
                    .failed_attempt = [&](const Error& why) { last = why; }}));
  }
  const auto missing = [&] {
    for (size_t i = 0; i < size; ++i)
      if (i != own && !members[i].connection.socket.open()) return static_cast<int>(i);
    return -1;
  };
  io.run_until([&] { return failed || missing() < 0; }, io.now() + options.join_timeout);
  if (failed) return tl::unexpected<Error>(*failed);
  if (missing() >= 0)
    return fail(Kind::peer, "member {} of {} did not come within {:.1f} s; last: {}", missing(),
                size, static_cast<double>(options.join_timeout) / kSecondNs, last.text());
  return {};
}

}  // namespace

Result<std::unique_ptr<Mesh>> Mesh::join(ListenSocket port, const MeshOptions& options) {
  const size_t size = options.addresses.size();
  if (size == 0 || size > kMeshMembersMax || options.rank < 0 ||
      static_cast<size_t>(options.rank) >= size)
    return fail(Kind::caller, "a mesh has 1 to {} members and a rank among them, got rank {} of {}",
                kMeshMembersMax, options.rank, size);
  KERN_TRY(waker, Waker::create());
  std::vector<Member> members(size);
  if (size > 1) KERN_TRY_VOID(with_context(connect_all(std::move(port), options, members), "mesh"));
  auto mesh = std::make_unique<Mesh>(std::make_unique<Impl>(
      options.rank, std::move(members), options.join_timeout, std::move(waker)));
  // Nobody leaves before everybody is here: a first exchange with the patience of joining.
  std::vector<std::byte> everyone(size);
  const std::byte here{1};
  KERN_TRY_VOID(with_context(mesh->all_gather({&here, 1}, everyone), "joining the mesh"));
  mesh->impl_->peer_timeout = options.peer_timeout;
  return mesh;
}

Mesh::Mesh(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Mesh::~Mesh() = default;
int Mesh::rank() const {
  return impl_->rank;
}
int Mesh::size() const {
  return static_cast<int>(impl_->members.size());
}
void Mesh::shutdown(const std::string& reason) {
  impl_->waker.wake(reason);
}

Result<void> Mesh::all_gather(ByteSpan send, MutableByteSpan receive) {
  const size_t count = impl_->members.size();
  if (send.size() > kMeshBytesMax || receive.size() != send.size() * count)
    return fail(Kind::caller, "all_gather of {} bytes among {}: {} bytes to receive into",
                send.size(), count, receive.size());
  return impl_->exchange(FrameType::gather, send, 0, send.size(), receive);
}

Result<void> Mesh::all_to_all(ByteSpan send, MutableByteSpan receive) {
  const size_t count = impl_->members.size();
  const size_t block = send.size() / count;
  if (block > kMeshBytesMax || block * count != send.size() || receive.size() != send.size())
    return fail(Kind::caller, "all_to_all of {} bytes among {}: {} bytes to receive into",
                send.size(), count, receive.size());
  return impl_->exchange(FrameType::exchange, send, block, block, receive);
}

}  // namespace kern::transport
