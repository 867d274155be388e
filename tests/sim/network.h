#pragma once
/// Simulated time, processes and links in one thread. A link keeps the order of its messages and
/// nothing keeps order across links; when it breaks, what was on the way is lost and each end hears
/// of it later. A stalled process handles nothing until it wakes. One seed is one run.

#include <fmt/format.h>

#include <deque>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

#include "kern/base/clock.h"
#include "kern/base/prng.h"

namespace kern::sim {

/// Thrown when an invariant does not hold; the test prints it with the seed.
struct Broken : std::runtime_error {
  using std::runtime_error::runtime_error;
};
template <class... Args>
void expect(bool holds, fmt::format_string<Args...> format, Args&&... args) {
  if (!holds) throw Broken(fmt::format(format, std::forward<Args>(args)...));
}

class Network {
 public:
  explicit Network(uint64_t seed) : prng(seed) {}

  void at(TimeNs when, std::function<void()> what) {
    events_.emplace(std::pair(std::max(when, now), serial_++), std::move(what));
  }
  /// Runs the next event; false when there is none before `until`.
  bool step(TimeNs until) {
    if (events_.empty() || events_.begin()->first.first > until) return false;
    now = events_.begin()->first.first;
    auto what = std::move(events_.begin()->second);
    events_.erase(events_.begin());
    what();
    return true;
  }
  TimeNs between(TimeNs low, TimeNs high) {
    return low + static_cast<TimeNs>(prng.below(static_cast<uint64_t>(high - low + 1)));
  }
  bool chance(double probability) { return prng.unit() < probability; }

  TimeNs now = 0;
  Prng prng;

 private:
  std::map<std::pair<TimeNs, uint64_t>, std::function<void()>> events_;
  uint64_t serial_ = 0;
};

/// A process: handles one thing after another, may stall, may die and come back as another life.
class Process {
 public:
  explicit Process(Network& network) : network_(network) {}
  virtual ~Process() = default;

  /// Handles `what` in this life, in the order of posting, once not stalled.
  void post(TimeNs delay, std::function<void()> what) {
    network_.at(network_.now + delay, [this, life = life_, what = std::move(what)] {
      if (life != life_ || !alive_) return;
      inbox_.push_back(what);
      drain();
    });
  }
  void stall(TimeNs duration) {
    stalled_until_ = std::max(stalled_until_, network_.now + duration);
    network_.at(stalled_until_, [this] { drain(); });
  }
  void die() {
    ++life_;
    alive_ = false;
    inbox_.clear();
  }
  void live() {
    ++life_;
    alive_ = true;
  }
  bool alive() const { return alive_; }
  uint64_t life() const { return life_; }

 protected:
  /// After everything handled: send what came out.
  virtual void flush() = 0;
  Network& network_;

 private:
  void drain() {
    while (!inbox_.empty() && network_.now >= stalled_until_) {
      const auto what = std::move(inbox_.front());
      inbox_.pop_front();
      what();
      flush();
    }
  }
  std::deque<std::function<void()>> inbox_;
  TimeNs stalled_until_ = 0;
  uint64_t life_ = 1;
  bool alive_ = true;
};

/// An ordered link between two processes.
class Link {
 public:
  Link(Network& network, Process& a, Process& b) : network_(network), ends_{&a, &b} {}

  bool open() const { return open_; }
  void connect() {
    open_ = true;
    ++life_;
    last_[0] = last_[1] = network_.now;
  }
  /// Breaks; each end that lives hears it through `down` after a while.
  void cut(std::function<void()> down_a, std::function<void()> down_b) {
    if (!open_) return;
    open_ = false;
    ++life_;
    tell(0, std::move(down_a));
    tell(1, std::move(down_b));
  }
  /// Whether each end that lives has heard of the break, so that a new connection may be made.
  bool settled() const {
    for (int end = 0; end < 2; ++end)
      if (deaf_[end] != 0 && deaf_[end] == ends_[end]->life()) return false;
    return true;
  }
  /// Delivers to end `to` (0 or 1), unless the link breaks first.
  void send(int to, std::function<void()> what) {
    if (!open_) return;
    TimeNs& last = last_[to];
    last = std::max(last + 1, network_.now + network_.between(10'000, 2 * kMillisecondNs));
    ends_[to]->post(last - network_.now, [this, life = life_, what = std::move(what)] {
      if (life == life_) what();
    });
  }

 private:
  void tell(int end, std::function<void()> down) {
    deaf_[end] = ends_[end]->life();
    ends_[end]->post(network_.between(0, 20 * kMillisecondNs), [this, end, down = std::move(down)] {
      deaf_[end] = 0;
      down();
    });
  }
  Network& network_;
  Process* ends_[2];
  bool open_ = false;
  uint64_t life_ = 0;
  TimeNs last_[2] = {0, 0};
  uint64_t deaf_[2] = {0, 0};  ///< the life of an end that has not heard of the break
};

}  // namespace kern::sim
