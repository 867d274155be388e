#pragma once
/// What a client asks of the engine and what it is told back. Plain values: the HTTP front builds a
/// Request, the engine answers with RequestEvents of the same id.
/// Thread safety: plain values.

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "kern/base/clock.h"
#include "kern/base/strong.h"

namespace kern::engine {

/// Unique among the requests of one head for the life of its process; never reused.
using RequestId = Strong<struct RequestIdTag, uint64_t>;
using Token = int32_t;

/// How the next token is chosen. temperature 0 is greedy and ignores the rest.
struct Sampling {
  float temperature = 0;
  float top_p = 1;
  int32_t top_k = 0;  ///< 0: no limit
  float min_p = 0;
  uint64_t seed = 0;  ///< token n of an answer draws from (seed, n) alone
  friend bool operator==(const Sampling&, const Sampling&) = default;
};

struct Request {
  RequestId id;
  std::vector<Token> prompt;  ///< at least one token
  int32_t max_tokens = 1;     ///< at least one
  Sampling sampling;
  std::vector<Token> stop_tokens;  ///< end the answer; the stop token itself is not part of it
  int32_t priority = 0;            ///< lower goes first; by arrival within one
  TimeNs deadline = 0;             ///< 0: none
  int32_t top_logprobs = -1;       ///< -1: no logprobs; else how many alternatives a token
};

enum class FinishReason : uint8_t { stop, length, aborted };

struct TokenLogprob {
  Token token = 0;
  float logprob = 0;
  friend bool operator==(const TokenLogprob&, const TokenLogprob&) = default;
};

/// One more token of the answer.
struct TokenEvent {
  Token token = 0;
  std::optional<float> logprob;
  std::vector<TokenLogprob> top;
};

/// The answer is whole.
struct FinishedEvent {
  FinishReason reason = FinishReason::stop;
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;
  int32_t completion_tokens = 0;  ///< the stop token counts
};

/// Why a request ends without an answer.
enum class FailureKind : uint8_t {
  too_long,     ///< never fits: 400
  queue_full,   ///< 429
  unavailable,  ///< a stage or group was lost: 503, retry
  deadline,     ///< its deadline passed
  internal,     ///< a row went wrong (NaN): 500
};

struct FailedEvent {
  FailureKind kind = FailureKind::internal;
  std::string message;
};

struct RequestEvent {
  RequestId id;
  std::variant<TokenEvent, FinishedEvent, FailedEvent> what;
};

}  // namespace kern::engine
