#pragma once
/// A device and the thread that drives it: items run in the order given, and one is started before
/// the one ahead of it has ended, so that the device goes from one to the next by itself.
/// Thread safety: `run` and `post` from any thread; `done` and posted jobs are called on the
/// device's thread.

#include <functional>

#include "kern/base/clock.h"
#include "kern/node/runtime_executor.h"
#include "kern/trace/recorder.h"
#include "stage_device.h"
#include "worker.h"

namespace kern::node {

class DeviceQueue {
 public:
  DeviceQueue(RuntimeExecutor& executor, trace::Recorder& recorder)
      : executor_(executor), recorder_(recorder) {}

  /// At most RuntimeExecutor::kStartedMax items are given and not done. Kinds of the result as
  /// RuntimeExecutor::run's.
  void run(engine::Item item, std::function<void(Result<engine::ItemResult>)> done);
  /// Between items, or while one runs on the device.
  void post(std::function<void()> job) { thread_.post(std::move(job)); }
  const DeviceTimes& times() const { return times_; }

 private:
  void start(const engine::Item& item, std::function<void(Result<engine::ItemResult>)> done);

  RuntimeExecutor& executor_;
  trace::Recorder& recorder_;
  SystemClock clock_;
  DeviceTimes times_;
  TimeNs free_at_ = 0;  ///< when the last item ended
  Worker thread_;       // last: its jobs use the rest
};

}  // namespace kern::node
