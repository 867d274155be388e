#pragma once
/// Two ends on one loop: what most tests of connections begin with.

#include <catch2/catch.hpp>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "kern/transport/connect.h"

namespace kern_test {

using namespace kern;
using namespace kern::transport;

/// A key of this byte, sixteen times.
ClusterKey key_of(char byte);
/// The terms of stage `own` that expects a stage, with the test's plan, epoch and key.
Terms terms_of(uint32_t own, Purpose purpose = Purpose::control);
const Address& loopback();

/// Runs the loop until `done` or five seconds; returns done().
bool run_until(IoContext& io, const std::function<bool()>& done, TimeNs timeout = 5 * kSecondNs);

/// What a listener (stage 0) and a dialer (stage 1) with these terms make of each other.
struct Meeting {
  std::optional<Connection> listener;
  std::optional<Connection> dialer;
  std::string listener_error;
  std::string dialer_error;
};
Meeting meet(IoContext& io, Terms listener, Terms dialer);
/// A meeting that works.
Meeting pair_of(IoContext& io, Purpose purpose = Purpose::control);

/// An IoContext that runs on a thread of its own until destroyed.
class LoopThread {
 public:
  LoopThread() : thread_([this] { io.run(); }) {}
  ~LoopThread() {
    io.stop();
    thread_.join();
  }
  /// Runs `call` on the loop's thread and waits for it.
  void on_loop(const std::function<void()>& call);

  IoContext io;

 private:
  std::thread thread_;
};

/// A plain blocking socket connected to `address`, for peers that misbehave.
Socket raw_dial(const Address& address);
void raw_send(const Socket& socket, ByteSpan bytes);
/// Everything until the other end closes.
std::vector<std::byte> raw_read_all(const Socket& socket);

}  // namespace kern_test
