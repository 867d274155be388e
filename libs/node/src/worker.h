#pragma once
/// One thread that runs jobs in order: a device's, or a sender's.
/// Thread safety: post from any thread. Destruction lets the job in progress end and drops the
/// rest.

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace kern::node {

class Worker {
 public:
  Worker();
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void post(std::function<void()> job);
  /// Once `is_ready`, which this thread asks again and again. Jobs posted later go ahead meanwhile;
  /// of jobs that wait, an earlier one goes first.
  void post_when(std::function<bool()> is_ready, std::function<void()> job);

 private:
  /// Between two questions: what a result may be late by, while the device has its next work.
  static constexpr std::chrono::microseconds kPause{20};
  struct Waiting {
    std::function<bool()> is_ready;
    std::function<void()> job;
  };
  void loop();
  std::function<void()> next();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> jobs_;
  std::deque<Waiting> waiting_;
  bool stopping_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace kern::node
