#pragma once
/// One stage as its head sees it: commands in, reports out. Joins the engine's StageFollower with
/// the device thread, the data links of each epoch and a sender of hand-off parts for each group.
/// Used by stage 0 inside the head's process and by every other stage behind its control channel.
/// Thread safety: everything on the IoContext's thread; `Options`' callbacks come there too. An
/// epoch begins with ResetEpoch: links are torn down, a port for the new link is announced, and
/// EpochReady is reported once the device is at rest and both links are up.

#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "group_sender.h"
#include "kern/base/log.h"
#include "kern/engine/follower.h"
#include "kern/node/join.h"
#include "kern/node/pace.h"
#include "kern/transport/connect.h"
#include "stage_device.h"
#include "worker.h"

namespace kern::node {

struct StageShellOptions {
  uint32_t stage = 0, stages = 1;
  const manifest::Verified* manifest = nullptr;
  runtime::Runtime* runtime = nullptr;
  std::optional<transport::ClusterKey> key;
  Digest pipeline{};  ///< what all stages of the cut have in common
  Digest model{};     ///< what stages and decode ranks have in common
  std::string advertise = "127.0.0.1";
  int64_t page_tokens = 64;
  TimeNs part_timeout = 10 * kSecondNs;
  std::function<void(const engine::StageReport&)> report;
  std::function<void(EpochAddress)> announce;  ///< this stage's data port of an epoch
  std::function<void(const std::string&)>
      broken;  ///< a link failed without a reset: leave and rejoin
  std::function<void(const Error&)> device_lost;  ///< the process must end
};

class StageShell {
 public:
  StageShell(transport::IoContext& io, const Log& log, RuntimeExecutor& executor,
             trace::Recorder& recorder, StageShellOptions options);
  ~StageShell();

  void on_command(const engine::StageCommand& command);
  /// The next stage's address in an epoch.
  void on_next(const EpochPeers& peers);
  void on_head_lost();
  bool idle() const { return !follower_.running() && follower_.items_queued() == 0; }
  const DeviceTimes& times() const { return device_.times(); }

 private:
  void begin_epoch(engine::Epoch epoch);
  void settle();
  void listen_for_link();
  void link_soon(bool inward, transport::Connection connection);
  void leave(const std::string& why);
  void link_up(bool inward, transport::Connection connection);
  void report_if_ready();
  void drop_broken_item();
  void act();
  void start(engine::Item item);
  void finished(const engine::Item& item, Result<engine::ItemResult> result);
  void send_parts(const engine::SendState& order);
  void add_group(const engine::GroupUp& up);
  void drop_group(engine::GroupId group);
  transport::Terms terms(transport::Purpose purpose) const;

  transport::IoContext& io_;
  const Log& log_;
  StageShellOptions options_;
  engine::StageFollower follower_;
  StageDevice device_;
  std::optional<engine::Epoch> epoch_;
  std::optional<engine::EpochReady> ready_;  ///< of the engine, waiting for the links
  bool reported_ = false;
  std::optional<engine::ItemResult> pending_done_;  ///< of an item whose link broke
  std::unique_ptr<transport::Listener> listener_;
  std::unique_ptr<transport::Dialer> dialer_;
  std::shared_ptr<transport::Link> in_, out_;
  transport::Timer broken_timer_;
  Throttle refusals_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  Worker device_thread_;  // its jobs use what stands above, as the senders' do
  std::map<engine::GroupId, std::unique_ptr<GroupSender>> groups_;
  std::map<uint64_t, std::unique_ptr<GroupSender>> leaving_;  ///< not drained yet
  uint64_t departures_ = 0;
};

}  // namespace kern::node
