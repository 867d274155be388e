#include "ledger.h"

#include <utility>

#include "kern/base/assert.h"

namespace kern::engine {

std::vector<Token> Ledger::open(Request request, TimeNs now) {
  const RequestId id = request.id;
  if (entries_.empty()) counters.last_progress = now;  // nothing was to be done before
  if (request.deadline != 0) deadlines_.emplace(request.deadline, id);
  std::vector<Token> prompt = std::move(request.prompt);
  Entry entry{.request = std::move(request), .submitted = now};
  entry.prompt_tokens = static_cast<uint32_t>(prompt.size());
  const bool is_new = entries_.emplace(id, std::move(entry)).second;
  KERN_ASSERT(is_new, "request {} came twice", id.value());
  ++counters.requests[static_cast<size_t>(RequestState::queued)];
  return prompt;
}

Ledger::Entry* Ledger::find(RequestId id) {
  const auto at = entries_.find(id);
  return at == entries_.end() ? nullptr : &at->second;
}

void Ledger::move_to(RequestId id, RequestState state) {
  Entry& entry = entries_.at(id);
  --counters.requests[static_cast<size_t>(entry.state)];
  entry.state = state;
  ++counters.requests[static_cast<size_t>(entry.state)];
}

void Ledger::token(RequestId id, const Emitted& emitted, TimeNs now) {
  Entry& entry = entries_.at(id);
  KERN_ASSERT(emitted.token >= 0 && !emitted.failed, "request {}", id.value());
  if (entry.generated == 0) {
    counters.time_to_first_token.add(now - entry.submitted);
  } else {
    counters.inter_token.add(now - entry.last_token);
  }
  ++entry.generated;
  entry.last_token = now;
  ++counters.generated_tokens;
  counters.last_progress = now;
  TokenEvent event{.token = emitted.token};
  if (entry.request.top_logprobs >= 0) {
    event.logprob = emitted.logprob;
    event.top = emitted.top;
  }
  events_.push_back({id, std::move(event)});
}

void Ledger::close(RequestId id) {
  const auto at = entries_.find(id);
  KERN_ASSERT(at != entries_.end(), "request {} ends twice", id.value());
  --counters.requests[static_cast<size_t>(at->second.state)];
  deadlines_.erase({at->second.request.deadline, id});
  entries_.erase(at);
}

void Ledger::finish(RequestId id, FinishReason reason, TimeNs now) {
  const Entry& entry = entries_.at(id);
  events_.push_back(
      {id, FinishedEvent{.reason = reason,
                         .prompt_tokens = static_cast<int32_t>(entry.prompt_tokens),
                         .cached_tokens = static_cast<int32_t>(entry.cached_tokens),
                         .completion_tokens = static_cast<int32_t>(entry.generated)}});
  counters.end_to_end.add(now - entry.submitted);
  switch (reason) {
    case FinishReason::stop:
      ++counters.finished_stop;
      break;
    case FinishReason::length:
      ++counters.finished_length;
      break;
    case FinishReason::aborted:
      ++counters.finished_aborted;
      break;
  }
  close(id);
}

void Ledger::fail(RequestId id, FailureKind kind, std::string message) {
  close(id);
  refuse(id, kind, std::move(message));
}

void Ledger::refuse(RequestId id, FailureKind kind, std::string message) {
  switch (kind) {
    case FailureKind::too_long:
      ++counters.failed_too_long;
      break;
    case FailureKind::queue_full:
      ++counters.failed_queue_full;
      break;
    case FailureKind::unavailable:
      ++counters.failed_unavailable;
      break;
    case FailureKind::deadline:
      ++counters.failed_deadline;
      break;
    case FailureKind::internal:
      ++counters.failed_internal;
      break;
  }
  events_.push_back({id, FailedEvent{kind, std::move(message)}});
}

void Ledger::end(RequestId id, EndReason reason, TimeNs now) {
  switch (reason) {
    case EndReason::stop:
      stop_token(id);
      return finish(id, FinishReason::stop, now);
    case EndReason::length:
      return finish(id, FinishReason::length, now);
    case EndReason::aborted:
      return finish(id, FinishReason::aborted, now);
    case EndReason::failed:
      return fail(id, FailureKind::internal, "the model's output for this request is not a number");
    case EndReason::landing_failed:
    case EndReason::expired:
      return fail(id, FailureKind::unavailable, "the prompt's state did not arrive");
  }
}

std::optional<RequestId> Ledger::overdue(TimeNs now) const {
  if (deadlines_.empty() || deadlines_.begin()->first > now) return std::nullopt;
  return deadlines_.begin()->second;
}

TimeNs Ledger::next_deadline() const {
  return deadlines_.empty() ? 0 : deadlines_.begin()->first;
}

std::string too_long_text(uint32_t context_max, size_t prompt_tokens, int32_t max_tokens) {
  return fmt::format(
      "maximum context length is {} tokens, the prompt has {} and the answer may have {}",
      context_max, prompt_tokens, max_tokens);
}

}  // namespace kern::engine
