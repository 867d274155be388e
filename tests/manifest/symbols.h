#pragma once
/// Programs run as symbols: a value is a hash of the op and of everything it read, so equal values
/// mean equal histories. Whole manifests and their stages can be compared without a kernel.

#include <map>
#include <set>
#include <string>
#include <string_view>

#include "kern/manifest/cut.h"
#include "kern/manifest/verify.h"

namespace kern_test {

using Values = std::map<std::string, uint64_t>;

inline uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9e3779b97f4a7c15u + b + 0x7f4a7c15u;
  x ^= x >> 31;
  x *= 0xbf58476d1ce4e5b9u;
  return x ^ (x >> 29);
}

inline uint64_t hash(std::string_view text) {
  uint64_t h = 1469598103934665603u;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return h;
}

inline const std::string* memory_of(const kern::manifest::CallArg& arg) {
  if (const auto* b = std::get_if<kern::manifest::BufferArg>(&arg)) return &b->buffer;
  if (const auto* s = std::get_if<kern::manifest::StateArg>(&arg)) return &s->state;
  return nullptr;
}

/// Runs a program on what memory holds; whoever was not written yet holds its own garbage.
inline void run_symbols(const kern::manifest::Verified& m, const kern::manifest::Program& program,
                        Values& memory, uint64_t garbage) {
  using kern::manifest::Direction;
  const auto value = [&](const std::string& name) {
    return memory.try_emplace(name, mix(garbage, hash(name))).first->second;
  };
  for (const kern::manifest::Call& call : program.calls) {
    const kern::manifest::Op& op = *m.op(call.op);
    uint64_t h = hash(call.op);
    for (size_t a = 0; a < call.args.size(); ++a)
      if (const std::string* name = memory_of(call.args[a]))
        if (op.params[a].direction != Direction::out) h = mix(h, value(*name));
    for (size_t a = 0; a < call.args.size(); ++a) {
      const std::string* name = memory_of(call.args[a]);
      if (name == nullptr || op.params[a].direction == Direction::in) continue;
      const auto* ref = std::get_if<kern::manifest::BufferArg>(&call.args[a]);
      const bool part = ref != nullptr && ref->offset_bytes != 0;
      memory[*name] = mix(mix(h, a), part ? mix(value(*name), 1) : 0);
    }
  }
}

}  // namespace kern_test
