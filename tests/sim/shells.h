#pragma once
/// The thin shells that daemons put around the engine's followers, against fake memory.

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "fake_model.h"
#include "kern/engine/follower.h"
#include "network.h"

namespace kern::sim {

class RankShell;

/// Finds the process and the shell behind a rank's address; null when it is gone.
struct RankDoor {
  Process* process = nullptr;
  std::function<RankShell*()> shell;
};
using Directory = std::function<std::optional<RankDoor>(const std::string& address)>;

/// What the network does to parts.
struct Weather {
  double part_lost = 0;
  double part_damaged = 0;
  uint64_t damaged = 0;
};

/// One stage: a follower, one device, one memory.
class StageShell {
 public:
  struct Ways {
    std::function<void(engine::StageReport)> report;
    std::function<void(engine::Epoch, uint64_t, std::vector<Digest>)> pass_on;  ///< empty: last
    Directory directory;
  };
  StageShell(Network& network, Process& process, const Model& model, int stage, Memory memory,
             Weather& weather, Ways ways);

  void command(const engine::StageCommand& command);
  void head_lost();
  void hidden_came(engine::Epoch epoch, uint64_t item, std::vector<Digest> hidden);
  /// Does what the follower says until it says no more.
  void flush();

 private:
  struct Sending {
    engine::SendState order;
    size_t parts_out = 0;
  };
  void unblock();
  void keep_moving();
  void try_compute();
  void complete();
  void start_send(const engine::SendState& order);
  void transmit(engine::Generation generation);
  void send_part(const engine::SendState& order, const std::string& address, uint32_t rank,
                 uint32_t ranks, bool paged);
  void part_answered(engine::Generation generation, bool whole);
  void finish_send(engine::Generation generation, bool whole, const std::string& why);

  Network& network_;
  Process& process_;
  Model model_;
  int stage_;
  Memories memories_;  ///< one: this stage's
  Memory& memory_;
  Moves moves_;
  bool moving_ = false;
  Weather& weather_;
  Ways ways_;
  engine::StageFollower follower_;
  std::optional<engine::Item> item_;
  engine::Epoch epoch_ = 0;
  bool computing_ = false;
  std::vector<Digest> input_;  ///< of the item that computes
  std::map<std::pair<engine::Epoch, uint64_t>, std::vector<Digest>> hidden_;
  std::map<engine::Generation, Sending> sending_;
  std::map<engine::GroupId, engine::GroupHello> groups_;
};

/// One rank: a follower and the memory of every state, on a device that steps with the others.
class RankShell {
 public:
  struct Ways {
    std::function<void(engine::RankReport)> report;
    std::function<void()> try_step;  ///< a rank waits for the others
  };
  RankShell(Network& network, Process& process, const Model& model, uint32_t rank,
            Memories memories, Ways ways);

  static std::vector<std::string> state_names(const Model& model);

  void command(const engine::RankCommand& command);
  void head_lost();
  /// A part begins to come in; `answer` is called once, with whether it was taken.
  void part(const engine::PartHeader& header, std::vector<Digest> rows, bool damaged,
            std::function<void(bool)> answer);
  void flush();

  /// The oldest item that has not ended, its tokens in place; null when there is none.
  const engine::Item* waiting() const { return items_.empty() ? nullptr : &items_.front(); }
  bool computing() const { return computing_; }
  Memories& memories() { return memories_; }
  /// All ranks have the item: this one ends it after a while, with these writes.
  void compute(engine::ItemResult result, std::vector<Write> writes);

 private:
  void unblock();
  void feed_first();

  Network& network_;
  Process& process_;
  Model model_;
  uint32_t rank_;
  Memories memories_;
  Ways ways_;
  engine::RankFollower follower_;
  std::deque<engine::Item> items_;
  std::vector<engine::Token> kept_;  ///< of the last step
  bool over_ = false;                ///< what waits behind the item that computes ends with it
  bool computing_ = false;
};

}  // namespace kern::sim
