#include "scope.h"

#include <array>

#include "kern/base/checked.h"
#include "lines.h"

namespace kern::manifest {

bool Scope::check_expr_form(const Expr& expr, const std::string& pointer) const {
  if (expr.op == Expr::Op::var && var(expr.var) == nullptr) {
    problem(pointer, "unknown var `{}`", expr.var);
    return false;
  }
  if (expr.op == Expr::Op::mul && expr.value == 0) {
    problem(pointer, "multiplies by the constant 0");
    return false;
  }
  if (expr.op == Expr::Op::ceil_div && expr.value == 0) {
    problem(pointer, "divides by 0");
    return false;
  }
  bool ok = true;
  for (const Expr& operand : expr.operands) ok = check_expr_form(operand, pointer) && ok;
  return ok;
}

std::optional<int64_t> Scope::check_expr(const Expr& expr, const std::string& pointer) const {
  if (!check_expr_form(expr, pointer)) return std::nullopt;
  const auto value = eval(expr, high);
  if (!value) problem(pointer, "overflows 64 bits at the vars' bounds");
  return value;
}

std::optional<int64_t> Scope::check_shape(Dtype dtype, const std::vector<Dim>& shape,
                                          const std::string& pointer) const {
  if (shape.empty()) {
    problem(pointer, "the shape is empty");
    return std::nullopt;
  }
  bool ok = true;
  for (const Dim& dim : shape) {
    if (dim.is_var() && var(dim.var) == nullptr) {
      problem(pointer, "unknown var `{}` in the shape", dim.var);
      ok = false;
    } else if (!dim.is_var() && dim.value < 1) {
      problem(pointer, "an extent of {} in the shape; expected at least 1", dim.value);
      ok = false;
    }
  }
  if (!ok) return std::nullopt;
  const auto bytes = bytes_of(dtype, shape, high);
  if (!bytes) problem(pointer, "the size in bytes overflows 64 bits at the vars' bounds");
  return bytes;
}

std::optional<int64_t> Scope::check_group(std::string_view name, const std::string& pointer) const {
  const Group* found = group(name);
  if (found == nullptr) {
    problem(pointer, "unknown topology group `{}`", name);
    return std::nullopt;
  }
  return found->size;
}

std::string pointer_to(std::string_view section, std::string_view name) {
  return fmt::format("/{}/{}", section, escape_pointer(name));
}

std::string pointer_to(const Op& op, size_t launch) {
  return fmt::format("{}/impl/launches/{}", pointer_to("ops", op.name), launch);
}

std::string pointer_to(const Program& program, size_t call) {
  return fmt::format("{}/calls/{}", pointer_to("programs", program.name), call);
}

std::string pointer_to(const Program& program, size_t call, size_t arg) {
  return fmt::format("{}/args/{}", pointer_to(program, call), arg);
}

const std::vector<ParamType>& abi_of(const Op& op, const Launch& launch) {
  return launch.params ? *launch.params : op.params;
}

std::vector<LaunchArg> args_of(const Op& op, const Launch& launch) {
  if (launch.args) return *launch.args;
  std::vector<LaunchArg> args;
  for (size_t i = 0; i < op.params.size(); ++i) args.push_back(ParamRef{static_cast<int64_t>(i)});
  return args;
}

int64_t tma_bits(std::string_view dtype) {
  static constexpr std::array<std::pair<std::string_view, int64_t>, 11> kBits = {{{"u4", 4},
                                                                                  {"u8", 8},
                                                                                  {"u16", 16},
                                                                                  {"f16", 16},
                                                                                  {"bf16", 16},
                                                                                  {"u32", 32},
                                                                                  {"i32", 32},
                                                                                  {"f32", 32},
                                                                                  {"tf32", 32},
                                                                                  {"u64", 64},
                                                                                  {"i64", 64}}};
  for (const auto& [word, bits] : kBits)
    if (word == dtype) return bits;
  return 0;
}

std::optional<uint64_t> footprint_of(const Tensormap& map) {
  if (map.dims.empty() || map.strides.size() + 1 != map.dims.size()) return std::nullopt;
  const auto row_bits = checked_mul(map.dims[0], tma_bits(map.dtype));
  if (!row_bits) return std::nullopt;
  std::optional bytes = static_cast<uint64_t>(ceil_div<int64_t>(*row_bits, 8));
  for (size_t i = 1; i < map.dims.size() && bytes; ++i) {
    const auto steps = static_cast<uint64_t>(std::max<int64_t>(map.dims[i], 1) - 1);
    const auto reach = checked_mul(steps, static_cast<uint64_t>(map.strides[i - 1]));
    bytes = reach ? checked_add(*bytes, *reach) : std::nullopt;
  }
  return bytes;
}

bool reads(Direction direction) {
  return direction != Direction::out;
}
bool writes(Direction direction) {
  return direction != Direction::in;
}

}  // namespace kern::manifest
