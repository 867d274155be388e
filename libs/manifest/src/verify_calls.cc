#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "match.h"
#include "scope.h"

namespace kern::manifest {
namespace {

using What = ParamType::What;

/// A tensormap in some launch of an op, and how far it reaches.
struct Reach {
  size_t launch;
  uint64_t bytes;
};

/// For each op, by param, the furthest reach of its tensormaps. Built once: an op is called often.
using Reaches = std::map<const Op*, std::map<int64_t, Reach>>;

Reaches find_reaches(const Manifest& m) {
  Reaches reaches;
  for (const Op& op : m.ops)
    for (size_t i = 0; i < op.launches.size(); ++i) {
      if (!op.launches[i].args) continue;
      for (const LaunchArg& arg : *op.launches[i].args) {
        const auto* pack = std::get_if<Pack>(&arg);
        if (pack == nullptr) continue;
        for (const PackField& field : pack->fields) {
          const auto* map = std::get_if<Tensormap>(&field.source);
          const auto bytes = map != nullptr && !map->wrap ? footprint_of(*map) : std::nullopt;
          if (!bytes) continue;
          Reach& reach = reaches[&op].try_emplace(map->param, Reach{i, *bytes}).first->second;
          if (*bytes > reach.bytes) reach = {i, *bytes};
        }
      }
    }
  return reaches;
}

class CallCheck {
 public:
  CallCheck(const Scope& scope, const Reaches& reaches) : scope_(scope), reaches_(reaches) {}

  void check(const Program& program, size_t call_index) {
    const Call& call = program.calls[call_index];
    program_ = &program;
    call_ = call_index;
    const Op* op = scope_.op(call.op);
    if (op == nullptr)
      return scope_.problem(pointer_to(program, call_index), "unknown op `{}`", call.op);
    if (op->params.size() != call.args.size())
      return scope_.problem(pointer_to(program, call_index), "op `{}` takes {} params, got {} args",
                            call.op, op->params.size(), call.args.size());
    const auto reach = reaches_.find(op);
    op_ = op;
    for (arg_ = 0; arg_ < call.args.size(); ++arg_) {
      const ParamType& type = op->params[arg_];
      std::visit(
          Match{[&](const BufferArg& b) { buffer(b, type); },
                [&](const StateArg& s) { state(s, type); }, [&](const VarRef& v) { var(v, type); },
                [&](const ExprArg& e) { expr(*e.expr, type); },
                [&](const Literal& l) { literal(l, type); },
                [&](const RankRef& r) { rank(r, type); }},
          call.args[arg_]);
      if (reach != reaches_.end()) footprint(reach->second, call.args[arg_]);
    }
  }

 private:
  template <class... Args>
  void problem(fmt::format_string<Args...> format, Args&&... args) {
    scope_.problem(pointer_to(*program_, call_, arg_), format, std::forward<Args>(args)...);
  }

  void buffer(const BufferArg& arg, const ParamType& type) {
    const Buffer* buffer = scope_.buffer(arg.buffer);
    if (buffer == nullptr) return problem("unknown buffer `{}`", arg.buffer);
    if (type.what != What::buffer)
      return problem("buffer `{}` does not match param `{}`", arg.buffer, to_string(type));
    if (buffer->dtype != type.dtype)
      problem("buffer `{}` is {}, the param takes {}", arg.buffer, to_string(buffer->dtype),
              to_string(type.dtype));
    if (buffer->kind == BufferKind::peer &&
        std::any_of(op_->launches.begin(), op_->launches.end(),
                    [](const Launch& l) { return l.is_extern(); }))
      problem(
          "peer buffer `{}` goes into op `{}`, which launches a built-in; none takes peer memory",
          arg.buffer, op_->name);
    if (arg.offset_bytes == 0) return;
    if (arg.offset_bytes % size_of(buffer->dtype) != 0)
      problem("offset {} into buffer `{}` is not aligned to its {}", arg.offset_bytes, arg.buffer,
              to_string(buffer->dtype));
    const auto bytes = bytes_of(buffer->dtype, buffer->shape, scope_.high);
    if (arg.offset_bytes < 0 || (bytes && arg.offset_bytes >= *bytes))
      problem("offset {} lies outside buffer `{}`, {} bytes at the vars' bounds", arg.offset_bytes,
              arg.buffer, bytes.value_or(0));
  }

