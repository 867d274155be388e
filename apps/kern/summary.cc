#include "summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "command.h"
#include "kern/manifest/protocol.h"

namespace kern::app {
namespace {

using manifest::Buffer;
using manifest::BufferKind;
using manifest::State;
using manifest::Verified;

/// Of the page tables; a slot input indexes single tokens and says nothing about pages.
int64_t page_tokens_of(const Verified& m) {
  for (const Buffer& buffer : m->buffers) {
    if (buffer.kind != BufferKind::input || buffer.fill || !buffer.domain) continue;
    const State* state = m.state(buffer.domain->index_into);
    if (state != nullptr && state->size == State::Size::per_token && buffer.shape.size() == 2)
      return buffer.domain->stride.value_or(1);
  }
  return 1;
}

bool has(const Verified& m, State::Size size) {
  return std::any_of(m->states.begin(), m->states.end(),
                     [size](const State& state) { return state.size == size; });
}

/// What the states hold at that capacity, of which only the kinds that exist are named. Pages and
/// slots are a rank's own, whatever the group.
std::string capacity_text(const Verified& m, const Capacity& capacity, const Memory& memory) {
  std::string out;
  if (has(m, State::Size::per_token)) {
    const int64_t page_tokens = page_tokens_of(m);
    out = page_tokens > 1 ? fmt::format("{} pages of {} tokens", capacity.pages, page_tokens)
                          : fmt::format("{} tokens", capacity.pages);
  }
  if (has(m, State::Size::per_seq))
    out += fmt::format("{}{} slots", out.empty() ? "" : " and ", capacity.slots);
  if (memory.states == 0) return {};
  if (!out.empty()) out = fmt::format(" with {}", out);
  return fmt::format("states a rank{}: {}\n", out, human_bytes(memory.states));
}

int64_t launches_of(const Verified& m, const manifest::Program& program) {
  int64_t launches = 0;
  for (const auto& call : program.calls)
    launches += static_cast<int64_t>(m.op(call.op)->launches.size());
  return launches;
}

std::string batch_text(const manifest::Program& program) {
  if (program.once) return "once, after load";
  if (program.derive) return "while weights load";
  if (!program.batch) return "by hand";
  const auto* rows = std::get_if<int64_t>(&program.batch->rows);
  return fmt::format("up to {} sequences, {} rows each", program.batch->groups,
                     rows != nullptr ? std::to_string(*rows) : std::string("any number of"));
}

std::string state_text(const State& state) {
  switch (state.size) {
    case State::Size::per_token:
      return fmt::format("{} a token", human_bytes(state.bytes));
    case State::Size::per_seq:
      return fmt::format("{} a sequence", human_bytes(state.bytes));
    case State::Size::fixed:
      return fmt::format("{} fixed", human_bytes(state.bytes));
    case State::Size::host:
      break;
  }
  return "the host's own";
}

/// States of one form are one line: layers differ in name only.
std::string states_text(const Verified& m) {
  std::map<std::string, std::pair<int, std::string>> forms;
  for (const State& state : m->states) {
    std::string form = state_text(state);
    if (state.shard)
      form += fmt::format(", a share by {} over `{}`",
                          state.shard->by == manifest::Shard::By::heads ? "heads" : "position",
                          state.shard->group);
    auto& [count, first] = forms[form];
    if (count++ == 0) first = state.name;
  }
  std::string out;
  for (const auto& [form, seen] : forms)
    out += fmt::format("  {:>5}  {} (`{}`{})\n", seen.first, form, seen.second,
                       seen.first > 1 ? ", …" : "");
  return out;
}

}  // namespace

Memory memory_of(const Verified& m, const Capacity& capacity) {
  Memory memory;
  for (size_t i = 0; i < m->buffers.size(); ++i) {
    const Buffer& buffer = m->buffers[i];
    const int64_t bytes = m.bytes_max(i);
    switch (buffer.kind) {
      case BufferKind::weight:
        (buffer.placed_on_host ? memory.host_weights : memory.weights) += bytes;
        break;
      case BufferKind::source:
        memory.sources += bytes;
        break;
      case BufferKind::carry:
      case BufferKind::peer:
        memory.carries += bytes;
        break;
      default:
        memory.step += bytes;
    }
  }
  for (const auto& op : m->ops) {
    int64_t bytes = 0;
    for (const auto& scratch : op.scratch)
      bytes += bytes_of(scratch.dtype, scratch.shape, m.at_bounds()).value_or(0);
    memory.scratch = std::max(memory.scratch, bytes);
  }
  for (const State& state : m->states) {
    if (state.size == State::Size::per_token)
      memory.states += state.bytes * page_tokens_of(m) * capacity.pages;
    else if (state.size == State::Size::per_seq)
      memory.states += state.bytes * capacity.slots;
    else
      memory.states += state.bytes;
  }
  return memory;
}

std::string summary_of(const Verified& m, const Capacity& capacity) {
  std::string out = fmt::format("{}, for the {} device", m->model.empty() ? "(unnamed)" : m->model,
                                m->device == manifest::Device::host ? "host" : "cuda");
  if (m->cut)
    out += fmt::format(", stage {} of {} of cut {}", m->cut->stage, m->cut->stages, m->cut->id);
  out += fmt::format("\n{} buffers, {} ops, {} modules\nprograms\n", m->buffers.size(),
                     m->ops.size(), m->modules.size());
  for (const auto& program : m->programs)
    out += fmt::format("  {:<12} {} calls, {} launches; {}\n", program.name, program.calls.size(),
                       launches_of(m, program), batch_text(program));
  for (const auto& group : m->groups)
    out += fmt::format("group `{}` of {} ranks\n", group.name, group.size);
  if (!m->states.empty()) out += "states\n" + states_text(m);
  const Memory memory = memory_of(m, capacity);
  out += fmt::format("memory a rank: weights {}", human_bytes(memory.weights));
  if (memory.host_weights > 0)
    out += fmt::format(" (and {} on the host)", human_bytes(memory.host_weights));
  if (memory.sources > 0)
    out += fmt::format(", sources while loading {}", human_bytes(memory.sources));
  out += fmt::format(", carries {}, a step at most {}, scratch {}\n", human_bytes(memory.carries),
                     human_bytes(memory.step), human_bytes(memory.scratch));
  out += capacity_text(m, capacity, memory);
  const auto protocol = manifest::Protocol::check(m);
  if (protocol) return out + "serves: every input can be filled\n";
  out += "does not serve:\n";
  for (const auto& d : protocol.error()) out += fmt::format("  {}: {}\n", d.pointer, d.sentence);
  return out;
}

}  // namespace kern::app
