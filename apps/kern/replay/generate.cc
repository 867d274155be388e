#include "generate.h"

#include <algorithm>

#include "kern/base/assert.h"
#include "kern/base/prng.h"

namespace kern::replay {

namespace {

uint32_t between(Prng& prng, uint32_t least, uint32_t most) {
  return least + static_cast<uint32_t>(prng.below(most - least + 1));
}

// `least` doubled as often as a coin falls on heads, then anything up to the next doubling: many
// short ones and a few long ones.
uint32_t heavy(Prng& prng, uint32_t least, uint32_t doublings_max) {
  uint32_t length = least;
  for (uint32_t i = 0; i < doublings_max && prng.below(2) == 0; ++i) length *= 2;
  return between(prng, length, 2 * length - 1);
}

// One of `count`, the first most often: each of a doubling group is half as likely as one before.
uint32_t popular(Prng& prng, uint32_t count) {
  uint32_t group = 1;
  while (group < count && prng.below(2) == 0) group *= 2;
  return static_cast<uint32_t>(prng.below(std::min(group, count)));
}

Session system_session(Prng& prng) {
  constexpr uint32_t kPrompts = 32;
  const uint32_t which = popular(prng, kPrompts);
  // 2,048 to 16,384 tokens, the length a property of the prompt.
  const uint32_t tokens = 2048 << (which % 4);
  Session session;
  session.shared.push_back({"system-" + std::to_string(which), tokens});
  session.turns.push_back({0, heavy(prng, 64, 4), heavy(prng, 64, 3)});
  return session;
}

Session chat_session(Prng& prng) {
  Session session;
  session.shared.push_back({"chat", 1024});
  for (uint32_t left = heavy(prng, 2, 4); left > 0; --left)
    session.turns.push_back(
        {between(prng, 10'000, 60'000), heavy(prng, 32, 4), heavy(prng, 128, 3)});
  return session;
}

Session agent_session(Prng& prng) {
  Session session;
  session.shared.push_back({"tools", 8192});
  session.shared.push_back({"project-" + std::to_string(popular(prng, 16)), 16'384});
  for (uint32_t left = between(prng, 10, 60); left > 0; --left)
    session.turns.push_back({between(prng, 500, 15'000), heavy(prng, 256, 5), heavy(prng, 64, 3)});
  return session;
}

Session session_of(LoadKind kind, Prng& prng) {
  if (kind == LoadKind::mixed) {
    const uint64_t draw = prng.below(10);
    kind = draw < 6 ? LoadKind::system : draw < 9 ? LoadKind::chat : LoadKind::agent;
  }
  if (kind == LoadKind::system) return system_session(prng);
  return kind == LoadKind::chat ? chat_session(prng) : agent_session(prng);
}

}  // namespace

std::optional<LoadKind> load_kind(std::string_view name) {
  if (name == "system") return LoadKind::system;
  if (name == "chat") return LoadKind::chat;
  if (name == "agent") return LoadKind::agent;
  if (name == "mixed") return LoadKind::mixed;
  return std::nullopt;
}

Trace generate(const Load& load) {
  KERN_ASSERT(load.sessions > 0, "a trace has sessions");
  Prng prng(load.seed);
  Trace trace;
  uint64_t at_ms = 0;
  for (uint32_t i = 0; i < load.sessions; ++i) {
    trace.push_back(session_of(load.kind, prng));
    trace.back().at_ms = at_ms;
    at_ms += prng.below(2 * uint64_t{load.every_ms} + 1);
  }
  return trace;
}

}  // namespace kern::replay
