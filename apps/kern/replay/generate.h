#pragma once
/// Seeded traces of four kinds of load, to compare policies and to size memory before there is a
/// log of one's own.
/// Determinism: kind, seed and sessions give the trace byte for byte, on every machine: whole
/// numbers only.

#include <optional>
#include <string_view>

#include "trace.h"

namespace kern::replay {

enum class LoadKind {
  system,  ///< one question each behind one of 32 long system prompts, some asked far more often
  chat,    ///< many short turns with half a minute to think between them
  agent,   ///< up to 60 tool calls seconds apart, a context that grows to 100,000 tokens and more
  mixed,   ///< six of ten `system`, three `chat`, one `agent`
};

/// "system", "chat", "agent", "mixed".
std::optional<LoadKind> load_kind(std::string_view name);

struct Load {
  LoadKind kind = LoadKind::mixed;
  uint64_t seed = 0;
  uint32_t sessions = 1000;  ///< at least 1
  uint32_t every_ms = 2000;  ///< mean time between two sessions' arrivals
};

Trace generate(const Load& load);

}  // namespace kern::replay
