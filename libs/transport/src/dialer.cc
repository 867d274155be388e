#include <limits>

#include "greeter.h"
#include "kern/base/assert.h"
#include "resolve.h"

namespace kern::transport {

struct Dialer::Impl : Buried {
  Impl(IoContext& context, Address to, DialOptions chosen)
      : io(context),
        address(std::move(to)),
        options(std::move(chosen)),
        backoff(options.backoff_first),
        resolver(io),
        pause(io),
        attempt_deadline(io),
        give_up(io) {
    KERN_ASSERT(options.done && options.backoff_first > 0 && options.attempt_timeout > 0);
    if (options.give_up_after > 0)
      give_up.after(options.give_up_after, [this] { finish(gave_up()); });
    pause.after(0, [this] { attempt(); });
  }

  void attempt() {
    ++attempts;
    last = Error{Kind::peer, "no answer in time", {}};
    attempt_deadline.after(options.attempt_timeout, [this] { attempt_failed(last); });
    if (const auto found = literal(address)) {
      candidates.assign(1, *found);
      return next_candidate();
    }
    resolver.resolve(address, [this](Result<std::vector<SocketAddress>> found) {
      if (!found) return attempt_failed(found.error());
      candidates.assign(found->rbegin(), found->rend());
      next_candidate();
    });
  }
  /// Takes candidates from the back until one begins to connect.
  void next_candidate() {
    while (!candidates.empty()) {
      const SocketAddress to = candidates.back();
      candidates.pop_back();
      if (!options.terms.key && !to.is_loopback())
        return finish(fail(Kind::caller,
                           "cannot dial `{}`: without a cluster key only loopback "
                           "addresses are allowed",
                           address.text()));
      auto begun = start_connect(to);
      if (!begun) {
        last = begun.error();
        continue;
      }
      socket = std::move(*begun);
      watch.emplace(io, socket.fd());
      return watch->writable([this, to] { connected(to); });
    }
    attempt_failed(last);
  }
  void connected(const SocketAddress& to) {
    watch.reset();
    if (auto outcome = connect_outcome(socket.fd()); !outcome) {
      last = outcome.error();
      socket.close();
      return next_candidate();
    }
    greeter = std::make_unique<Greeter>(io, std::move(socket), Handshake::Side::dialer,
                                        options.terms, to.text());
    greeter->begin(options.attempt_timeout, [this](Result<Connection> result, bool final) {
      if (result) return finish(std::move(result));
      if (final && !options.retry_refused) return finish(std::move(result));
      attempt_failed(result.error());
    });
  }
  void attempt_failed(const Error& why) {
    last = why;
    clear_attempt();
    if (options.failed_attempt) options.failed_attempt(why);
    if (over) return;
    if (options.attempts_max > 0 && attempts >= options.attempts_max) return finish(gave_up());
    pause.after(backoff, [this] { attempt(); });
    backoff = std::min(2 * backoff, options.backoff_max);
  }
  tl::unexpected<Error> gave_up() const {
    Error error = last;
    error.context.push_back(fmt::format("cannot reach `{}` ({} {})", address.text(), attempts,
                                        attempts == 1 ? "attempt" : "attempts"));
    return tl::unexpected<Error>(std::move(error));
  }
  void clear_attempt() {
    attempt_deadline.cancel();
    resolver.cancel();
    watch.reset();
    socket.close();
    candidates.clear();
    if (greeter) {
      greeter->cancel();
      io.bury(std::move(greeter));
    }
  }
  void close() {
    over = true;
    clear_attempt();
    pause.cancel();
    give_up.cancel();
  }
  void finish(Result<Connection> result) {
    if (over) return;
    close();
    options.done(std::move(result));
  }

  IoContext& io;
  Address address;
  DialOptions options;
  TimeNs backoff;
  Resolver resolver;
  Timer pause;
  Timer attempt_deadline;
  Timer give_up;
  std::vector<SocketAddress> candidates;
  Socket socket;
  std::optional<Watch> watch;
  std::unique_ptr<Greeter> greeter;
  Error last{Kind::peer, "not tried", {}};
  int attempts = 0;
  bool over = false;
};

Dialer::Dialer(IoContext& io, Address address, DialOptions options)
    : impl_(std::make_unique<Impl>(io, std::move(address), std::move(options))) {}

Dialer::~Dialer() {
  impl_->close();
  IoContext& io = impl_->io;
  io.bury(std::move(impl_));
}

Result<Connection> dial_blocking(const Address& address, DialOptions options) {
  KERN_ASSERT(options.give_up_after > 0 || options.attempts_max > 0, "dialing must end");
  IoContext io;
  std::optional<Result<Connection>> result;
  options.done = [&](Result<Connection> made) { result.emplace(std::move(made)); };
  const Dialer dialer(io, address, std::move(options));
  io.run_until([&] { return result.has_value(); }, std::numeric_limits<TimeNs>::max());
  KERN_ASSERT(result.has_value());
  return std::move(*result);
}

}  // namespace kern::transport
