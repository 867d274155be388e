#pragma once
/// What every process that serves HTTP shares: an engine behind the front's Backend interface, its
/// health told from progress, its counters as Prometheus text.
/// Thread safety: everything on the IoContext's thread.

#include "kern/base/clock.h"
#include "kern/base/sha256.h"
#include "kern/engine/metrics.h"
#include "kern/serve/server.h"
#include "request_phases.h"
#include "stage_device.h"

namespace kern::node {

/// The device times of one stage, for metrics and the status page.
struct StageTimes {
  uint32_t stage = 0;
  bool here = false;
  int64_t busy = 0, receiving = 0, sending = 0;
  uint64_t items = 0, rows = 0;
};

class EngineBackend : public serve::Backend {
 public:
  explicit EngineBackend(serve::ModelInfo model) : model_(std::move(model)) {}

  /// Where events go; set once the server is up.
  void set_server(serve::Server* server) { server_ = server; }
  void set_draining() { draining_ = true; }

  const serve::ModelInfo& model() const override { return model_; }
  serve::Health health() const override;
  std::string metrics_text() const override;
  std::vector<serve::StatusTable> status() const override;
  uint64_t random_seed() override;

 protected:
  virtual engine::Counters counters() const = 0;
  virtual std::vector<engine::GroupStatus> groups() const { return {}; }
  virtual std::vector<StageTimes> stages() const { return {}; }
  /// Where finished requests spent their time; null when nobody counts.
  virtual const RequestPhases::Sums* phases() const { return nullptr; }
  /// Why nothing can be served yet; empty when it can.
  virtual std::string not_ready() const = 0;
  virtual bool idle() const = 0;
  virtual TimeNs now() const = 0;

  /// To the client, or nowhere while there is no server.
  void deliver(engine::RequestEvent event);

  serve::ModelInfo model_;

 private:
  serve::Server* server_ = nullptr;
  bool draining_ = false;
};

}  // namespace kern::node
