#pragma once
/// The numbers of one lowered program: vars, expressions over them, constants. Each has a fixed
/// 8-byte cell that launch arguments point at; `evaluate` refreshes the ones that depend on vars.
/// A cell holds an integer sign-extended to 64 bits, so that a kernel may read it as int32_t,
/// int64_t or uint8_t; a float lies in its first four bytes.

#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "kern/manifest/verify.h"

namespace kern::runtime {

using Cell = int64_t;

class Values {
 public:
  explicit Values(std::span<const manifest::Var> vars) : vars_(vars), used_(vars.size(), false) {}

  /// The cell of an expression; equal expressions share one. Its vars must exist.
  Cell* of(const manifest::Expr& expr);
  Cell* of_var(const std::string& name) { return of(manifest::Expr::of_var(name)); }
  Cell* of_integer(int64_t value);
  Cell* of_float(float value);
  Cell* of_pointer(const void* pointer);

  /// Whether an expression mentions the var, by position.
  bool uses(size_t var) const { return used_[var]; }
  void mark_used(size_t var) { used_[var] = true; }
  size_t var_index(std::string_view name) const;

  /// Refreshes every cell. Values lie within the vars' bounds, one each, so nothing overflows.
  void evaluate(std::span<const int64_t> vars);

 private:
  enum class Step : uint8_t { push, load, multiply, add, ceil_divide };
  struct Code {
    Step step;
    int64_t operand;  ///< a constant, or a var's position
  };
  struct Dynamic {
    Cell* cell;
    uint32_t first, last;  ///< in code_
  };

  void compile(const manifest::Expr& expr);

  std::span<const manifest::Var> vars_;
  std::vector<bool> used_;
  std::deque<Cell> cells_;  ///< addresses never change
  std::map<std::string, Cell*> by_text_;
  std::vector<Code> code_;
  std::vector<Dynamic> dynamic_;
  std::vector<int64_t> stack_;  ///< as deep as the deepest expression
};

}  // namespace kern::runtime
