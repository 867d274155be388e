#include "scope.h"

namespace kern::manifest {
namespace {

bool is_read_only(BufferKind kind) {
  return kind == BufferKind::input || kind == BufferKind::weight || kind == BufferKind::source ||
         kind == BufferKind::peer;
}

/// Whether a program must have written the buffer before it reads it.
bool needs_write(BufferKind kind) {
  return kind == BufferKind::workspace || kind == BufferKind::output;
}

class Flow {
 public:
  explicit Flow(const Scope& scope) : scope_(scope), ever_written_(scope.m.buffers.size()) {}

  void program(const Program& program) {
    std::vector<bool> written(scope_.m.buffers.size());
    for (size_t c = 0; c < program.calls.size(); ++c) {
      const Call& call = program.calls[c];
      const Op* op = scope_.op(call.op);
      if (op == nullptr || op->params.size() != call.args.size()) continue;
      pending_.clear();
      for (size_t a = 0; a < call.args.size(); ++a) arg(program, c, a, op->params[a], written);
      for (const size_t b : pending_) written[b] = ever_written_[b] = true;
    }
  }

  void finish() const {
    for (size_t i = 0; i < scope_.m.buffers.size(); ++i) {
      const Buffer& buffer = scope_.m.buffers[i];
      const bool wanted = buffer.kind == BufferKind::output || buffer.kind == BufferKind::carry;
      if (wanted && !ever_written_[i])
        scope_.problem(pointer_to("buffers", buffer.name), "no program writes this {} buffer",
                       to_string(buffer.kind));
    }
  }

 private:
  void arg(const Program& program, size_t c, size_t a, const ParamType& type,
           const std::vector<bool>& written) {
    const CallArg& arg = program.calls[c].args[a];
    if (const auto* state = std::get_if<StateArg>(&arg)) {
      if (program.derive)
        scope_.problem(pointer_to(program, c, a),
                       "a derive program runs before state `{}` holds anything", state->state);
      return;
    }
    const auto* ref = std::get_if<BufferArg>(&arg);
    const auto index = ref != nullptr ? scope_.index.buffers.find(ref->buffer) : std::nullopt;
    if (!index || type.what != ParamType::What::buffer) return;
    const Buffer& buffer = scope_.m.buffers[*index];
    check_kind(program, c, a, buffer);
    if (writes(type.direction)) {
      if (is_read_only(buffer.kind))
        scope_.problem(pointer_to(program, c, a), "writes to {} buffer `{}`, which is read-only",
                       to_string(buffer.kind), buffer.name);
      pending_.push_back(*index);
    }
    if (reads(type.direction) && needs_write(buffer.kind) && !written[*index])
      scope_.problem(pointer_to(program, c, a), "buffer `{}` is read before anything wrote it",
                     buffer.name);
  }

  void check_kind(const Program& program, size_t c, size_t a, const Buffer& buffer) const {
    if (buffer.kind == BufferKind::source && !program.derive)
      scope_.problem(pointer_to(program, c, a),
                     "source buffer `{}` is gone after load; only derive programs read it",
                     buffer.name);
    const bool early = buffer.kind == BufferKind::input || buffer.kind == BufferKind::output ||
                       buffer.kind == BufferKind::inout || buffer.kind == BufferKind::peer;
    if (program.derive && early)
      scope_.problem(pointer_to(program, c, a),
                     "a derive program runs before {} buffer `{}` means anything",
                     to_string(buffer.kind), buffer.name);
  }

  const Scope& scope_;
  std::vector<bool> ever_written_;
  std::vector<size_t> pending_;
};

}  // namespace

void verify_dataflow(const Scope& scope) {
  Flow flow(scope);
  for (const Program& program : scope.m.programs) flow.program(program);
  flow.finish();
}

}  // namespace kern::manifest
