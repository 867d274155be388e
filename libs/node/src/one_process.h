#pragma once
/// A whole server in one process: the engine's UnifiedHead between the HTTP front and one device.
/// Thread safety: everything on the IoContext's thread.

#include <functional>
#include <memory>

#include "backend.h"
#include "device_queue.h"
#include "kern/base/log.h"
#include "kern/engine/unified.h"
#include "kern/transport/io.h"
#include "loading.h"

namespace kern::node {

class OneProcessNode : public EngineBackend {
 public:
  static Result<std::unique_ptr<OneProcessNode>> create(transport::IoContext& io, const Log& log,
                                                        const DaemonConfig& config,
                                                        LoadedModel& model, serve::ModelInfo info,
                                                        trace::Recorder& recorder);
  /// For `create`, which checks that the manifest serves both phases.
  OneProcessNode(transport::IoContext& io, const Log& log, LoadedModel& model,
                 serve::ModelInfo info, engine::UnifiedHead head, trace::Recorder& recorder);
  ~OneProcessNode() override;

  void on_fatal(std::function<void(const Error&)> call) { fatal_ = std::move(call); }

  void submit(engine::Request request) override;
  void abort(engine::RequestId id) override;

 protected:
  engine::Counters counters() const override { return head_.counters(); }
  std::vector<StageTimes> stages() const override;
  std::string not_ready() const override { return ""; }
  bool idle() const override { return head_.idle(); }
  TimeNs now() const override { return io_.now(); }

 private:
  void pump();
  void run(engine::Item item);
  void finished(Result<engine::ItemResult> result);

  transport::IoContext& io_;
  const Log& log_;
  engine::UnifiedHead head_;
  transport::Timer timer_;
  bool pumping_ = false, again_ = false;
  std::function<void(const Error&)> fatal_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  DeviceQueue device_;  // last: its jobs use the rest
};

}  // namespace kern::node
