#include "kern/base/checked.h"
#include "scope.h"

namespace kern::manifest {
namespace {

std::string_view word_for(State::Size size) {
  switch (size) {
    case State::Size::per_token:
      return "paged";
    case State::Size::per_seq:
      return "per-sequence";
    case State::Size::fixed:
      return "fixed";
    case State::Size::host:
      break;
  }
  return "host";
}

void check_host(const Scope& scope, const HostState& host, const std::string& pointer) {
  if (host.shape.empty() || host.shape.size() != host.strides.size())
    return scope.problem(pointer, "{} extents and {} strides; expected as many of each, at least 1",
                         host.shape.size(), host.strides.size());
  std::optional<int64_t> reach = 1;
  for (size_t i = 0; i < host.shape.size(); ++i) {
    if (i > 0 && host.shape[i] < 1)
      scope.problem(pointer, "extent {} is {}; only the outermost may be 0", i, host.shape[i]);
    if (host.strides[i] < 1)
      scope.problem(pointer, "stride {} is {}; expected at least 1, or elements would coincide", i,
                    host.strides[i]);
    const auto part = checked_mul(std::max<int64_t>(host.shape[i], 1) - 1, host.strides[i]);
    reach = reach && part ? checked_add(*reach, *part) : std::nullopt;
  }
  if (!reach || !checked_mul(*reach, size_of(host.dtype)))
    scope.problem(pointer, "shape and strides overflow 64 bits");
}

void check_heads(const Scope& scope, const State& state, int64_t members,
                 const std::string& pointer) {
  const Shard& shard = *state.shard;
  if (shard.segments.empty()) return scope.problem(pointer, "`by: heads` without a segment");
  std::optional<int64_t> whole = 0;
  for (size_t i = 0; i < shard.segments.size(); ++i) {
    const auto& [rows, width] = shard.segments[i];
    if (rows < 1 || width < 1)
      scope.problem(pointer, "segment {} is {} rows of {} bytes; expected neither to be 0", i, rows,
                    width);
    else if (width % members != 0)
      scope.problem(pointer, "segment {}: rows of {} bytes do not divide among {} members", i,
                    width, members);
    const auto bytes = checked_mul(rows, width);
    whole = whole && bytes ? checked_add(*whole, *bytes) : std::nullopt;
  }
  const auto expected = checked_mul(members, state.bytes);
  if (!whole || !expected)
    scope.problem(pointer, "the segments overflow 64 bits");
  else if (*whole != *expected)
    scope.problem(pointer, "the segments make {} bytes; expected {} members times {} bytes = {}",
                  *whole, members, state.bytes, *expected);
}

void check_shard(const Scope& scope, const State& state) {
  const Shard& shard = *state.shard;
  const std::string pointer = pointer_to("states", state.name) + "/shard";
  const bool position = shard.by == Shard::By::position;
  const auto want = position ? State::Size::per_token : State::Size::per_seq;
  if (state.size != want)
    return scope.problem(pointer, "`by: {}` divides a {} state, got a {} one",
                         position ? "position" : "heads", word_for(want), word_for(state.size));
  const auto members = scope.check_group(shard.group, pointer);
  if (!position && members && *members > 0) check_heads(scope, state, *members, pointer);
}

/// Page ids mean the same in every paged state, so all of them are dealt the same way.
void check_one_deal(const Scope& scope) {
  const State* first = nullptr;
  for (const State& state : scope.m.states) {
    if (state.size != State::Size::per_token) continue;
    const std::string_view group = state.shard ? std::string_view(state.shard->group) : "";
    if (first == nullptr) {
      first = &state;
      continue;
    }
    const std::string_view expected = first->shard ? std::string_view(first->shard->group) : "";
    if (group != expected)
      scope.problem(pointer_to("states", state.name),
                    "not divided like paged state `{}`; all paged states share their page ids",
                    first->name);
  }
}

/// A group that deals positions runs one batch, the same rows on every member.
void check_one_batch(const Scope& scope) {
  const State* dealt = nullptr;
  for (const State& state : scope.m.states)
    if (dealt == nullptr && state.shard && state.shard->by == Shard::By::position) dealt = &state;
  if (dealt == nullptr) return;
  for (const Var& var : scope.m.vars)
    if (var.axis == Axis::ranks)
      scope.problem(pointer_to("vars", var.name),
                    "axis `ranks` adds up the members' rows, but state `{}` deals positions, so "
                    "every member has the same rows",
                    dealt->name);
  for (const Buffer& buffer : scope.m.buffers)
    if (buffer.fill == Fill::blocks)
      scope.problem(pointer_to("buffers", buffer.name) + "/fill",
                    "fill `blocks` tells members' rows apart, but state `{}` deals positions, so "
                    "every member has the same rows",
                    dealt->name);
}

}  // namespace

void verify_states(const Scope& scope) {
  for (const State& state : scope.m.states) {
    const std::string pointer = pointer_to("states", state.name);
    if (state.size == State::Size::host && !state.host)
      scope.problem(pointer, "a host state without its shape");
    else if (state.host)
      check_host(scope, *state.host, pointer + "/host");
    else if (state.bytes < 1)
      scope.problem(pointer, "a size of {} bytes; expected at least 1", state.bytes);
    if (state.shard) check_shard(scope, state);
  }
  check_one_deal(scope);
  check_one_batch(scope);
}

}  // namespace kern::manifest
