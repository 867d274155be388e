#pragma once
/// Stage 0's process: the engine's PrefillHead between the HTTP front, the local stage, the other
/// stages and the decode groups.
/// Thread safety: everything on the IoContext's thread.
/// The engine is made once every stage has joined for the first time, within what all of them
/// allow; a stage that comes back with less is refused.

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "backend.h"
#include "control.h"
#include "kern/engine/head.h"
#include "loading.h"
#include "request_phases.h"
#include "stage_shell.h"

namespace kern::node {

class PrefillHeadNode : public EngineBackend {
 public:
  PrefillHeadNode(transport::IoContext& io, const Log& log, const DaemonConfig& config,
                  LoadedModel& model, serve::ModelInfo info, trace::Recorder& recorder,
                  std::optional<transport::ClusterKey> key);
  ~PrefillHeadNode() override;

  /// Listens for stages and groups.
  Result<void> listen();
  /// Called when this process cannot go on.
  void on_fatal(std::function<void(const Error&)> call) { fatal_ = std::move(call); }

  void submit(engine::Request request) override;
  void abort(engine::RequestId id) override;

 protected:
  engine::Counters counters() const override;
  std::vector<engine::GroupStatus> groups() const override;
  std::vector<StageTimes> stages() const override;
  const RequestPhases::Sums* phases() const override { return &phases_.sums(); }
  std::string not_ready() const override;
  bool idle() const override { return !head_ || head_->idle(); }
  TimeNs now() const override { return io_.now(); }

 private:
  struct Stage {
    std::unique_ptr<transport::Channel> channel;
    std::optional<MemberJoin> join;
    MemberTimes times;
  };
  struct Group {
    std::unique_ptr<transport::Channel> channel;
    std::optional<engine::GroupHello> hello;  ///< until the engine has it
    std::optional<engine::GroupId> id;
  };

  transport::Terms control_terms(transport::Role peer, const Digest& plan) const;
  StageShellOptions shell_options();
  void accept_stage(transport::Connection connection);
  Result<void> stage_join(uint32_t stage, const MemberJoin& join);
  Result<void> stage_message(uint32_t stage, JoinMessage message);
  void stage_closed(uint32_t stage, const Error& why);
  void next_address(uint32_t stage, const EpochAddress& address);
  void accept_group(transport::Connection connection);
  Result<void> group_report(uint64_t key, ByteSpan payload);
  Result<void> introduce(Group& group);
  void group_closed(uint64_t key, const Error& why);
  void form();
  void pump();
  bool pump_once();
  void send_stage(int32_t stage, const engine::StageCommand& command);
  void send_group(engine::GroupId group, const engine::GroupCommand& command);
  void drop_group(engine::GroupId group);
  void drop_stage(int32_t stage);

  transport::IoContext& io_;
  const Log& log_;
  const DaemonConfig& config_;
  LoadedModel& loaded_;
  std::optional<transport::ClusterKey> key_;
  uint32_t stage_count_ = 1;
  std::vector<Stage> stages_;  ///< by number; 0 is local and has no channel
  std::map<uint64_t, Group> groups_;
  uint64_t groups_seen_ = 0;
  engine::ExecutorLimits limits_;
  std::unique_ptr<engine::PrefillHead> head_;
  std::unique_ptr<StageShell> local_;
  std::unique_ptr<transport::Listener> stage_listener_, group_listener_;
  transport::Timer timer_;
  Throttle refusals_, group_refusals_;
  RequestPhases phases_;
  bool pumping_ = false;
  std::function<void(const Error&)> fatal_;
};

}  // namespace kern::node
