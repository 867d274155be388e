#pragma once
/// One thread that runs jobs in order: a device's, or a sender's.
/// Thread safety: post from any thread. Destruction lets the job in progress end and drops the
/// rest.

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

 private:
  void loop();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> jobs_;
  bool stopping_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace kern::node
