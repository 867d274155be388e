#include "scope.h"

namespace kern::manifest {
namespace {

void check_peer(const Scope& scope, const Buffer& buffer, const std::string& pointer) {
  if (buffer.dtype != Dtype::u64)
    scope.problem(pointer, "a peer buffer holds device addresses: expected dtype u64, got {}",
                  to_string(buffer.dtype));
  if (buffer.group.empty()) {
    scope.problem(pointer, "a peer buffer without the `group` its addresses are of");
  } else if (const auto members = scope.check_group(buffer.group, pointer)) {
    if (buffer.shape.size() != 1 || buffer.shape[0].is_var() || buffer.shape[0].value != *members)
      scope.problem(pointer,
                    "a peer buffer over `{}` has one address a member: expected shape [{}]",
                    buffer.group, *members);
  }
  if (buffer.of.empty())
    return scope.problem(pointer,
                         "a peer buffer without the buffer or state it holds addresses `of`");
  if (const State* state = scope.state(buffer.of)) {
    if (state->size == State::Size::host)
      scope.problem(pointer, "`of` host state `{}`, which no rank can map", buffer.of);
    return;
  }
  const Buffer* target = scope.buffer(buffer.of);
  if (target == nullptr)
    return scope.problem(pointer, "`of` unknown buffer or state `{}`", buffer.of);
  if (target->kind == BufferKind::peer)
    scope.problem(pointer, "`of` peer buffer `{}`; expected an exported buffer or a state",
                  buffer.of);
  else if (!target->exported)
    scope.problem(pointer, "`of` buffer `{}`, which is not exported", buffer.of);
}

void check_fields(const Scope& scope, const Buffer& buffer, const std::string& pointer) {
  const bool bound = buffer.kind == BufferKind::weight || buffer.kind == BufferKind::source;
  if (buffer.kind == BufferKind::peer) {
    check_peer(scope, buffer, pointer);
  } else {
    if (!buffer.of.empty()) scope.problem(pointer, "`of` goes with peer buffers only");
    if (!buffer.group.empty()) scope.problem(pointer, "`group` goes with peer buffers only");
  }
  if (buffer.placed_on_host && (buffer.kind != BufferKind::weight || buffer.exported))
    scope.problem(pointer, "`placement: host` goes with weights that are not exported only");
  if (bound && buffer.bind.empty())
    scope.problem(pointer, "a {} buffer without a `bind`", to_string(buffer.kind));
  if (!bound && !buffer.bind.empty())
    scope.problem(pointer, "`bind` goes with weights and sources, not with a {} buffer",
                  to_string(buffer.kind));
  if (buffer.exported && buffer.kind == BufferKind::peer)
    scope.problem(pointer, "a peer buffer is not exported");
}

}  // namespace

void verify_buffers(const Scope& scope) {
  for (const Buffer& buffer : scope.m.buffers) {
    const std::string pointer = pointer_to("buffers", buffer.name);
    scope.check_shape(buffer.dtype, buffer.shape, pointer);
    check_fields(scope, buffer, pointer);
  }
}

}  // namespace kern::manifest
