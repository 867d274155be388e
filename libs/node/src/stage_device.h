#pragma once
/// A stage's device with its data links: receives what the stage before made, runs the item, sends
/// what the stage after needs. Everything here blocks and belongs to the device thread, but for
/// `shutdown_links`, which may come from any thread and ends every wait.

#include <atomic>
#include <memory>
#include <mutex>

#include "kern/base/clock.h"
#include "kern/node/runtime_executor.h"
#include "kern/trace/recorder.h"
#include "kern/transport/link.h"

namespace kern::node {

/// Nanoseconds since the start, for /metrics.
struct DeviceTimes {
  std::atomic<int64_t> busy{0}, receiving{0}, sending{0};
  std::atomic<uint64_t> items{0}, rows{0};
};

class StageDevice {
 public:
  StageDevice(RuntimeExecutor& executor, trace::Recorder& recorder)
      : executor_(executor), recorder_(recorder) {}

  /// The links of a new epoch; either may be null at an end of the pipeline.
  void set_links(std::shared_ptr<transport::Link> in, std::shared_ptr<transport::Link> out);
  void shutdown_links(const std::string& reason);
  /// Runs one item. Kind peer: a link broke, and the next epoch may go on; kind device: the end.
  Result<engine::ItemResult> run(const engine::Item& item);
  /// Waits for moves between the tiers: before an epoch whose items know nothing of them.
  Result<void> settle() { return executor_.settle(); }
  const DeviceTimes& times() const { return times_; }

 private:
  Result<void> receive(transport::Link& link, const engine::Item& item);
  Result<void> send(transport::Link& link, const engine::Item& item);
  TimeNs record(const char* name, uint64_t id, TimeNs start, std::atomic<int64_t>& total);

  RuntimeExecutor& executor_;
  trace::Recorder& recorder_;
  SystemClock clock_;
  DeviceTimes times_;
  std::mutex mutex_;  ///< of the two pointers
  std::shared_ptr<transport::Link> in_, out_;
};

}  // namespace kern::node
