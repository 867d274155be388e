#include <algorithm>

#include "kern/base/assert.h"
#include "match.h"
#include "scope.h"

namespace kern::manifest {
namespace {

using What = ParamType::What;

/// Follows what an op's launches read and write, in order.
class OpFlow {
 public:
  OpFlow(const Scope& scope, const Op& op)
      : scope_(scope),
        op_(op),
        param_written_(op.params.size()),
        scratch_written_(op.scratch.size()),
        scratch_used_(op.scratch.size()) {}

  void run() {
    for (launch_ = 0; launch_ < op_.launches.size(); ++launch_) launch(op_.launches[launch_]);
    for (size_t i = 0; i < op_.params.size(); ++i) {
      const ParamType& type = op_.params[i];
      const bool memory = type.what == What::buffer || type.what == What::state;
      if (memory && type.direction == Direction::out && !param_written_[i])
        problem(pointer_to("ops", op_.name), "no launch writes param {}, `{}`", i, to_string(type));
    }
    for (size_t i = 0; i < op_.scratch.size(); ++i)
      if (!scratch_used_[i])
        problem(scratch_pointer(i), "scratch `{}` is never used", op_.scratch[i].name);
  }

 private:
  template <class... Args>
  void problem(std::string pointer, fmt::format_string<Args...> format, Args&&... args) {
    scope_.problem(std::move(pointer), format, std::forward<Args>(args)...);
  }
  std::string scratch_pointer(size_t i) const {
    return fmt::format("{}/impl/scratch/{}", pointer_to("ops", op_.name), op_.scratch[i].name);
  }
  std::string here() const { return pointer_to(op_, launch_) + fmt::format("/args/{}", arg_); }

  void launch(const Launch& launch) {
    const std::vector<ParamType>& abi = abi_of(op_, launch);
    const std::vector<LaunchArg> args = args_of(op_, launch);
    if (abi.size() != args.size())
      return problem(pointer_to(op_, launch_), "`{}` takes {} params, got {} args", launch.entry,
                     abi.size(), args.size());
    for (arg_ = 0; arg_ < args.size(); ++arg_) {
      const ParamType& type = abi[arg_];
      std::visit(
          Match{[&](const ParamRef& p) { param(p.index, type); },
                [&](const ScratchRef& s) { scratch(s.name, type); },
                [&](const Literal& l) { literal(l, type); },
                [&](const RankRef& r) { rank(r, type); }, [&](const Pack& p) { pack(p, type); }},
          args[arg_]);
    }
    for (const size_t i : params_pending_) param_written_[i] = true;
    for (const size_t i : scratch_pending_) scratch_written_[i] = true;
    params_pending_.clear();
    scratch_pending_.clear();
  }

  void param(int64_t index, const ParamType& type) {
    if (index < 0 || static_cast<size_t>(index) >= op_.params.size())
      return problem(here(), "param {} of an op that has {}", index, op_.params.size());
    const auto i = static_cast<size_t>(index);
    const ParamType& own = op_.params[i];
    const bool memory = own.what == What::buffer || own.what == What::state;
    if (own.what != type.what || own.what == What::bytes ||
        (own.what == What::buffer && own.dtype != type.dtype))
      return problem(here(), "the op's `{}` does not match the launch's `{}`", to_string(own),
                     to_string(type));
    if (!memory) return;
    if (own.direction == Direction::in && writes(type.direction))
      problem(here(), "the launch writes through param {}, which is `in`", index);
    touch_param(i, type.direction);
  }

  void touch_param(size_t i, Direction direction) {
    if (op_.params[i].direction == Direction::out && reads(direction) && !param_written_[i])
      problem(here(), "param {} is `out` and read before any launch wrote it", i);
    if (writes(direction)) params_pending_.push_back(i);
  }

