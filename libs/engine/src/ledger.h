#pragma once
/// What clients are owed: every request that was taken ends exactly once, and its tokens, times and
/// outcome are counted on the way. Shared by the one-process head and the prefill head.

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kern/engine/messages.h"
#include "kern/engine/metrics.h"
#include "kern/engine/request.h"

namespace kern::engine {

class Ledger {
 public:
  struct Entry {
    Request request;  ///< its prompt has moved on
    uint32_t prompt_tokens = 0;
    uint32_t cached_tokens = 0;
    uint32_t generated = 0;
    RequestState state = RequestState::queued;
    TimeNs submitted = 0;
    TimeNs last_token = 0;  ///< 0: none yet
  };

  /// Takes a request up and returns its prompt.
  std::vector<Token> open(Request request, TimeNs now);
  /// Null when the request is unknown or has ended.
  Entry* find(RequestId id);
  void move_to(RequestId id, RequestState state);
  /// One more token of the answer.
  void token(RequestId id, const Emitted& emitted, TimeNs now);
  /// The stop token came: it counts, and nobody sees it.
  void stop_token(RequestId id) { ++entries_.at(id).generated; }
  void finish(RequestId id, FinishReason reason, TimeNs now);
  void fail(RequestId id, FailureKind kind, std::string message);
  /// Ends a request that was never taken up.
  void refuse(RequestId id, FailureKind kind, std::string message);
  /// Ends by how an answer's last token came out.
  void end(RequestId id, EndReason reason, TimeNs now);

  /// A request whose deadline has passed, if any.
  std::optional<RequestId> overdue(TimeNs now) const;
  /// 0: none.
  TimeNs next_deadline() const;
  std::vector<RequestEvent> take_events() { return std::exchange(events_, {}); }
  bool empty() const { return entries_.empty(); }
  const std::map<RequestId, Entry>& entries() const { return entries_; }

  Counters counters;

 private:
  void close(RequestId id);

  std::map<RequestId, Entry> entries_;
  std::set<std::pair<TimeNs, RequestId>> deadlines_;
  std::vector<RequestEvent> events_;
};

/// The sentence for a request that can never fit; clients look for its first half.
std::string too_long_text(uint32_t context_max, size_t prompt_tokens, int32_t max_tokens);

}  // namespace kern::engine