  void state(const StateArg& arg, const ParamType& type) {
    const State* state = scope_.state(arg.state);
    if (state == nullptr) return problem("unknown state `{}`", arg.state);
    if (type.what != What::state)
      return problem("state `{}` does not match param `{}`", arg.state, to_string(type));
    if (arg.offset_bytes < 0) problem("a negative offset into state `{}`", arg.state);
  }

  void var(const VarRef& ref, const ParamType& type) {
    const Var* var = scope_.var(ref.name);
    if (var == nullptr) return problem("unknown var `{}`", ref.name);
    if (!takes_integer(type))
      return problem("var `{}` does not match param `{}`", ref.name, to_string(type));
    if (type.what == What::i32 && var->max > std::numeric_limits<int32_t>::max())
      problem("var `{}` reaches {}, beyond i32", ref.name, var->max);
  }

  void expr(const Expr& expr, const ParamType& type) {
    const auto value = scope_.check_expr(expr, pointer_to(*program_, call_, arg_));
    if (!takes_integer(type))
      return problem("an expression does not match param `{}`", to_string(type));
    if (value && type.what == What::i32 && *value > std::numeric_limits<int32_t>::max())
      problem("the expression reaches {} at the vars' bounds, beyond i32", *value);
  }

  void literal(const Literal& literal, const ParamType& type) {
    static constexpr What kWhat[] = {What::i32, What::i64, What::f32, What::u8};
    const What what = kWhat[static_cast<size_t>(literal.type)];
    if (what != type.what)
      problem("a literal {} does not match param `{}`", to_string(ParamType::scalar(what)),
              to_string(type));
  }

  void rank(const RankRef& ref, const ParamType& type) {
    scope_.check_group(ref.group, pointer_to(*program_, call_, arg_));
    if (type.what != What::i32 && type.what != What::i64)
      problem("a rank goes into an i32 or i64, not into `{}`", to_string(type));
  }

  static bool takes_integer(const ParamType& type) {
    return type.what == What::i32 || type.what == What::i64 || type.what == What::u8;
  }

  void footprint(const std::map<int64_t, Reach>& reaches, const CallArg& arg) {
    const auto* bound = std::get_if<BufferArg>(&arg);
    const auto reach = reaches.find(static_cast<int64_t>(arg_));
    if (bound == nullptr || reach == reaches.end()) return;
    const Buffer* buffer = scope_.buffer(bound->buffer);
    if (buffer == nullptr) return;
    const auto bytes = bytes_of(buffer->dtype, buffer->shape, scope_.high);
    if (bytes && std::cmp_greater(reach->second.bytes, *bytes - bound->offset_bytes))
      problem("the tensormap of launch {} reaches {} bytes, buffer `{}` has {} past offset {}",
              reach->second.launch, reach->second.bytes, bound->buffer,
              *bytes - bound->offset_bytes, bound->offset_bytes);
  }

  const Scope& scope_;
  const Reaches& reaches_;
  const Program* program_ = nullptr;
  const Op* op_ = nullptr;
  size_t call_ = 0, arg_ = 0;
};

}  // namespace

void verify_calls(const Scope& scope) {
  const Reaches reaches = find_reaches(scope.m);
  CallCheck check(scope, reaches);
  for (const Program& program : scope.m.programs)
    for (size_t i = 0; i < program.calls.size(); ++i) check.check(program, i);
}

}  // namespace kern::manifest
