#include "waker.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace kern::transport {

Result<Waker> Waker::create() {
  Socket event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event.open()) return fail(Kind::io, "cannot open an eventfd: {}", std::strerror(errno));
  return Waker(std::move(event));
}

void Waker::wake(const std::string& reason) {
  const std::lock_guard lock(*mutex_);
  if (!reason_) reason_ = reason;
  const uint64_t one = 1;
  (void)!::write(event_.fd(), &one, sizeof one);
}

std::optional<std::string> Waker::reason() const {
  const std::lock_guard lock(*mutex_);
  return reason_;
}

}  // namespace kern::transport
