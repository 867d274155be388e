#include "values.h"

#include <algorithm>
#include <cstring>

#include "kern/base/assert.h"
#include "kern/base/checked.h"

namespace kern::runtime {
namespace {

using manifest::Expr;

size_t depth_of(const Expr& expr) {
  size_t deepest = 0;
  for (size_t i = 0; i < expr.operands.size(); ++i)
    deepest = std::max(deepest, i + depth_of(expr.operands[i]));
  return std::max<size_t>(deepest, 1);
}

}  // namespace

Cell* Values::of_integer(int64_t value) {
  cells_.push_back(value);
  return &cells_.back();
}

Cell* Values::of_float(float value) {
  Cell* cell = of_integer(0);
  std::memcpy(cell, &value, sizeof(value));
  return cell;
}

Cell* Values::of_pointer(const void* pointer) {
  return of_integer(static_cast<int64_t>(reinterpret_cast<intptr_t>(pointer)));
}

size_t Values::var_index(std::string_view name) const {
  for (size_t i = 0; i < vars_.size(); ++i)
    if (vars_[i].name == name) return i;
  KERN_ASSERT(false, "var `{}` of a verified manifest is unknown", name);
  return 0;
}

Cell* Values::of(const Expr& expr) {
  if (expr.op == Expr::Op::constant) return of_integer(expr.value);
  const auto [at, fresh] = by_text_.emplace(manifest::to_string(expr), nullptr);
  if (!fresh) return at->second;
  stack_.resize(std::max(stack_.size(), depth_of(expr)));
  const auto first = static_cast<uint32_t>(code_.size());
  compile(expr);
  at->second = of_integer(0);
  dynamic_.push_back({at->second, first, static_cast<uint32_t>(code_.size())});
  return at->second;
}

void Values::compile(const Expr& expr) {
  for (const Expr& operand : expr.operands) compile(operand);
  switch (expr.op) {
    case Expr::Op::constant:
      code_.push_back({Step::push, expr.value});
      return;
    case Expr::Op::var: {
      const size_t var = var_index(expr.var);
      used_[var] = true;
      code_.push_back({Step::load, static_cast<int64_t>(var)});
      return;
    }
    case Expr::Op::mul:
      code_.push_back({Step::multiply, expr.value});
      return;
    case Expr::Op::add:
      code_.push_back({Step::add, 0});
      return;
    case Expr::Op::ceil_div:
      code_.push_back({Step::ceil_divide, expr.value});
      return;
  }
}

void Values::evaluate(std::span<const int64_t> vars) {
  for (const Dynamic& dynamic : dynamic_) {
    size_t top = 0;
    for (uint32_t at = dynamic.first; at < dynamic.last; ++at) {
      const Code& code = code_[at];
      switch (code.step) {
        case Step::push:
          stack_[top++] = code.operand;
          break;
        case Step::load:
          stack_[top++] = vars[static_cast<size_t>(code.operand)];
          break;
        case Step::multiply:
          stack_[top - 1] *= code.operand;
          break;
        case Step::add:
          --top;
          stack_[top - 1] += stack_[top];
          break;
        case Step::ceil_divide:
          stack_[top - 1] = ceil_div(stack_[top - 1], code.operand);
          break;
      }
    }
    KERN_DCHECK(top == 1);
    *dynamic.cell = stack_[0];
  }
}

}  // namespace kern::runtime
