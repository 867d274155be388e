#pragma once
/// A model whose "KV" is a digest of what was written where, so that a wrong page, a stale slot or
/// a missed copy changes every token that follows. Cut into stages like the real one; a decode
/// group holds all of its states, paged rows by position, recurrent lines on every rank.

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kern/base/prng.h"
#include "kern/engine/messages.h"

namespace kern::sim {

using Digest = uint64_t;

struct Model {
  int stages = 1;
  bool recurrent = true;
};

/// A request whose seed has this bit may come out as "not a number" at any token.
inline constexpr uint64_t kFragile = 1ULL << 63;
inline constexpr engine::Token kStop = 7;

/// Pages and slots of one process; garbage at first, as real memory is.
struct Memory {
  Memory(uint32_t pages, uint32_t slots, uint32_t page_tokens, Prng& garbage);
  Digest& at(const std::vector<uint32_t>& table, uint32_t row) {
    return pages.at(table.at(row / page_tokens)).at(row % page_tokens);
  }
  uint32_t page_tokens;
  std::vector<std::vector<Digest>> pages;
  std::vector<Digest> slots;
  std::map<uint32_t, std::vector<Digest>> host_pages;  ///< the host tier, as far as it was used
  std::map<uint32_t, Digest> host_slots;
};

/// What a stage's memory is when several stages' states live in one process.
using Memories = std::vector<Memory>;  ///< by stage

/// What one process writes when a step ends on it.
struct Write {
  int stage = 0;
  bool slot = false;
  uint32_t index = 0;   ///< page or slot
  uint32_t offset = 0;  ///< in the page
  Digest value = 0;
};
void apply(Memories& memories, const std::vector<Write>& writes);

/// What a step leaves for the next: its tokens, -1 for a row that failed.
std::vector<engine::Token> tokens_of(const engine::ItemResult& step);
/// Puts them where the item's slices say (Slice::fed_from).
void feed(engine::Item& item, const std::vector<engine::Token>& kept);

/// Moves between the tiers that were started and take their time; they are done in order.
class Moves {
 public:
  void start(const engine::Item& item);
  bool empty() const { return under_way_.empty(); }
  /// Whether an item must still wait.
  bool holds_up(const engine::Item& item) const;
  /// Does the next one on every memory.
  void step(Memories& memories);
  /// Up to which item all are done.
  uint64_t moved() const { return under_way_.empty() ? started_ : under_way_.front().first - 1; }
  void forget() { started_ = 0; }
  /// Why an item may not run beside what is under way; nothing when it may.
  std::optional<std::string> in_the_way(const engine::Item& item, uint32_t page_tokens) const;

 private:
  std::deque<std::pair<uint64_t, engine::Move>> under_way_;
  uint64_t started_ = 0;
};

/// The hidden rows of an item before the first stage.
std::vector<Digest> embed(const engine::Item& item);
/// Runs an item's copies and rows on one stage's memory; returns the hidden rows after it.
std::vector<Digest> run_stage(const Model& model, int stage, Memory& memory,
                              const engine::Item& item, const std::vector<Digest>& hidden);
/// The tokens of an item from its hidden rows after the last stage.
engine::ItemResult emit(const engine::Item& item, const std::vector<Digest>& hidden);

/// One lockstep step of a group: reads every rank's memory; what each rank has to write comes back.
engine::ItemResult run_group(const Model& model, std::vector<Memories*>& ranks,
                             const engine::Item& item, std::vector<std::vector<Write>>& writes);

/// A stage's part for a rank: its rows in position order, or its line.
std::vector<Digest> cut_part(Memory& memory, const engine::Place& from, uint32_t tokens, bool paged,
                             uint32_t rank, uint32_t ranks);
void land_part(Memory& memory, const engine::Place& to, bool paged, uint32_t rank,
               const std::vector<Digest>& part);

struct Answer {
  std::vector<engine::Token> tokens;
  engine::EndReason end = engine::EndReason::length;
};
/// The answer as a pure function of the request.
Answer answer(const Model& model, const engine::Request& request);

/// Why an item is no sound plan for anybody's memory: two of its slices write one page or slot.
std::optional<std::string> unsound(const engine::Item& item, uint32_t page_tokens, uint32_t ranks);

}  // namespace kern::sim
