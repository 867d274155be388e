#include "scope.h"

namespace kern::manifest {
namespace {

using Marks = std::vector<bool>;

/// Marks every declaration that something names.
class Marker {
 public:
  Marker(const Manifest& manifest, const Index& index) : m_(manifest), index_(index) {
    used_.vars.resize(m_.vars.size());
    used_.groups.resize(m_.groups.size());
    used_.states.resize(m_.states.size());
    used_.buffers.resize(m_.buffers.size());
    used_.modules.resize(m_.modules.size());
    used_.ops.resize(m_.ops.size());
  }

  Used run() {
    for (const State& state : m_.states)
      if (state.shard) group(state.shard->group);
    for (const Buffer& buffer : m_.buffers) of_buffer(buffer);
    for (const Op& op : m_.ops) of_op(op);
    for (const Program& program : m_.programs) of_program(program);
    return std::move(used_);
  }

 private:
  static void mark(Marks& marks, const NameIndex& names, std::string_view name) {
    if (const auto at = names.find(name)) marks[*at] = true;
  }

  void var(std::string_view name) { mark(used_.vars, index_.vars, name); }
  void group(std::string_view name) { mark(used_.groups, index_.groups, name); }

  void expr(const Expr& e) {
    if (e.op == Expr::Op::var) var(e.var);
    for (const Expr& operand : e.operands) expr(operand);
  }

  void shape(const std::vector<Dim>& dims) {
    for (const Dim& dim : dims)
      if (dim.is_var()) var(dim.var);
  }

  void bound(const std::optional<Bound>& bound) {
    if (bound && std::holds_alternative<Expr>(*bound)) expr(std::get<Expr>(*bound));
  }

  void of_buffer(const Buffer& buffer) {
    shape(buffer.shape);
    if (buffer.domain) {
      bound(buffer.domain->min);
      bound(buffer.domain->max);
    }
    if (!buffer.group.empty()) group(buffer.group);
    if (!buffer.of.empty()) {
      mark(used_.buffers, index_.buffers, buffer.of);
      mark(used_.states, index_.states, buffer.of);
    }
    for (const BindSegment& segment : buffer.bind) {
      if (!segment.group.empty()) group(segment.group);
      if (segment.rows && !segment.rows->group.empty()) group(segment.rows->group);
      if (segment.cols && !segment.cols->group.empty()) group(segment.cols->group);
      if (segment.series && !segment.series->group.empty()) group(segment.series->group);
    }
  }

  void of_arg(const LaunchArg& arg) {
    if (const auto* rank = std::get_if<RankRef>(&arg)) group(rank->group);
    const auto* pack = std::get_if<Pack>(&arg);
    if (pack == nullptr) return;
    for (const PackField& field : pack->fields) {
      if (const auto* rank = std::get_if<RankRef>(&field.source)) group(rank->group);
      if (const auto* ref = std::get_if<VarRef>(&field.source)) var(ref->name);
      if (const auto* e = std::get_if<Expr>(&field.source)) expr(*e);
    }
  }

  void of_op(const Op& op) {
    for (const Scratch& scratch : op.scratch) shape(scratch.shape);
    for (const Launch& launch : op.launches) {
      mark(used_.modules, index_.modules, launch.module);
      for (const Expr& e : launch.grid) expr(e);
      if (launch.shared_mem) expr(*launch.shared_mem);
      if (launch.when) var(launch.when->var);
      if (!launch.args) continue;
      for (const LaunchArg& arg : *launch.args) of_arg(arg);
    }
  }

  void of_program(const Program& program) {
    if (program.batch) {
      if (const auto* rows = std::get_if<std::string>(&program.batch->rows)) var(*rows);
      if (!program.batch->context.empty()) var(program.batch->context);
    }
    for (const Call& call : program.calls) {
      mark(used_.ops, index_.ops, call.op);
      for (const CallArg& arg : call.args) {
        if (const auto* b = std::get_if<BufferArg>(&arg))
          mark(used_.buffers, index_.buffers, b->buffer);
        else if (const auto* s = std::get_if<StateArg>(&arg))
          mark(used_.states, index_.states, s->state);
        else if (const auto* v = std::get_if<VarRef>(&arg))
          var(v->name);
        else if (const auto* e = std::get_if<ExprArg>(&arg))
          expr(*e->expr);
        else if (const auto* r = std::get_if<RankRef>(&arg))
          group(r->group);
      }
    }
  }

  const Manifest& m_;
  const Index& index_;
  Used used_;
};

template <class T>
void list(const Scope& scope, std::string_view section, const std::vector<T>& declared,
          const Marks& marks, fmt::format_string<const std::string&> sentence) {
  for (size_t i = 0; i < declared.size(); ++i)
    if (!marks[i]) scope.problem(pointer_to(section, declared[i].name), sentence, declared[i].name);
}

}  // namespace

Used find_used(const Manifest& manifest, const Index& index) {
  return Marker(manifest, index).run();
}

bool is_handed_on(const Manifest& m, const Buffer& buffer) {
  if (!m.cut || buffer.fill || (buffer.domain && !buffer.domain->index_into.empty())) return false;
  return buffer.kind == BufferKind::inout || (buffer.kind == BufferKind::input && m.cut->stage > 0);
}

void verify_unused(const Scope& scope) {
  const Manifest& m = scope.m;
  Used used = find_used(m, scope.index);
  if (m.uses_extension("hand_on"))
    for (size_t i = 0; i < m.buffers.size(); ++i)
      if (is_handed_on(m, m.buffers[i])) used.buffers[i] = true;
  list(scope, "vars", m.vars, used.vars, "var `{}` is never used");
  list(scope, "topology/groups", m.groups, used.groups, "topology group `{}` is never used");
  list(scope, "states", m.states, used.states, "no program uses state `{}`");
  list(scope, "buffers", m.buffers, used.buffers, "no program uses buffer `{}`");
  list(scope, "modules", m.modules, used.modules, "no op launches module `{}`");
  list(scope, "ops", m.ops, used.ops, "no program calls op `{}`");
}

}  // namespace kern::manifest
