#include "kern/manifest/expr.h"

#include <fmt/format.h>

#include "kern/base/assert.h"
#include "kern/base/checked.h"

namespace kern::manifest {

std::optional<int64_t> VarValues::find(std::string_view name) const {
  KERN_ASSERT(vars.size() == values.size(), "{} vars, {} values", vars.size(), values.size());
  for (size_t i = 0; i < vars.size(); ++i)
    if (vars[i].name == name) return values[i];
  return std::nullopt;
}

std::vector<int64_t> max_values(const Manifest& manifest) {
  std::vector<int64_t> values;
  values.reserve(manifest.vars.size());
  for (const Var& var : manifest.vars) values.push_back(var.max);
  return values;
}

std::optional<int64_t> eval(const Expr& expr, const VarValues& vars) {
  switch (expr.op) {
    case Expr::Op::constant:
      return expr.value;
    case Expr::Op::var:
      return vars.find(expr.var);
    case Expr::Op::mul: {
      const auto inner = eval(expr.operands[0], vars);
      return inner ? checked_mul(*inner, expr.value) : std::nullopt;
    }
    case Expr::Op::add: {
      const auto a = eval(expr.operands[0], vars);
      const auto b = eval(expr.operands[1], vars);
      return a && b ? checked_add(*a, *b) : std::nullopt;
    }
    case Expr::Op::ceil_div:
      break;
  }
  const auto inner = eval(expr.operands[0], vars);
  if (!inner || *inner < 0 || expr.value < 1) return std::nullopt;
  return ceil_div(*inner, expr.value);
}

std::optional<int64_t> eval(const Dim& dim, const VarValues& vars) {
  return dim.is_var() ? vars.find(dim.var) : std::optional(dim.value);
}

std::optional<int64_t> elements_of(std::span<const Dim> shape, const VarValues& vars) {
  std::optional<int64_t> product = 1;
  for (const Dim& dim : shape) {
    const auto extent = eval(dim, vars);
    if (!extent) return std::nullopt;
    product = checked_mul(*product, *extent);
    if (!product) return std::nullopt;
  }
  return product;
}

std::optional<int64_t> bytes_of(Dtype dtype, std::span<const Dim> shape, const VarValues& vars) {
  const auto elements = elements_of(shape, vars);
  return elements ? checked_mul(*elements, size_of(dtype)) : std::nullopt;
}

std::string to_string(const Expr& expr) {
  switch (expr.op) {
    case Expr::Op::constant:
      return fmt::format("{}", expr.value);
    case Expr::Op::var:
      return expr.var;
    case Expr::Op::mul:
      return fmt::format("{{\"mul\": [{}, {}]}}", to_string(expr.operands[0]), expr.value);
    case Expr::Op::add:
      return fmt::format("{{\"add\": [{}, {}]}}", to_string(expr.operands[0]),
                         to_string(expr.operands[1]));
    case Expr::Op::ceil_div:
      break;
  }
  return fmt::format("{{\"ceil_div\": [{}, {}]}}", to_string(expr.operands[0]), expr.value);
}

bool mentions(const Expr& expr, std::string_view var) {
  if (expr.op == Expr::Op::var) return expr.var == var;
  for (const Expr& operand : expr.operands)
    if (mentions(operand, var)) return true;
  return false;
}

}  // namespace kern::manifest
