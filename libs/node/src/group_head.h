#pragma once
/// Rank 0's process: the engine's DecodeGroupHead between the prefill head, the local rank and the
/// other ranks.
/// Thread safety: everything on the IoContext's thread.
/// The engine is made once every rank has joined for the first time; it then dials the prefill head
/// whenever the group is whole.

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "control.h"
#include "kern/engine/group.h"
#include "loading.h"
#include "rank_shell.h"

namespace kern::node {

class GroupHeadNode {
 public:
  GroupHeadNode(transport::IoContext& io, const Log& log, const DaemonConfig& config,
                LoadedModel& model, PeerMesh* mesh, transport::ListenSocket parts,
                trace::Recorder& recorder, std::optional<transport::ClusterKey> key);
  ~GroupHeadNode();

  /// Listens for ranks, when there are others.
  Result<void> listen();
  void on_fatal(std::function<void(const Error&)> call) { fatal_ = std::move(call); }
  bool idle() const { return (!head_ || head_->idle()) && local_->idle(); }

 private:
  struct Rank {
    std::unique_ptr<transport::Channel> channel;
    std::optional<MemberJoin> join;
    std::string mesh_address;  ///< in `mesh_epoch_`
  };

  RankShellOptions shell_options(PeerMesh* mesh);
  void accept_rank(transport::Connection connection);
  Result<void> rank_message(uint32_t rank, JoinMessage message);
  Result<void> rank_join(uint32_t rank, const MemberJoin& join);
  void rank_closed(uint32_t rank, const Error& why);
  void mesh_address(uint32_t rank, const EpochAddress& address);
  void form();
  void pump();
  bool pump_once();
  void dial_later();
  void drop_rank(int32_t rank);
  void dial();
  void head_connected(transport::Connection connection);
  void head_closed(const Error& why);

  transport::IoContext& io_;
  const Log& log_;
  const DaemonConfig& config_;
  LoadedModel& loaded_;
  std::optional<transport::ClusterKey> key_;
  uint32_t rank_count_ = 1;
  std::vector<Rank> ranks_;  ///< by number; 0 is local and has no channel
  engine::Epoch mesh_epoch_ = 0;
  std::unique_ptr<engine::DecodeGroupHead> head_;
  std::unique_ptr<RankShell> local_;
  std::unique_ptr<transport::Listener> listener_;
  std::unique_ptr<transport::Dialer> dialer_;
  std::unique_ptr<transport::Channel> to_head_;
  transport::Timer timer_;
  Redial redial_;
  TimeNs pause_ = 0;
  transport::Timer redial_timer_;
  bool dial_waits_ = false;
  Throttle refusals_;
  bool pumping_ = false;
  std::function<void(const Error&)> fatal_;
};

}  // namespace kern::node
