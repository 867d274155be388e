#include <map>

#include "greeter.h"
#include "kern/base/assert.h"

namespace kern::transport {
namespace {

constexpr int kAcceptsPerTurn = 16;
constexpr TimeNs kPauseAfterFailure = 100 * kMillisecondNs;

}  // namespace

struct Listener::Impl : Buried {
  Impl(IoContext& context, ListenSocket bound, ListenerOptions chosen)
      : io(context),
        port(std::move(bound)),
        options(std::move(chosen)),
        watch(std::in_place, io, port.socket.fd()),
        pause(io) {
    KERN_ASSERT(options.accepted && options.strangers_max > 0);
    wait();
  }

  void wait() {
    watch->readable([this] { accept_some(); });
  }
  void accept_some() {
    for (int i = 0; i < kAcceptsPerTurn && !closed; ++i) {
      auto accepted = accept_one(port.socket.fd());
      if (!accepted) {
        reject(accepted.error());
        if (!closed) pause.after(kPauseAfterFailure, [this] { wait(); });
        return;
      }
      if (!*accepted) break;
      greet(std::move(**accepted));
    }
    if (!closed) wait();
  }
  void greet(Accepted accepted) {
    const std::string remote = accepted.from.text();
    if (!options.terms.key && !accepted.from.is_loopback())
      return reject(
          Error{Kind::peer, "without a cluster key only loopback peers are accepted", {remote}});
    if (strangers.size() >= options.strangers_max) {
      drop(strangers.begin()->first);
      reject(
          Error{Kind::peer,
                fmt::format("more than {} connections without a handshake", options.strangers_max),
                {}});
      if (closed) return;
    }
    const uint64_t id = next_id++;
    auto& greeter = strangers[id];
    greeter = std::make_unique<Greeter>(io, std::move(accepted.socket), Handshake::Side::listener,
                                        options.terms, remote);
    greeter->begin(options.handshake_timeout, [this, id](Result<Connection> result, bool) {
      drop(id);
      if (!result)
        reject(result.error());
      else if (!closed)
        options.accepted(std::move(*result));
    });
  }
  void drop(uint64_t id) {
    const auto it = strangers.find(id);
    KERN_ASSERT(it != strangers.end(), "stranger {} is not here", id);
    it->second->cancel();
    io.bury(std::move(it->second));
    strangers.erase(it);
  }
  void reject(const Error& why) {
    if (!closed && options.rejected) options.rejected(why);
  }
  void close() {
    closed = true;
    pause.cancel();
    watch.reset();
    port.socket.close();
    while (!strangers.empty()) drop(strangers.begin()->first);
  }

  IoContext& io;
  ListenSocket port;
  ListenerOptions options;
  std::optional<Watch> watch;
  Timer pause;
  std::map<uint64_t, std::unique_ptr<Greeter>> strangers;  ///< oldest first
  uint64_t next_id = 1;
  bool closed = false;
};

Listener::Listener(IoContext& io, ListenSocket port, ListenerOptions options)
    : impl_(std::make_unique<Impl>(io, std::move(port), std::move(options))) {}

Listener::~Listener() {
  impl_->close();
  IoContext& io = impl_->io;
  io.bury(std::move(impl_));
}

const Address& Listener::address() const {
  return impl_->port.address;
}

}  // namespace kern::transport
