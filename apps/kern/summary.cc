#include "summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "command.h"
#include "kern/manifest/cut.h"
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
std::string capacity_text(const Verified& m, const Capacity& capacity, int64_t state_bytes) {
  std::string out;
  if (has(m, State::Size::per_token)) {
    const int64_t page_tokens = page_tokens_of(m);
    out = page_tokens > 1 ? fmt::format("{} pages of {} tokens", capacity.pages, page_tokens)
                          : fmt::format("{} tokens", capacity.pages);
  }
  if (has(m, State::Size::per_seq))
    out += fmt::format("{}{} slots", out.empty() ? "" : " and ", capacity.slots);
  if (state_bytes == 0) return {};
  if (!out.empty()) out = fmt::format(" with {}", out);
  return fmt::format("states a rank{}: {}\n", out, human_bytes(state_bytes));
}

int64_t launches_of(const Verified& m, const manifest::Call& call) {
  return static_cast<int64_t>(m.op(call.op)->launches.size());
}

int64_t launches_of(const Verified& m, const manifest::Program& program) {
  int64_t launches = 0;
  for (const auto& call : program.calls) launches += launches_of(m, call);
  return launches;
}

/// "1 launch", "2 launches".
std::string counted(int64_t count, std::string_view one, std::string_view more) {
  return fmt::format("{} {}", count, count == 1 ? one : more);
}

/// Sections of equal numbers of launches are one line. A labelled call begins one; a label that
/// goes on from another, `layer.0.mlp` after `layer.0`, stays in its section.
std::string sections_text(const Verified& m, const manifest::Program& program) {
  std::vector<std::pair<std::string, int64_t>> sections;
  for (const auto& call : program.calls) {
    const bool goes_on = call.label.empty() ||
                         (!sections.empty() && call.label.starts_with(sections.back().first + "."));
    if (sections.empty() || !goes_on) sections.emplace_back(call.label, 0);
    sections.back().second += launches_of(m, call);
  }
  std::map<int64_t, std::pair<int, std::string>> forms;
  for (const auto& [label, launches] : sections) {
    auto& [count, first] = forms[launches];
    if (count++ == 0) first = label.empty() ? "no label" : fmt::format("`{}`", label);
  }
  if (sections.size() < 2) return {};
  std::string out;
  for (const auto& [launches, seen] : forms)
    out += fmt::format("    {:>5}  of {} ({}{})\n", seen.first,
                       counted(launches, "launch", "launches"), seen.second,
                       seen.first > 1 ? ", …" : "");
  return out;
}

std::string batch_text(const manifest::Program& program) {
  if (program.once) return "once, after load";
  if (program.derive) return "while weights load";
  if (!program.batch) return "by hand";
  const auto* rows = std::get_if<int64_t>(&program.batch->rows);
  return fmt::format("up to {}, {} each", counted(program.batch->groups, "sequence", "sequences"),
                     rows != nullptr ? counted(*rows, "row", "rows") : "any number of rows");
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

/// Bytes of one row of a buffer that has one row a token of the call; nothing for another.
std::optional<int64_t> row_bytes(const Verified& m, const Buffer& buffer) {
  const manifest::Var* rows = buffer.shape[0].is_var() ? m.var(buffer.shape[0].var) : nullptr;
  if (rows == nullptr || rows->axis != manifest::Axis::rows) return std::nullopt;
  return m.bytes_max(buffer) / rows->max;
}

/// "sends 56.00 KiB a row to stage 4: `hidden` 14.00 KiB, …".
std::string edge_text(const Verified& m, std::string_view verb,
                      const std::vector<std::string>& names) {
  if (names.empty()) return {};
  int64_t rows = 0, fixed = 0;
  std::string list;
  for (const std::string& name : names) {
    const auto a_row = row_bytes(m, *m.buffer(name));
    (a_row ? rows : fixed) += a_row.value_or(m.bytes_max(*m.buffer(name)));
    list += fmt::format("{}`{}`", list.empty() ? "" : " ", name);
  }
  std::string out = fmt::format("{} {} a row", verb, human_bytes(rows));
  if (fixed > 0) out += fmt::format(" and {} a call", human_bytes(fixed));
  return fmt::format("{}: {}\n", out, list);
}

std::string memory_text(const Verified& m, const Capacity& capacity) {
  const CheckpointBytes checkpoint = checkpoint_bytes(m);
  std::string out = fmt::format("memory a rank: weights {}", human_bytes(checkpoint.weights));
  if (checkpoint.host_weights > 0)
    out += fmt::format(" (and {} on the host)", human_bytes(checkpoint.host_weights));
  if (checkpoint.sources > 0)
    out += fmt::format(", sources while loading {}", human_bytes(checkpoint.sources));
  const auto plan = plan_of(m, capacity);
  if (!plan) return fmt::format("{}\ndoes not load: {}\n", out, plan.error().text());
  out += fmt::format(", inputs, outputs and carries {}, workspaces and scratch {}\n",
                     human_bytes(plan->buffer_bytes), human_bytes(plan->arena_bytes));
  out += capacity_text(m, capacity, plan->state_bytes);
  return out + fmt::format("in all: {}\n", human_bytes(plan->bytes()));
}

}  // namespace

Result<runtime::Plan> plan_of(const Verified& m, const Capacity& capacity) {
  return runtime::plan(m, {capacity.pages, page_tokens_of(m), capacity.slots});
}

CheckpointBytes checkpoint_bytes(const Verified& m) {
  CheckpointBytes out;
  for (size_t i = 0; i < m->buffers.size(); ++i) {
    const Buffer& buffer = m->buffers[i];
    if (buffer.kind == BufferKind::weight)
      (buffer.placed_on_host ? out.host_weights : out.weights) += m.bytes_max(i);
    if (buffer.kind == BufferKind::source) out.sources += m.bytes_max(i);
  }
  return out;
}

std::string summary_of(const Verified& m, const Capacity& capacity) {
  std::string out = fmt::format("{}, for the {} device", m->model.empty() ? "(unnamed)" : m->model,
                                m->device == manifest::Device::host ? "host" : "cuda");
  if (m->cut)
    out += fmt::format(", stage {} of {} of cut {}", m->cut->stage, m->cut->stages, m->cut->id);
  out +=
      fmt::format("\n{}, {}, {}\nprograms\n", counted(std::ssize(m->buffers), "buffer", "buffers"),
                  counted(std::ssize(m->ops), "op", "ops"),
                  counted(std::ssize(m->modules), "module", "modules"));
  for (const auto& program : m->programs)
    out += fmt::format("  {:<12} {}, {}; {}\n{}", program.name,
                       counted(std::ssize(program.calls), "call", "calls"),
                       counted(launches_of(m, program), "launch", "launches"), batch_text(program),
                       sections_text(m, program));
  for (const auto& group : m->groups)
    out += fmt::format("group `{}` of {}\n", group.name, counted(group.size, "rank", "ranks"));
  if (!m->states.empty()) out += "states\n" + states_text(m);
  out += edge_text(m, "receives", manifest::received_buffers(*m));
  out += edge_text(m, "sends", manifest::sent_buffers(*m));
  out += memory_text(m, capacity);
  const auto protocol = manifest::Protocol::check(m);
  if (protocol) return out + "serves: every input can be filled\n";
  out += "does not serve:\n";
  for (const auto& d : protocol.error()) out += fmt::format("  {}: {}\n", d.pointer, d.sentence);
  return out;
}

}  // namespace kern::app
