#pragma once
/// A trace of sessions: who asks how much, after whom, on which shared beginning. One line of JSON
/// a session:
///   {"at_ms": 0, "shared": [{"name": "system", "tokens": 4096}],
///    "turns": [{"prompt": 200, "answer": 300}, {"think_ms": 20000, "prompt": 50, "answer": 400}]}
/// A turn's prompt is all that came before it in its session and `prompt` new tokens; it arrives
/// `think_ms` after the answer before it (the first: after `at_ms`). Sessions whose `shared`
/// begins with the same names begin with the same tokens.
/// Thread safety: plain values.
/// Determinism: the same text gives the same trace, and a trace prints as one text.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kern/base/result.h"

namespace kern::replay {

constexpr uint64_t kSessionTokensMax = uint64_t{1} << 24;
constexpr uint64_t kSessionsMax = uint64_t{1} << 24;
constexpr uint64_t kTurnsMax = uint64_t{1} << 28;  ///< of a trace
constexpr uint64_t kTimeMaxMs = 10'000'000'000;    ///< about four months

/// Tokens that other sessions may begin with as well.
struct SharedPrefix {
  std::string name;
  uint32_t tokens = 0;
  friend bool operator==(const SharedPrefix&, const SharedPrefix&) = default;
};

struct Turn {
  uint64_t think_ms = 0;
  uint32_t prompt = 0;
  uint32_t answer = 0;
  friend bool operator==(const Turn&, const Turn&) = default;
};

struct Session {
  uint64_t at_ms = 0;
  std::vector<SharedPrefix> shared;
  std::vector<Turn> turns;
  friend bool operator==(const Session&, const Session&) = default;
};

using Trace = std::vector<Session>;

/// Every line a session. Errors (caller) name the line and the member: "line 3: `turns`: …".
Result<Trace> parse_trace(std::string_view text);

/// One line, with its newline; `parse_trace` reads it back.
std::string print(const Session& session);

}  // namespace kern::replay
