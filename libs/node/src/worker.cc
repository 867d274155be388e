#include "worker.h"

#include <utility>

namespace kern::node {

Worker::Worker() : thread_([this] { loop(); }) {}

Worker::~Worker() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    jobs_.clear();
    waiting_.clear();
  }
  wake_.notify_one();
  thread_.join();
}

void Worker::post(std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  wake_.notify_one();
}

void Worker::post_when(std::function<bool()> is_ready, std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back({std::move(is_ready), std::move(job)});
  }
  wake_.notify_one();
}

/// What to do now; nothing at the end. The first that waits is asked before any other job goes, so
/// that a result is not held up by what came later.
std::function<void()> Worker::next() {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (stopping_) return nullptr;
    if (!waiting_.empty()) {
      const Waiting first = waiting_.front();  // a copy: the destructor clears while we ask
      lock.unlock();
      const bool is_ready = first.is_ready();
      lock.lock();
      if (stopping_) return nullptr;
      if (is_ready) {
        waiting_.pop_front();
        return first.job;
      }
    }
    if (!jobs_.empty()) {
      auto job = std::move(jobs_.front());
      jobs_.pop_front();
      return job;
    }
    const auto changed = [&] { return stopping_ || !jobs_.empty(); };
    if (waiting_.empty())
      wake_.wait(lock, [&] { return changed() || !waiting_.empty(); });
    else
      wake_.wait_for(lock, kPause, changed);
  }
}

void Worker::loop() {
  while (const auto job = next()) job();
}

}  // namespace kern::node
