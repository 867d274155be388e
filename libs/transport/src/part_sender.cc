#include <poll.h>

#include "digest.h"
#include "kern/base/assert.h"
#include "part_head.h"
#include "sockets.h"
#include "waker.h"

namespace kern::transport {
namespace {

constexpr size_t kBytesPerCall = size_t{1} << 20;

/// An address that was sent to, and what this call still has for it.
struct Target {
  Address address;
  Socket socket;
  uint64_t sequence = kHandshakeFrames;
  Gather out;
  std::vector<std::vector<std::byte>> heads;  ///< encoded frames that `out` refers to
  size_t parts = 0;
  std::optional<Error> failed;

  void fail_with(Error why) {
    if (!failed) failed = std::move(why);
    out.clear();
    socket.close();
  }
};

}  // namespace

struct PartSender::Impl {
  Impl(PartSenderOptions chosen, Result<Waker> made)
      : options(std::move(chosen)), waker(std::move(made)) {}

  Target& target(const Address& address) {
    auto& found = targets[address.text()];
    if (!found) found = std::make_unique<Target>();
    found->address = address;
    return *found;
  }
  Result<void> queue(const OutPart& part);
  void connect_missing(TimeNs deadline);
  Result<void> push_all(TimeNs deadline);
  void push(Target& target);
  Result<void> outcome();

  PartSenderOptions options;
  Result<Waker> waker;
  SystemClock clock;
  std::map<std::string, std::unique_ptr<Target>> targets;
  PartSenderCounters counters;
};

Result<void> PartSender::Impl::queue(const OutPart& part) {
  if (part.state.size() > kStateNameBytesMax)
    return fail(Kind::caller, "state `{}`: a name has at most {} bytes", part.state,
                kStateNameBytesMax);
  PartHead head{part.request, part.generation, part.state, 0, 0};
  RunningDigest digest;
  for (const ByteSpan piece : part.pieces) {
    head.bytes += piece.size();
    digest.add(piece);
  }
  head.digest = digest.finish();
  if (head.bytes > kPartBytesMax)
    return fail(Kind::caller, "state `{}`: a part of {} bytes, at most {} allowed", part.state,
                head.bytes, kPartBytesMax);
  Target& to = target(part.to);
  to.heads.push_back(encode_part_head(head));
  ++to.parts;
  return {};
}

/// Dials, at the same time, every target that has something to get and no live connection.
void PartSender::Impl::connect_missing(TimeNs deadline) {
  IoContext io;
  size_t open_dials = 0;
  std::vector<std::unique_ptr<Dialer>> dialers;
  for (auto& [text, target] : targets) {
    if (target->parts == 0) continue;
    if (target->socket.open() && !is_stale(target->socket.fd())) continue;
    target->socket.close();
    target->sequence = kHandshakeFrames;
    ++open_dials;
    dialers.push_back(std::make_unique<Dialer>(
        io, target->address,
        DialOptions{.terms = options.terms,
                    .give_up_after =
                        std::max<TimeNs>(1, std::min(options.dial_timeout, deadline - io.now())),
                    .attempts_max = 1,
                    .done = [&open_dials, to = target.get()](Result<Connection> made) {
                      --open_dials;
                      if (made)
                        to->socket = std::move(made->socket);
                      else
                        to->fail_with(made.error());
                    }}));
  }
  if (open_dials == 0) return;
  io.run_until([&] { return open_dials == 0 || waker->reason(); }, deadline + options.dial_timeout);
}

void PartSender::Impl::push(Target& target) {
  while (!target.out.done()) {
    auto count = write_some(target.socket.fd(), target.out.window(kBytesPerCall));
    if (!count) return target.fail_with(std::move(count.error()));
    if (*count == 0) return;
    target.out.advance(*count);
    counters.bytes += *count;
  }
}

Result<void> PartSender::Impl::push_all(TimeNs deadline) {
  std::vector<pollfd> polled;
  std::vector<Target*> waiting;
  for (;;) {
    polled.assign(1, {waker->fd(), POLLIN, 0});
    waiting.clear();
    for (auto& [text, target] : targets) {
      push(*target);
      if (target->out.done()) continue;
      polled.push_back({target->socket.fd(), POLLOUT, 0});
      waiting.push_back(target.get());
    }
    if (waiting.empty()) return {};
    const TimeNs left = deadline - clock.now();
    if (left <= 0) break;
    const int wait_ms = static_cast<int>(std::min<TimeNs>(left / kMillisecondNs + 1, 1 << 30));
    if (::poll(polled.data(), polled.size(), wait_ms) < 0 && errno != EINTR)
      return fail(Kind::io, "poll: {}", std::strerror(errno));
    if (waker->reason()) break;
  }
  // A part that was cut leaves its connection in the middle of a frame: it must go.
  for (Target* target : waiting)
    target->fail_with(Error{Kind::peer,
                            waker->reason() ? "shut down: " + *waker->reason()
                                            : std::string("it does not take the bytes in time"),
                            {}});
  return {};
}

Result<void> PartSender::Impl::outcome() {
  Result<void> first;
  for (auto& [text, target] : targets) {
    if (target->failed) {
      counters.failures += target->parts;
      target->failed->context.push_back(fmt::format("hand-off to `{}`", text));
      if (first) first = tl::unexpected<Error>(std::move(*target->failed));
    } else {
      counters.parts += target->parts;
    }
    target->failed.reset();
    target->heads.clear();
    target->out.clear();
    target->parts = 0;
  }
  return first;
}

PartSender::PartSender(PartSenderOptions options)
    : impl_(std::make_unique<Impl>(std::move(options), Waker::create())) {
  KERN_ASSERT(impl_->options.terms.self.purpose == Purpose::parts);
}

PartSender::~PartSender() = default;

Result<void> PartSender::send(const std::vector<OutPart>& parts, TimeNs timeout) {
  Impl& my = *impl_;
  if (!my.waker) return tl::unexpected<Error>(my.waker.error());
  if (const auto reason = my.waker->reason()) return fail(Kind::peer, "shut down: {}", *reason);
  const TimeNs deadline = my.clock.now() + timeout;
  for (const OutPart& part : parts)
    if (auto queued = my.queue(part); !queued) {
      (void)my.outcome();
      return queued;
    }
  my.connect_missing(deadline);
  std::map<const Target*, size_t> next;
  for (const OutPart& part : parts) {
    Target& to = my.target(part.to);
    if (to.failed || !to.socket.open()) continue;
    auto& head = to.heads[next[&to]++];
    head = encode_frame(static_cast<uint16_t>(FrameType::part), to.sequence++, head);
    to.out.add(ByteSpan(head));
    for (const ByteSpan piece : part.pieces) to.out.add(piece);
  }
  auto pushed = my.push_all(deadline);
  auto sent = my.outcome();
  return pushed ? sent : pushed;
}

void PartSender::shutdown(const std::string& reason) {
  if (impl_->waker) impl_->waker->wake(reason);
}

const PartSenderCounters& PartSender::counters() const {
  return impl_->counters;
}

}  // namespace kern::transport
