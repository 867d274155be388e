#pragma once
/// What the prefill head remembers. head.cc holds clients and stages, head_handoff.cc the groups.

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kern/engine/head.h"
#include "kern/engine/prefill.h"
#include "ledger.h"

namespace kern::engine {

/// Where one hand-off stands. After `released` it is forgotten.
enum class HandoffPhase : uint8_t { asked, granted, sending, landed, running };

/// One generation: a request's place on a group, from the Ask to the Released.
struct Handoff {
  RequestId request;
  GroupId group;
  HandoffPhase state = HandoffPhase::asked;
  bool closing = false;  ///< nothing is expected any more but Released
  bool begun = false;
  uint32_t pages = 0;   ///< of the group's room
  TimeNs deadline = 0;  ///< asked: for the answer; closing: for Released; 0: the group's own
  Place place;
};

/// What a request still has on this side. It outlives the client's view while stages read its
/// place.
struct Live {
  std::optional<Generation> handoff;  ///< the one that counts
  int32_t attempts = 0;
  int32_t sends = 0;        ///< SendStates ordered and not reported, over all generations
  bool sent_whole = false;  ///< every stage's parts of the current hand-off arrived
  std::optional<Token> first_token;
  uint32_t prompt_tokens = 0;
  int32_t max_tokens = 1;
};

/// The stages' reports still out for one generation.
struct Sends {
  RequestId request;
  std::vector<bool> waiting;  ///< by stage
  int32_t left = 0;
  bool whole = true;
  bool cancelled = false;
};

struct Group {
  GroupHello hello;
  bool recurrent = true;
  uint32_t pages_free = 0, slots_free = 0;  ///< by what this head has asked for and got back
  uint32_t handoffs = 0;
  TimeNs ask_after = 0;  ///< refused as busy: not before

  uint32_t pages_for(uint32_t tokens) const;
  bool ever_fits(uint32_t tokens) const;
  bool fits_now(uint32_t tokens) const;
};

struct PrefillHead::Impl {
  Impl(const HeadOptions& given, PrefillScheduler scheduler)
      : options(given),
        prefill(std::move(scheduler)),
        up(static_cast<size_t>(given.stages), false),
        at_rest(static_cast<size_t>(given.stages), false),
        epoch(given.first_generation),
        next_generation(given.first_generation) {}

  HeadOptions options;
  PrefillScheduler prefill;
  Ledger ledger;
  std::map<RequestId, Live> live;  ///< admitted to the stages' memory, or on a group
  std::map<Generation, Handoff> handoffs;
  std::map<Generation, Sends> sends;
  std::map<GroupId, Group> groups;
  std::set<RequestId> homeless;  ///< live, in need of a group
  std::vector<bool> up, at_rest;
  Epoch epoch;
  bool formed = false;
  std::optional<TimeNs> unready_since;  ///< none while ready; stays none until first ready
  bool was_ready = false;
  uint64_t next_item = 1;
  uint64_t next_generation;
  uint32_t next_group = 1;
  uint32_t group_context = 0;  ///< the longest any group has offered
  HeadOutput output;

  // head.cc
  bool ready() const { return formed && !groups.empty(); }
  uint32_t context_max() const;
  void note_readiness(TimeNs now);
  void to_all_stages(const StageCommand& command);
  void begin_epoch();
  void lose_stage(int32_t stage, TimeNs now);
  void item_done(int32_t stage, const ItemDone& done, TimeNs now);
  void prompt_done(const PrefillDone& done, TimeNs now);
  void parts_sent(int32_t stage, const PartsSent& report, TimeNs now);
  void admit(TimeNs now);
  void plan();
  void pump(TimeNs now);
  /// Ends what is left of a request whose client has been answered, as far as it can be ended now.
  void let_go(RequestId id, TimeNs now);
  void fail(RequestId id, FailureKind kind, std::string why, TimeNs now);
  void fail_waiting(TimeNs now);
  void maybe_release(RequestId id);
  void overdue_handoffs(TimeNs now);

  // head_handoff.cc
  /// The group with most room for so many tokens, or none now.
  std::optional<GroupId> choose(uint32_t tokens, TimeNs now) const;
  bool any_ever_fits(uint32_t tokens) const;
  void ask(RequestId id, GroupId group, TimeNs now);
  void place_homeless(TimeNs now);
  void maybe_send(RequestId id);
  void maybe_begin(RequestId id);
  void cancel_sends(Generation generation);
  /// Gives the current hand-off up: the group is told, its memory comes back with Released.
  void close_handoff(Live& one, TimeNs now);
  /// The current hand-off failed through no fault of the request: another try, or the end.
  void hand_off_again(RequestId id, const std::string& why, TimeNs now);
  void forget_handoff(Generation generation);
  void group_report(GroupId group, const GroupReport& report, TimeNs now);
  Handoff* current(GroupId group, Generation generation);
  bool granted(GroupId group, const Granted& report);
  void refused(GroupId group, const Refused& report, TimeNs now);
  bool step_tokens(GroupId group, const StepTokens& report, TimeNs now);
  bool ended(GroupId group, const Ended& report, TimeNs now);
  bool released(GroupId group, const Released& report);
  void lose_group(GroupId group, const std::string& why, TimeNs now);
  void drop_group(GroupId group, const std::string& why, TimeNs now);
};

}  // namespace kern::engine
