#include "kern/transport/io.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <map>
#include <mutex>

#include "kern/base/assert.h"
#include "kern/transport/asio.h"
#include "resolve.h"

namespace kern::transport {

namespace asio = boost::asio;
using ErrorCode = boost::system::error_code;
constexpr TimeNs kLongestWait = 3600 * kSecondNs;

/// Asio's handlers hold a number, not an object: a callback whose number is no longer in `live` was
/// cancelled, so nothing that is destroyed can be called, and nothing needs shared ownership.
struct IoContext::Impl {
  using Id = uint64_t;

  Id arm(std::function<void()> call) {
    const Id id = next_id++;
    live.emplace(id, std::move(call));
    return id;
  }
  void disarm(Id& id) {
    live.erase(id);
    id = 0;
  }
  void fire(Id id) {
    const auto it = live.find(id);
    if (it == live.end()) return;
    auto call = std::move(it->second);
    live.erase(it);
    call();
  }
  void wait_signal() {
    signals->async_wait([this](const ErrorCode& failed, int number) {
      if (failed) return;
      on_signal(number);
      wait_signal();
    });
  }

  std::map<Id, std::function<void()>> live;
  Id next_id = 1;
  std::mutex graves_mutex;
  std::map<Id, std::unique_ptr<Buried>> graves;
  Id next_grave = 1;
  std::function<void(int)> on_signal;
  asio::io_context context{1};
  asio::executor_work_guard<asio::io_context::executor_type> work{context.get_executor()};
  std::optional<asio::signal_set> signals;
};

IoContext::IoContext() : impl_(std::make_unique<Impl>()) {}

IoContext::~IoContext() {
  // Objects that were buried may own Watches and Timers: they go before the context does.
  impl_->live.clear();
  impl_->graves.clear();
}

void IoContext::run() {
  impl_->context.restart();
  impl_->context.run();
}

bool IoContext::run_until(const std::function<bool()>& done, TimeNs deadline) {
  impl_->context.restart();
  while (!done()) {
    const TimeNs left = std::min(deadline - now(), kLongestWait);
    if (left <= 0 || impl_->context.stopped()) return done();
    impl_->context.run_one_for(std::chrono::nanoseconds(left));
  }
  return true;
}

void IoContext::stop() {
  impl_->context.stop();
}

void IoContext::post(std::function<void()> call) {
  asio::post(impl_->context, std::move(call));
}

/// Each object goes in a turn of its own: what was posted before its burial may still refer to it.
void IoContext::bury(std::unique_ptr<Buried> object) {
  if (object == nullptr) return;
  Impl::Id id = 0;
  {
    const std::lock_guard lock(impl_->graves_mutex);
    id = impl_->next_grave++;
    impl_->graves.emplace(id, std::move(object));
  }
  asio::post(impl_->context, [impl = impl_.get(), id] {
    std::map<Impl::Id, std::unique_ptr<Buried>>::node_type grave;
    const std::lock_guard lock(impl->graves_mutex);
    grave = impl->graves.extract(id);
  });
}

Result<void> IoContext::on_signals(const std::vector<int>& signals, std::function<void(int)> call) {
  KERN_ASSERT(!impl_->signals, "a context has one set of signals");
  impl_->on_signal = std::move(call);
  impl_->signals.emplace(impl_->context);
  for (const int number : signals) {
    ErrorCode failed;
    impl_->signals->add(number, failed);
    if (failed) return fail(Kind::io, "signal {}: {}", number, failed.message());
  }
  impl_->wait_signal();
  return {};
}

boost::asio::io_context& raw_context(IoContext& io) {
  return io.impl().context;
}

struct Timer::Impl {
  explicit Impl(IoContext::Impl& context) : io(context) {}

  IoContext::Impl& io;
  asio::steady_timer timer{io.context};
  IoContext::Impl::Id id = 0;
};

Timer::Timer(IoContext& io) : impl_(std::make_unique<Impl>(io.impl())) {}
Timer::~Timer() {
  cancel();
}

void Timer::after(TimeNs delay, std::function<void()> call) {
  cancel();
  impl_->id = impl_->io.arm(std::move(call));
  impl_->timer.expires_after(std::chrono::nanoseconds(delay));
  impl_->timer.async_wait([io = &impl_->io, id = impl_->id](const ErrorCode& failed) {
    if (!failed) io->fire(id);
  });
}

void Timer::cancel() {
  if (impl_->id == 0) return;
  impl_->io.disarm(impl_->id);
  impl_->timer.cancel();
}

struct Watch::Impl {
  explicit Impl(IoContext::Impl& context) : io(context) {}

  void wait(asio::posix::stream_descriptor::wait_type what, IoContext::Impl::Id& slot,
            std::function<void()> call) {
    io.disarm(slot);
    slot = io.arm(std::move(call));
    descriptor.async_wait(what,
                          [context = &io, id = slot](const ErrorCode&) { context->fire(id); });
  }

  IoContext::Impl& io;
  asio::posix::stream_descriptor descriptor{io.context};
  IoContext::Impl::Id read_id = 0, write_id = 0;
};

Watch::Watch(IoContext& io, int fd) : impl_(std::make_unique<Impl>(io.impl())) {
  ErrorCode failed;
  impl_->descriptor.assign(fd, failed);
  KERN_ASSERT(!failed, "descriptor {} cannot be watched: {}", fd, failed.message());
}

Watch::~Watch() {
  impl_->io.disarm(impl_->read_id);
  impl_->io.disarm(impl_->write_id);
  impl_->descriptor.release();
}

void Watch::readable(std::function<void()> call) {
  impl_->wait(asio::posix::stream_descriptor::wait_read, impl_->read_id, std::move(call));
}

void Watch::writable(std::function<void()> call) {
  impl_->wait(asio::posix::stream_descriptor::wait_write, impl_->write_id, std::move(call));
}

struct Resolver::Impl {
  explicit Impl(IoContext::Impl& context) : io(context) {}

  IoContext::Impl& io;
  asio::ip::tcp::resolver resolver{io.context};
  IoContext::Impl::Id id = 0;
  Result<std::vector<SocketAddress>> found = std::vector<SocketAddress>();
};

Resolver::Resolver(IoContext& io) : impl_(std::make_unique<Impl>(io.impl())) {}
Resolver::~Resolver() {
  cancel();
}

void Resolver::cancel() {
  impl_->io.disarm(impl_->id);
  impl_->resolver.cancel();
}

void Resolver::resolve(const Address& address,
                       std::function<void(Result<std::vector<SocketAddress>>)> done) {
  auto answer = [impl = impl_.get(), done = std::move(done)] { done(std::move(impl->found)); };
  impl_->io.disarm(impl_->id);
  impl_->id = impl_->io.arm(std::move(answer));
  impl_->resolver.async_resolve(
      address.host, std::to_string(address.port),
      [io = &impl_->io, impl = impl_.get(), id = impl_->id, host = address.host](
          const ErrorCode& failed, const asio::ip::tcp::resolver::results_type& results) {
        if (!io->live.contains(id)) return;
        std::vector<SocketAddress> found;
        for (const auto& result : results)
          found.emplace_back(result.endpoint().data(), result.endpoint().size());
        if (failed || found.empty())
          impl->found = fail(Kind::io, "host `{}`: {}", host, failed.message());
        else
          impl->found = std::move(found);
        io->fire(id);
      });
}

}  // namespace kern::transport
