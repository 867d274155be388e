#pragma once
/// Wakes a thread that sleeps in poll, from any other thread, for good.

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "kern/base/result.h"
#include "kern/transport/socket.h"

namespace kern::transport {

class Waker {
 public:
  static Result<Waker> create();
  Waker(Waker&&) = default;

  /// Readable once somebody called wake.
  int fd() const { return event_.fd(); }
  void wake(const std::string& reason);
  /// The reason of the first wake, if there was one.
  std::optional<std::string> reason() const;

 private:
  explicit Waker(Socket event) : event_(std::move(event)), mutex_(std::make_unique<std::mutex>()) {}

  Socket event_;
  std::unique_ptr<std::mutex> mutex_;
  std::optional<std::string> reason_;
};

}  // namespace kern::transport
