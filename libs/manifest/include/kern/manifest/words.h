#pragma once
/// The words the whole manifest is written in: dtypes, expressions over vars, extents.
/// Thread safety: plain values.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kern::manifest {

enum class Dtype : uint8_t { bf16, f16, f32, fp8e4m3, fp8e8m0, i8, i32, u32, i64, u64, u8 };
std::string_view to_string(Dtype dtype);
int64_t size_of(Dtype dtype);

/// A closed expression over vars: constant, var, e*c, e+e, ceil(e/c).
struct Expr {
  enum class Op : uint8_t { constant, var, mul, add, ceil_div };
  Op op = Op::constant;
  int64_t value = 0;           ///< the constant, or the c of mul and ceil_div
  std::string var;             ///< for Op::var
  std::vector<Expr> operands;  ///< one for mul and ceil_div, two for add

  static Expr constant(int64_t value);
  static Expr of_var(std::string name);
  static Expr mul(Expr e, int64_t c);
  static Expr add(Expr a, Expr b);
  static Expr ceil_div(Expr e, int64_t c);
  friend bool operator==(const Expr&, const Expr&) = default;
};

/// An expression in a pointer's room, for where other things mostly stand. It copies with its owner
/// and always holds one, until it is moved from.
class BoxedExpr {
 public:
  BoxedExpr() : BoxedExpr(Expr()) {}
  BoxedExpr(Expr expr) : expr_(std::make_unique<Expr>(std::move(expr))) {}  // NOLINT: converts
  BoxedExpr(const BoxedExpr& other) : BoxedExpr(*other.expr_) {}
  BoxedExpr(BoxedExpr&&) noexcept = default;
  BoxedExpr& operator=(BoxedExpr other) noexcept {
    expr_ = std::move(other.expr_);
    return *this;
  }

  Expr& operator*() { return *expr_; }
  const Expr& operator*() const { return *expr_; }

 private:
  std::unique_ptr<Expr> expr_;
};

/// One extent of a buffer: a constant, or a var's name.
struct Dim {
  int64_t value = 0;
  std::string var;  ///< empty for a constant
  bool is_var() const { return !var.empty(); }
  static Dim of(int64_t value) { return {value, {}}; }
  static Dim of_var(std::string name) { return {0, std::move(name)}; }
  friend bool operator==(const Dim&, const Dim&) = default;
};

}  // namespace kern::manifest
