// Any bytes as a manifest, cut at labels that it has. Whoever can be cut has stages that verify,
// that read back as printed and that agree at every edge; and the stages, run in order as symbols,
// leave in every state, carry and output what the whole leaves. Whoever cannot is told why.
#include <algorithm>
#include <cstdint>

#include "kern/base/assert.h"
#include "kern/base/prng.h"
#include "manifest/symbols.h"

using namespace kern::manifest;
using namespace kern_test;

namespace {

constexpr size_t kLabelsMax = 4;

/// Labels that stand once in the first program that serves, in its order, some of them.
std::vector<std::string> some_labels(const Manifest& manifest, kern::Prng& random) {
  std::vector<std::string> all;
  for (const Program& program : manifest.programs) {
    if (program.once || program.derive || !all.empty()) continue;
    for (const Call& call : program.calls)
      if (!call.label.empty()) all.push_back(call.label);
  }
  std::vector<std::string> some;
  for (const std::string& label : all)
    if (some.size() < kLabelsMax && random.below(all.size()) < 2) some.push_back(label);
  return some;
}

void run_at_load(const Verified& m, Values& memory) {
  for (const Program& program : m->programs)
    if (program.derive) run_symbols(m, program, memory, 1);
  for (const Program& program : m->programs)
    if (program.once) run_symbols(m, program, memory, 1);
}

/// What the caller fills, the checkpoint holds and states begin with; the rest is garbage.
Values at_start(const Manifest& m) {
  Values memory;
  for (const State& state : m.states) memory[state.name] = hash(state.name);
  for (const Buffer& buffer : m.buffers)
    if (buffer.kind != BufferKind::workspace) memory[buffer.name] = hash(buffer.name);
  return memory;
}

bool lasts(const Buffer& buffer) {
  return buffer.kind == BufferKind::carry || buffer.kind == BufferKind::output;
}

void forget_workspaces(const Manifest& m, Values& memory) {
  for (const Buffer& buffer : m.buffers)
    if (buffer.kind == BufferKind::workspace) memory.erase(buffer.name);
}

/// Runs every serving program, whole and through the stages, and compares what stays.
void compare(const Verified& whole, const std::vector<Verified>& stages) {
  Values memory = at_start(*whole);
  run_at_load(whole, memory);
  std::vector<Values> own;
  for (const Verified& stage : stages) {
    own.push_back(at_start(*stage));
    run_at_load(stage, own.back());
  }
  for (const Program& program : whole->programs) {
    if (program.once || program.derive) continue;
    forget_workspaces(*whole, memory);
    run_symbols(whole, program, memory, 1);
    Values link;
    for (size_t s = 0; s < stages.size(); ++s) {
      forget_workspaces(*stages[s], own[s]);
      for (const std::string& name : received_buffers(*stages[s])) own[s][name] = link.at(name);
      run_symbols(stages[s], *stages[s].program(program.name), own[s], 1);
      link.clear();
      for (const std::string& name : sent_buffers(*stages[s])) link[name] = own[s].at(name);
    }
    for (size_t s = 0; s < stages.size(); ++s) {
      for (const State& state : stages[s]->states)
        KERN_ASSERT(own[s].at(state.name) == memory.at(state.name), "stage {}: state `{}` differs",
                    s, state.name);
      for (const Buffer& buffer : stages[s]->buffers) {
        const Buffer* there = whole.buffer(buffer.name);
        if (there == nullptr || !lasts(buffer) || !lasts(*there)) continue;
        KERN_ASSERT(own[s].at(buffer.name) == memory.at(buffer.name),
                    "stage {}: buffer `{}` differs", s, buffer.name);
      }
    }
  }
}

void check(const Verified& whole, std::span<const std::string> labels) {
  auto cut_up = cut(whole, labels);
  if (!cut_up) {
    KERN_ASSERT(!cut_up.error().empty(), "refused without a word");
    return;
  }
  std::vector<Verified> stages;
  for (Manifest& stage : *cut_up) {
    const std::string text = print(stage);
    auto checked = verify(std::move(stage));
    KERN_ASSERT(checked.has_value(), "stage {}: {}", stages.size(), to_text(checked.error()));
    const auto again = load(text);
    KERN_ASSERT(again.has_value() && print(**again) == text, "stage {} prints otherwise",
                stages.size());
    stages.push_back(std::move(*checked));
  }
  std::vector<const Verified*> pointers;
  for (const Verified& stage : stages) pointers.push_back(&stage);
  const Diagnostics edges = check_cut(pointers);
  KERN_ASSERT(edges.empty(), "{}", to_text(edges));
  compare(whole, stages);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto whole = load(text);
  if (!whole) return 0;
  kern::Prng random(hash(text));
  for (int i = 0; i < 3; ++i) {
    const auto labels = some_labels(**whole, random);
    check(*whole, labels);
  }
  return 0;
}
