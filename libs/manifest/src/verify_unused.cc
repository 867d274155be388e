#include "scope.h"

namespace kern::manifest {
namespace {

/// Marks every declaration that something names.
class Uses {
 public:
  explicit Uses(const Scope& scope)
      : scope_(scope),
        vars_(scope.m.vars.size()),
        groups_(scope.m.groups.size()),
        states_(scope.m.states.size()),
        buffers_(scope.m.buffers.size()),
        modules_(scope.m.modules.size()),
        ops_(scope.m.ops.size()) {}

  void find() {
    for (const State& state : scope_.m.states)
      if (state.shard) mark(groups_, scope_.index.groups, state.shard->group);
    for (const Buffer& buffer : scope_.m.buffers) of_buffer(buffer);
    for (const Op& op : scope_.m.ops) of_op(op);
    for (const Program& program : scope_.m.programs) of_program(program);
  }

  void report() const {
    const Manifest& m = scope_.m;
    list("vars", m.vars, vars_, "var `{}` is never used");
    list("topology/groups", m.groups, groups_, "topology group `{}` is never used");
    list("states", m.states, states_, "no program uses state `{}`");
    list("buffers", m.buffers, buffers_, "no program uses buffer `{}`");
    list("modules", m.modules, modules_, "no op launches module `{}`");
    list("ops", m.ops, ops_, "no program calls op `{}`");
  }

 private:
  using Marks = std::vector<bool>;

  static void mark(Marks& marks, const NameIndex& names, std::string_view name) {
    if (const auto at = names.find(name)) marks[*at] = true;
  }

  void var(std::string_view name) { mark(vars_, scope_.index.vars, name); }
  void group(std::string_view name) { mark(groups_, scope_.index.groups, name); }

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
      mark(buffers_, scope_.index.buffers, buffer.of);
      mark(states_, scope_.index.states, buffer.of);
    }
    for (const BindSegment& segment : buffer.bind) {
      if (!segment.group.empty()) group(segment.group);
      if (segment.rows && !segment.rows->group.empty()) group(segment.rows->group);
      if (segment.cols && !segment.cols->group.empty()) group(segment.cols->group);
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
      mark(modules_, scope_.index.modules, launch.module);
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
      var(program.batch->context);
    }
    for (const Call& call : program.calls) {
      mark(ops_, scope_.index.ops, call.op);
      for (const CallArg& arg : call.args) {
        if (const auto* b = std::get_if<BufferArg>(&arg))
          mark(buffers_, scope_.index.buffers, b->buffer);
        else if (const auto* s = std::get_if<StateArg>(&arg))
          mark(states_, scope_.index.states, s->state);
        else if (const auto* v = std::get_if<VarRef>(&arg))
          var(v->name);
        else if (const auto* e = std::get_if<ExprArg>(&arg))
          expr(e->expr);
        else if (const auto* r = std::get_if<RankRef>(&arg))
          group(r->group);
      }
    }
  }

  template <class T>
  void list(std::string_view section, const std::vector<T>& declared, const Marks& marks,
            fmt::format_string<const std::string&> sentence) const {
    for (size_t i = 0; i < declared.size(); ++i)
      if (!marks[i])
        scope_.problem(pointer_to(section, declared[i].name), sentence, declared[i].name);
  }

  const Scope& scope_;
  Marks vars_, groups_, states_, buffers_, modules_, ops_;
};

}  // namespace

void verify_unused(const Scope& scope) {
  Uses uses(scope);
  uses.find();
  uses.report();
}

}  // namespace kern::manifest
