#pragma once
/// What the processes of a cluster say to each other, as plain values: head to stages, head to
/// decode groups, rank 0 to its ranks, and a stage's announcement of a part. One hand-off is one
/// generation: every message about it carries the number, so that a late one is refused.
/// Thread safety: plain values.
/// Does not: say how a message travels; wire.h writes it, the shell sends it. A link keeps order.

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "kern/engine/item.h"

namespace kern::engine {

/// One attempt to place one request on one group. Counts up within a head; a head starts from a
/// number that no earlier head of the same cluster used.
using Generation = Strong<struct GenerationTag, uint64_t>;
/// A decode group as its head names it; a group that comes back has a new one.
using GroupId = Strong<struct GroupIdTag, uint32_t>;
/// One life of a pipeline or of a group: it ends when any member is lost, and with it all state.
/// Epochs grow, also from one head to the next.
using Epoch = uint64_t;

/// Where a sequence lies: the same numbers on every stage of a pipeline or rank of a group. A
/// group's pages are in its own units: a rank holds ceil(tokens / ranks) rows of a sequence.
struct Place {
  uint32_t slot = 0;
  std::vector<uint32_t> pages;
  friend bool operator==(const Place&, const Place&) = default;
};

// ---- head to stage ----

/// A new epoch: drop every queued item and send, let the device come to rest, answer EpochReady.
struct ResetEpoch {
  Epoch epoch = 0;
};
struct RunItem {
  Epoch epoch = 0;
  Item item;
};
/// Send this stage's parts of a prompt to every rank of a group, once item `after_item` has run.
struct SendState {
  Epoch epoch = 0;
  RequestId request;
  Generation generation;
  GroupId group;
  uint64_t after_item = 0;
  uint32_t tokens = 0;  ///< prompt length: the rows to send
  Place from;           ///< on the stage
  Place to;             ///< on each rank
};
/// Stop sending; the answer PartsSent comes all the same, exactly once a SendState.
struct CancelSend {
  Generation generation;
};
/// One state of a rank's manifest: what a stage needs to cut its parts.
struct HandoffState {
  struct Segment {
    int64_t rows = 0;
    int64_t width_bytes = 0;
    friend bool operator==(const Segment&, const Segment&) = default;
  };
  enum class Shard : uint8_t { none, position, heads };
  std::string name;
  bool paged = false;
  int64_t bytes = 0;  ///< of one token or one sequence, on one rank
  Shard shard = Shard::none;
  std::vector<Segment> segments;  ///< of the whole line; by heads only
  friend bool operator==(const HandoffState&, const HandoffState&) = default;
};
/// What a group says about itself when it joins.
struct GroupHello {
  uint32_t ranks = 1;
  uint32_t page_tokens = 64;
  uint32_t pages = 0;  ///< on each rank, page 0 included
  uint32_t slots = 0;  ///< on each rank, slot 0 included
  uint32_t seqs_max = 0;
  uint32_t context_max = 0;
  std::vector<std::string> addresses;  ///< where each rank takes parts, in rank order
  std::vector<HandoffState> states;
  friend bool operator==(const GroupHello&, const GroupHello&) = default;
};
/// Tells stages where a group's ranks are, before the first SendState that names it.
struct GroupUp {
  GroupId group;
  GroupHello hello;
};
struct GroupGone {
  GroupId group;
};
using StageCommand = std::variant<ResetEpoch, RunItem, SendState, CancelSend, GroupUp, GroupGone>;

// ---- stage or rank back to its head ----

/// The device is at rest and everything of earlier epochs is gone.
struct EpochReady {
  Epoch epoch = 0;
};
struct ItemDone {
  Epoch epoch = 0;
  ItemResult result;
};
/// A SendState has ended. After it the stage reads the place no more.
struct PartsSent {
  Generation generation;
  bool whole = false;  ///< every part arrived; false: cancelled or failed
  std::string why;     ///< when not whole
};
using StageReport = std::variant<EpochReady, ItemDone, PartsSent>;

// ---- head to group ----

/// Asks for room for a whole answer: prompt + max_tokens.
struct Ask {
  RequestId request;
  Generation generation;
  uint32_t prompt_tokens = 0;
  int32_t max_tokens = 1;
  Sampling sampling;
  std::vector<Token> stop_tokens;
  int32_t top_logprobs = -1;
  TimeNs fill_within = 0;  ///< a grant not landed and begun after this long is reclaimed
};
/// The prompt is done: decode from its first token once everything has landed.
struct Begin {
  Generation generation;
  Token first_token = 0;
};
/// Stop, whatever the state.
struct Abort {
  Generation generation;
};
using GroupCommand = std::variant<Ask, Begin, Abort>;

// ---- group to head ----

struct Granted {
  Generation generation;
  Place place;
};
enum class RefusalReason : uint8_t { busy, exceeds_pool, exceeds_row, unready };
/// No grant; the generation is over.
struct Refused {
  Generation generation;
  RefusalReason reason = RefusalReason::busy;
};
struct Landed {
  Generation generation;
};
/// Tokens of one step; `index` counts from the first token, which is 0 and comes from the prompt.
struct StepToken {
  Generation generation;
  uint32_t index = 0;
  Emitted emitted;
};
struct StepTokens {
  std::vector<StepToken> tokens;
};
enum class EndReason : uint8_t {
  stop,
  length,
  aborted,         ///< as the head asked
  expired,         ///< the grant was not filled in time
  landing_failed,  ///< a part was not what its digest or the manifest says
  failed,          ///< a row held a NaN
};
/// No token follows.
struct Ended {
  Generation generation;
  EndReason reason = EndReason::stop;
  std::string why;
};
/// The memory is free again; the last message of a granted generation.
struct Released {
  Generation generation;
};
using GroupReport = std::variant<GroupHello, Granted, Refused, Landed, StepTokens, Ended, Released>;

// ---- rank 0 to its ranks ----

/// Take parts of this generation into this place.
struct ExpectParts {
  Epoch epoch = 0;
  RequestId request;
  Generation generation;
  uint32_t tokens = 0;
  Place place;
};
/// Refuse parts of this generation from now on; its place may be given to another.
struct StopExpecting {
  Generation generation;
};
using RankCommand = std::variant<ResetEpoch, RunItem, ExpectParts, StopExpecting>;

// ---- rank to rank 0 ----

/// Parts of this generation are welcome. Rank 0 grants once every rank has said so, because a
/// stage's parts come on another link than rank 0's command and may be faster.
struct RankExpecting {
  Epoch epoch = 0;
  Generation generation;
};
/// Every state of the rank's manifest has arrived, or `whole` is false and `why` says what did not.
struct RankLanded {
  Epoch epoch = 0;
  Generation generation;
  bool whole = true;
  std::string why;
};
using RankReport = std::variant<EpochReady, ItemDone, RankExpecting, RankLanded>;

// ---- stage to rank ----

/// Comes before a part's bytes: one state of one sequence for one rank.
struct PartHeader {
  RequestId request;
  Generation generation;
  std::string state;
  uint32_t tokens = 0;  ///< prompt length
  uint64_t bytes = 0;
  uint64_t digest = 0;  ///< xxh3-64 of the bytes
  friend bool operator==(const PartHeader&, const PartHeader&) = default;
};
/// The rank's answer to a part, taken whole or refused.
struct PartTaken {
  Generation generation;
  std::string state;
  bool whole = false;
};

}  // namespace kern::engine