  void scratch(std::string_view name, const ParamType& type) {
    const auto at = std::find_if(op_.scratch.begin(), op_.scratch.end(),
                                 [&](const Scratch& s) { return s.name == name; });
    if (at == op_.scratch.end()) return problem(here(), "unknown scratch `{}`", name);
    const auto i = static_cast<size_t>(at - op_.scratch.begin());
    scratch_used_[i] = true;
    if (type.what != What::buffer)
      return problem(here(), "scratch `{}` does not match the launch's `{}`", name,
                     to_string(type));
    if (at->dtype != type.dtype)
      return problem(here(), "scratch `{}` is {}, the launch takes {}", name, to_string(at->dtype),
                     to_string(type.dtype));
    if (reads(type.direction) && !scratch_written_[i])
      problem(here(), "scratch `{}` is read before any launch wrote it", name);
    if (writes(type.direction)) scratch_pending_.push_back(i);
  }

  void literal(const Literal& literal, const ParamType& type) {
    static constexpr What kWhat[] = {What::i32, What::i64, What::f32, What::u8};
    if (kWhat[static_cast<size_t>(literal.type)] != type.what)
      problem(here(), "a literal {} does not match the launch's `{}`",
              to_string(ParamType::scalar(kWhat[static_cast<size_t>(literal.type)])),
              to_string(type));
  }

  void rank(const RankRef& rank, const ParamType& type) {
    scope_.check_group(rank.group, here());
    if (type.what != What::i32 && type.what != What::i64)
      problem(here(), "a rank goes into an i32 or i64, not into `{}`", to_string(type));
  }

  /// A pack holds addresses, and nothing says which way the kernel uses them: what the op calls
  /// `out` counts as written, what it calls `in` as read. verify_packs checks the fields.
  void pack(const Pack& pack, const ParamType& type) {
    if (type.what != What::bytes)
      return problem(here(), "a pack goes into a `bytes<n>`, not into `{}`", to_string(type));
    if (type.bytes != pack.size)
      problem(here(), "a pack of {} bytes goes into `{}`", pack.size, to_string(type));
    for (const PackField& field : pack.fields) {
      if (const auto* scratch = std::get_if<ScratchRef>(&field.source)) {
        scratch_in_pack(scratch->name);
      } else if (const auto* param = std::get_if<ParamRef>(&field.source)) {
        param_in_pack(param->index);
      } else if (const auto* map = std::get_if<Tensormap>(&field.source)) {
        param_in_pack(map->param);
      }
    }
  }

  void param_in_pack(int64_t index) {
    if (index < 0 || static_cast<size_t>(index) >= op_.params.size()) return;
    const ParamType& own = op_.params[static_cast<size_t>(index)];
    const bool memory = own.what == What::buffer || own.what == What::state;
    if (memory && writes(own.direction)) params_pending_.push_back(static_cast<size_t>(index));
  }

  void scratch_in_pack(std::string_view name) {
    for (size_t i = 0; i < op_.scratch.size(); ++i) {
      if (op_.scratch[i].name != name) continue;
      scratch_used_[i] = true;
      scratch_pending_.push_back(i);
      return;
    }
    problem(here(), "unknown scratch `{}`", name);
  }

  const Scope& scope_;
  const Op& op_;
  size_t launch_ = 0, arg_ = 0;
  std::vector<bool> param_written_, scratch_written_, scratch_used_;
  std::vector<size_t> params_pending_, scratch_pending_;
};

void check_interface(const Scope& scope, const Op& op) {
  const std::string pointer = pointer_to("ops", op.name);
  for (size_t i = 0; i < op.params.size(); ++i)
    if (op.params[i].what == What::bytes)
      scope.problem(pointer,
                    "param {} is `{}`; byte blocks are a launch's own, the op takes what "
                    "they are packed from",
                    i, to_string(op.params[i]));
  if (op.launches.empty()) scope.problem(pointer, "has no launches");
  for (const Scratch& s : op.scratch)
    scope.check_shape(s.dtype, s.shape, fmt::format("{}/impl/scratch/{}", pointer, s.name));
}

}  // namespace

void verify_ops(const Scope& scope) {
  for (const Op& op : scope.m.ops) {
    check_interface(scope, op);
    OpFlow(scope, op).run();
  }
}

}  // namespace kern::manifest
