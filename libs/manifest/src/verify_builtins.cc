#include <array>

#include "builtins.h"
#include "scope.h"

namespace kern::manifest {
namespace {

using What = ParamType::What;

constexpr std::array<std::pair<std::string_view, Builtin>, 11> kBuiltins = {
    {{"extern:gemm_bf16_tn", {Builtin::What::gemm, false, Dtype::bf16, "host"}},
     {"extern:gemm_bf16_tn_acc", {Builtin::What::gemm, true, Dtype::bf16, "host"}},
     {"extern:gemm_bf16_tn_f32", {Builtin::What::gemm, false, Dtype::f32, "host"}},
     {"extern:allreduce_bf16", {Builtin::What::collective, false, Dtype::bf16, "collectives"}},
     {"extern:allreduce_f32", {Builtin::What::collective, false, Dtype::f32, "collectives"}},
     {"extern:allgather_bf16", {Builtin::What::collective, false, Dtype::bf16, "collectives"}},
     {"extern:allgather_f32", {Builtin::What::collective, false, Dtype::f32, "collectives"}},
     {"extern:reducescatter_bf16", {Builtin::What::collective, false, Dtype::bf16, "collectives"}},
     {"extern:reducescatter_f32", {Builtin::What::collective, false, Dtype::f32, "collectives"}},
     {"extern:alltoall_bf16", {Builtin::What::collective, false, Dtype::bf16, "collectives"}},
     {"extern:alltoall_f32", {Builtin::What::collective, false, Dtype::f32, "collectives"}}}};

bool has_algorithms(std::string_view entry) {
  return entry == "extern:cublaslt_bf16_tn" || entry == "extern:cublaslt_bf16_tn_acc";
}

bool is_buffer(const ParamType& type, Dtype dtype, bool written, bool read) {
  return type.what == What::buffer && type.dtype == dtype && writes(type.direction) == written &&
         (!read || reads(type.direction));
}

/// One launch of a known built-in: its parameters against the table.
struct Check {
  const Scope& scope;
  const std::string& pointer;
  const std::vector<ParamType>& abi;

  void expect(size_t i, bool ok, std::string_view what) const {
    if (!ok)
      scope.problem(fmt::format("{}/params/{}", pointer, i), "expected {}, got `{}`", what,
                    to_string(abi[i]));
  }

  void gemm(const Builtin& builtin) const {
    if (abi.size() < 6 || abi.size() > 8)
      return scope.problem(pointer,
                           "a gemm takes a, w, c, m, n, k and up to two row strides; got "
                           "{} params",
                           abi.size());
    expect(0, is_buffer(abi[0], Dtype::bf16, false, true), "`in buffer<bf16>`");
    expect(1, is_buffer(abi[1], Dtype::bf16, false, true), "`in buffer<bf16>`");
    expect(2, is_buffer(abi[2], builtin.result, true, builtin.accumulates),
           fmt::format("`{} buffer<{}>`", builtin.accumulates ? "inout" : "out",
                       to_string(builtin.result)));
    for (size_t i = 3; i < abi.size(); ++i) expect(i, abi[i].what == What::i32, "`i32`");
  }

  void collective(const Builtin& builtin, const std::vector<LaunchArg>& args) const {
    if (abi.size() != 4)
      return scope.problem(
          pointer, "a collective takes send, recv, count and a rank; got {} params", abi.size());
    const bool in_place = abi[0].direction == Direction::inout;
    expect(0, is_buffer(abi[0], builtin.result, in_place, true),
           fmt::format("`in buffer<{}>`", to_string(builtin.result)));
    expect(1, is_buffer(abi[1], builtin.result, true, false),
           fmt::format("`out buffer<{}>`", to_string(builtin.result)));
    expect(2, abi[2].what == What::i32 || abi[2].what == What::i64, "`i32` or `i64`");
    if (args.size() == 4 && !std::holds_alternative<RankRef>(args[3]))
      scope.problem(pointer + "/args/3", "expected a `rank`, which names the group");
  }
};

}  // namespace

std::optional<Builtin> find_builtin(std::string_view entry) {
  for (const auto& [name, builtin] : kBuiltins)
    if (name == entry) return builtin;
  return std::nullopt;
}

void verify_builtins(const Scope& scope) {
  for (const Op& op : scope.m.ops) {
    for (size_t i = 0; i < op.launches.size(); ++i) {
      const Launch& launch = op.launches[i];
      const std::string pointer = pointer_to(op, i);
      if (launch.algo && launch.is_extern() && !has_algorithms(launch.entry))
        scope.problem(pointer, "`algo` goes with `cublaslt_bf16_tn` and its `_acc` only, got `{}`",
                      launch.entry);
      const auto builtin = find_builtin(launch.entry);
      if (!builtin) continue;
      const Check check{scope, pointer, abi_of(op, launch)};
      if (builtin->what == Builtin::What::gemm)
        check.gemm(*builtin);
      else
        check.collective(*builtin, args_of(op, launch));
    }
  }
}

}  // namespace kern::manifest
