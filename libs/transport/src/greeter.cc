#include "greeter.h"

#include "kern/base/assert.h"

namespace kern::transport {

Greeter::Greeter(IoContext& io, Socket socket, Handshake::Side side, Terms terms,
                 std::string remote)
    : io_(io),
      socket_(std::move(socket)),
      remote_(std::move(remote)),
      handshake_(side, std::move(terms)),
      deadline_(io),
      soon_(io) {}

void Greeter::begin(TimeNs timeout, Done done) {
  KERN_ASSERT(!done_ && !stream_, "one handshake each");
  done_ = std::move(done);
  stream_.emplace(
      io_, socket_.fd(),
      StreamOptions{.length_max = kHandshakeBytesMax,
                    .frame = [this](const Frame& frame) { receive(frame); },
                    .failed =
                        [this](const Error& why, bool other_version) {
                          const auto told = handshake_.give_up(why, other_version);
                          const iovec one{const_cast<std::byte*>(told.data()), told.size()};
                          (void)write_some(socket_.fd(), std::span(&one, 1));
                          finish(tl::unexpected<Error>(why), other_version);
                        },
                    .drained = {}});
  auto first = handshake_.start();
  if (!first) return finish(tl::unexpected<Error>(first.error()), false);
  deadline_.after(timeout, [this, timeout] {
    finish(
        fail(Kind::peer, "no handshake within {:.1f} s", static_cast<double>(timeout) / kSecondNs),
        false);
  });
  stream_->send_encoded(std::move(*first));
  stream_->start_reading();
}

void Greeter::cancel() {
  over_ = true;
  if (stream_) stream_->stop();
  deadline_.cancel();
  soon_.cancel();
}

void Greeter::receive(const Frame& frame) {
  if (over_) return;
  auto step = handshake_.receive(frame);
  stream_->send_encoded(std::move(step.send));
  if (step.failed) return finish(tl::unexpected<Error>(std::move(*step.failed)), step.final);
  if (!handshake_.done()) return;
  if (stream_->queued_bytes() > 0)
    return finish(fail(Kind::peer, "the handshake's last word did not leave"), false);
  finish(Connection{{}, handshake_.peer(), remote_}, false);
}

/// The stream cannot go away inside its own callback, and its descriptor must be unwatched before
/// anybody else watches it.
void Greeter::finish(Result<Connection> result, bool final) {
  if (over_) return;
  cancel();
  outcome_ = std::make_unique<Result<Connection>>(std::move(result));
  soon_.after(0, [this, final] {
    stream_.reset();
    if (*outcome_)
      (*outcome_)->socket = std::move(socket_);
    else
      socket_.close();
    if (!*outcome_) outcome_->error().context.push_back(remote_);
    done_(std::move(*outcome_), final);
  });
}

}  // namespace kern::transport
