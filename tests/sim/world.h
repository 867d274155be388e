#pragma once
/// A whole cluster in one thread: a head with its stages, decode groups with their ranks, and
/// clients, on a network that fails as it is told. Every message goes through the wire format.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kern/engine/group.h"
#include "kern/engine/head.h"
#include "shells.h"

namespace kern::sim {

struct WorldOptions {
  Model model;
  std::vector<uint32_t> groups = {1};  ///< ranks of each
  uint32_t page_tokens = 64;
  uint32_t group_page_tokens = 64;
  uint32_t pages = 24, slots = 6;
  uint32_t group_pages = 24, group_slots = 6;
  int32_t rows_max = 256, seqs_max = 4;
  int32_t context_max = 640;
  int32_t requests = 20;
  bool prefix_cache = true;
  uint64_t host_bytes = 0;  ///< of a host tier where a page takes 5 and a slot 8; 0: none
  uint32_t park_tokens_min = 0;
  bool faults = false;
  TimeNs busy_for = 600 * kMillisecondNs;  ///< requests and faults happen before
};
/// A small cluster of a shape that the seed picks.
WorldOptions options_of(uint64_t seed);

/// What one run saw, to prove that it was not idle.
struct Tally {
  uint64_t finished = 0, failed = 0, aborted = 0, tokens = 0, cached_tokens = 0;
  uint64_t parked = 0, woken = 0;
  uint64_t faults = 0, handoffs_again = 0, late_messages = 0, damaged = 0;
  uint64_t events = 0;
};

class World;

struct HeadNode : Process {
  HeadNode(World& world, Network& network) : Process(network), world(world) {}
  void flush() override;
  World& world;
  std::unique_ptr<engine::PrefillHead> head;
  std::unique_ptr<StageShell> stage;
  TimeNs wake = 0;
};

struct StageNode : Process {
  StageNode(Network& network, int stage) : Process(network), stage(stage) {}
  void flush() override { shell->flush(); }
  int stage;
  std::unique_ptr<StageShell> shell;
  std::unique_ptr<Link> to_head;  ///< end 0: the head
};

struct RankNode : Process {
  RankNode(World& world, Network& network, size_t group, uint32_t rank)
      : Process(network), world(world), group(group), rank(rank) {}
  void flush() override;
  World& world;
  size_t group;
  uint32_t rank;
  std::unique_ptr<RankShell> shell;
  std::unique_ptr<engine::DecodeGroupHead> head;  ///< rank 0 only
  std::unique_ptr<Link> to_rank0;                 ///< end 0: rank 0; other ranks only
  std::unique_ptr<Link> to_head;                  ///< end 0: the head; rank 0 only
  std::optional<engine::GroupId> name;            ///< the head's, while connected
  TimeNs wake = 0;
  std::map<uint32_t, engine::Generation> pages_held;  ///< as its reports to the head say
};

struct Client {
  engine::Request request;
  Answer expected;
  uint64_t head_life = 0;
  std::vector<engine::Token> tokens;
  bool aborted = false;
  bool ended = false;
  std::string how;
};

class World {
 public:
  World(uint64_t seed, const WorldOptions& options);
  ~World();
  /// Runs to the end and checks everything; throws Broken.
  Tally run();

 private:
  friend struct HeadNode;
  friend struct RankNode;
  void start_head();
  void start_stage(StageNode& node);
  void start_rank(RankNode& node);
  engine::GroupHello hello(size_t group) const;
  std::optional<RankDoor> door(const std::string& address);
  void try_step(size_t group);
  void maintain();
  void connect_stage(StageNode& node);
  void connect_rank(RankNode& node);
  void connect_group(RankNode& node);
  void cut_stage(StageNode& node);
  void cut_rank(RankNode& node);
  void cut_group(RankNode& node);
  void to_stage(const engine::ToStage& command);
  void to_rank(size_t group, const engine::ToRank& command);
  void to_head(RankNode& node, const engine::GroupReport& report);
  void note_grants(RankNode& node, const engine::GroupOutput& output);
  void plan_requests();
  void plan_faults();
  void fault();
  void crash_head();
  void crash_stage(StageNode& node);
  void crash_rank(RankNode& node);
  engine::Request make_request();
  void submit(engine::Request request);
  void client_event(const engine::RequestEvent& event);
  void client_end(Client& client, const engine::FinishedEvent& finished);
  void client_end(Client& client, const engine::FailedEvent& failed);
  bool quiet() const;
  void run_until_quiet();
  void check_memory();

  WorldOptions options_;
  Network network_;
  Weather weather_;
  HeadNode head_;
  std::vector<std::unique_ptr<StageNode>> stages_;  ///< from stage 1
  std::vector<std::vector<std::unique_ptr<RankNode>>> groups_;
  std::map<uint64_t, Client> clients_;
  uint64_t next_request_ = 1;
  int32_t planned_ = 0;
  bool faulty_ = false;  ///< a fault has happened
  Tally tally_;
};

}  // namespace kern::sim
