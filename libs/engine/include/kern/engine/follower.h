#pragma once
/// The rules that a stage and a rank follow, as state machines without a device: in which order
/// items run, when a prompt's parts may be read, which parts may be written, and what a new
/// epoch means. The shell feeds messages and completions in and does what comes out.
/// Thread safety: one thread each. Determinism: same calls, same actions.
/// Does not: move bytes or check digests; the shell says whether a part was good.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "kern/base/result.h"
#include "kern/engine/messages.h"

namespace kern::engine {

/// Runs items one at a time in the order they came, and sends a prompt's parts once the item that
/// completes it has run. A stage keeps a place readable until its PartsSent.
class StageFollower {
 public:
  /// What to do now. `run` starts an item; `send` starts sending parts; `cancel` stops a send that
  /// was started; each send is answered with on_sent, once, also after a cancel.
  struct Actions {
    std::optional<Item> run;
    Epoch run_epoch = 0;  ///< of `run`: names the item's activations on the data link
    std::vector<SendState> send;
    std::vector<Generation> cancel;
    std::vector<GroupUp> groups_up;
    std::vector<GroupId> groups_gone;
    std::vector<StageReport> reports;
  };

  void on_command(const StageCommand& command);
  /// The item that was started has ended. After a failure of the device the shell exits instead.
  void on_item_done(ItemResult result);
  void on_sent(Generation generation, bool whole, std::string why);
  /// The link to the head broke: as a reset that nobody waits for.
  void on_head_lost();
  Actions take_actions();

  bool running() const { return running_; }
  size_t items_queued() const { return queue_.size(); }

 private:
  struct Sending {
    SendState order;
    bool started = false;
    bool dropped = false;  ///< by a reset: ends without a report
  };
  void drop_all();
  void cancel(Generation generation);
  void advance();
  void report_ready();

  Epoch epoch_ = 0;
  std::optional<Epoch> resetting_;
  Epoch running_epoch_ = 0;
  bool running_ = false;
  std::optional<uint64_t> done_;  ///< the last item run in this epoch
  std::vector<Item> queue_;
  std::map<Generation, Sending> sending_;
  Actions actions_;
};

/// Runs items in order, the second started before the first has ended, and keeps the ledger of
/// parts that may land.
class RankFollower {
 public:
  /// Most items that are started and have not ended.
  static constexpr size_t kRunningMax = 2;
  /// `runs`: items to start, in this order. `revoked`: hand-offs whose place may be given away from
  /// now on; a part of theirs that is still coming in must not be written any more.
  struct Actions {
    std::vector<Item> runs;
    std::vector<std::pair<RequestId, Generation>> revoked;
    std::vector<RankReport> reports;
  };
  /// Where an accepted part goes.
  struct PartPlace {
    Place place;
    uint32_t tokens = 0;
  };

  /// `states`: the names in this rank's manifest; each arrives once a generation.
  explicit RankFollower(std::vector<std::string> states);

  void on_command(const RankCommand& command);
  /// The oldest item that was started has ended.
  void on_item_done(ItemResult result);
  /// The link to rank 0 broke: as a reset that nobody waits for.
  void on_head_lost();
  /// Whether a part may be written, and where: its generation is expected, its state is ours and
  /// not here yet, its length is the prompt's. A refusal is kind peer. Ask again after a pause in
  /// between: the generation may have been stopped, and its place given away.
  Result<PartPlace> accept(const PartHeader& header) const;
  /// The prompt's length in a hand-off that is expected.
  std::optional<uint32_t> tokens_expected(Generation generation) const;
  /// The part's bytes are in place (`good`), or did not match their digest.
  void on_part(const PartHeader& header, bool good);
  Actions take_actions();

  bool running() const { return running_ > 0; }
  size_t expected() const { return expected_.size(); }

 private:
  struct Expected {
    ExpectParts order;
    std::vector<bool> here;  ///< by state
    size_t missing = 0;
  };
  void drop_all();
  void stop_expecting(Generation generation);
  void advance();

  std::vector<std::string> states_;
  Epoch epoch_ = 0;
  std::optional<Epoch> resetting_;
  size_t running_ = 0;
  Epoch running_epoch_ = 0;
  std::vector<Item> queue_;
  std::map<Generation, Expected> expected_;
  Actions actions_;
};

}  // namespace kern::engine
