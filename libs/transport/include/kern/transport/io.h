#pragma once
/// The one thread of a process that runs sockets, timers and signals.
/// Thread safety: post, stop and bury may be called from any thread, everything else from the one
/// that runs the context (or before it runs). Callbacks run on that thread, one at a time.
/// Ownership: the context outlives every Timer, Watch, Channel, Listener and link made on it.
/// A Timer's or Watch's callback never runs after that object is destroyed or cancelled.

#include <functional>
#include <memory>
#include <vector>

#include "kern/base/clock.h"
#include "kern/base/result.h"

namespace kern::transport {

/// Something to destroy on the context's thread once the current callback has returned.
class Buried {
 public:
  virtual ~Buried() = default;
};

class IoContext {
 public:
  IoContext();
  ~IoContext();
  IoContext(const IoContext&) = delete;
  IoContext& operator=(const IoContext&) = delete;

  /// Runs until stop.
  void run();
  /// Runs until `done` is true or the clock passes `deadline`; returns done().
  bool run_until(const std::function<bool()>& done, TimeNs deadline);
  void stop();
  void post(std::function<void()> call);
  void bury(std::unique_ptr<Buried> object);
  /// The monotonic clock that timers go by.
  TimeNs now() const { return clock_.now(); }
  /// Calls `call` with the signal's number each time one of `signals` arrives, until the context
  /// ends. One set of signals a context.
  Result<void> on_signals(const std::vector<int>& signals, std::function<void(int)> call);

  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  SystemClock clock_;
  std::unique_ptr<Impl> impl_;
};

/// A one-shot timer that can be set again.
class Timer {
 public:
  explicit Timer(IoContext& io);
  ~Timer();
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  /// Calls `call` once, `delay` from now; an earlier setting is forgotten.
  void after(TimeNs delay, std::function<void()> call);
  void cancel();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Tells when a descriptor can be read or written. Does not own the descriptor, and must be
/// destroyed before it is closed.
class Watch {
 public:
  Watch(IoContext& io, int fd);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  /// Calls `call` once when the descriptor is readable (or has failed).
  void readable(std::function<void()> call);
  void writable(std::function<void()> call);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kern::transport
