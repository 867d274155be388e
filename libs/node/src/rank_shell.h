#pragma once
/// One decode rank as its head sees it: commands in, reports out. Joins the engine's RankFollower
/// with the device thread, the mesh of each epoch and the receiver of hand-off parts. Used by rank
/// 0 inside the group head's process and by every other rank behind its control channel. Thread
/// safety: everything on the IoContext's thread; `Options`' callbacks come there too. An epoch
/// begins with ResetEpoch: the mesh is torn down, a port for the new one is announced, and
/// EpochReady is reported once the device is at rest and every member has joined.

#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "device_queue.h"
#include "kern/base/log.h"
#include "kern/engine/follower.h"
#include "kern/node/handoff.h"
#include "kern/node/join.h"
#include "kern/node/pace.h"
#include "kern/node/peer_mesh.h"
#include "kern/node/runtime_executor.h"
#include "kern/trace/recorder.h"
#include "kern/transport/connect.h"
#include "kern/transport/parts.h"

namespace kern::node {

struct RankShellOptions {
  uint32_t rank = 0, ranks = 1;
  const manifest::Verified* manifest = nullptr;
  runtime::Runtime* runtime = nullptr;
  PeerMesh* mesh = nullptr;  ///< what the runtime's collectives go over; null for one rank
  std::optional<transport::ClusterKey> key;
  Digest group{};  ///< what all ranks have in common
  Digest model{};  ///< what stages and decode ranks have in common
  std::string advertise = "127.0.0.1";
  int64_t page_tokens = 64;
  TimeNs peer_timeout = 10 * kSecondNs;
  std::function<void(const engine::RankReport&)> report;
  std::function<void(EpochAddress)> announce;      ///< this rank's mesh port of an epoch
  std::function<void(const std::string&)> broken;  ///< the mesh failed without a reset
  std::function<void(const Error&)> device_lost;   ///< the process must end
};

class RankShell {
 public:
  /// `parts`: where hand-off parts are taken; its address is known to the group already.
  RankShell(transport::IoContext& io, const Log& log, RuntimeExecutor& executor,
            trace::Recorder& recorder, transport::ListenSocket parts, RankShellOptions options);
  ~RankShell();

  void on_command(const engine::RankCommand& command);
  /// Every rank's mesh address in an epoch.
  void on_peers(const EpochPeers& peers);
  void on_head_lost();
  bool idle() const { return !follower_.running() && follower_.expected() == 0; }
  const DeviceTimes& times() const { return device_.times(); }
  const transport::PartReceiverCounters& parts() const { return receiver_.counters(); }

 private:
  using Expecting = std::variant<transport::Destination, transport::Refusal>;
  /// A part of a GPU's state on its way: it lands here, and then goes where it belongs.
  struct Landing {
    std::vector<std::byte> bytes;
    std::vector<StateRange> ranges;
  };
  using LandingKey = std::tuple<uint64_t, uint64_t, std::string>;  ///< request, generation, state

  void begin_epoch(engine::Epoch epoch);
  void report_if_ready();
  void drop_broken_items();
  void act();
  void start(engine::Item item);
  void finished(uint64_t id, Result<engine::ItemResult> result);
  Expecting expect(const transport::PartHead& head);
  transport::Destination destination(const engine::HandoffState& state,
                                     const transport::PartHead& head, const engine::Place& to,
                                     uint32_t tokens);
  Result<void> put_down(const transport::PartHead& head);
  void part_done(const transport::PartHead& head, bool good);
  transport::Terms terms(transport::Purpose purpose) const;
  transport::PartReceiverOptions receiver_options();

  transport::IoContext& io_;
  const Log& log_;
  RankShellOptions options_;
  std::vector<engine::HandoffState> states_;
  engine::RankFollower follower_;
  std::optional<engine::Epoch> epoch_;
  std::optional<transport::ListenSocket> mesh_port_;  ///< announced, not joined yet
  std::optional<engine::EpochReady> ready_;           ///< of the engine, waiting for the mesh
  std::vector<engine::ItemResult> pending_done_;      ///< of items whose mesh broke
  bool joined_ = false, reported_ = false;
  transport::Timer broken_timer_;
  Throttle refusals_;
  std::map<LandingKey, Landing> landings_;  ///< where the device is a GPU
  transport::PartReceiver receiver_;
  std::unique_ptr<transport::Listener> parts_listener_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  DeviceQueue device_;  // last: its jobs use the rest
};

}  // namespace kern::node
