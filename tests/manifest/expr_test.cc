#include "kern/manifest/expr.h"

#include <catch2/catch.hpp>
#include <limits>

using namespace kern::manifest;

namespace {
const std::vector<Var> kVars = {{"a", 10, {}}, {"b", 3, {}}};

std::optional<int64_t> at(const Expr& e, std::vector<int64_t> values) {
  return eval(e, VarValues{kVars, values});
}
}  // namespace

TEST_CASE("an expression is worth what it says", "[manifest][expr]") {
  const Expr a = Expr::of_var("a"), b = Expr::of_var("b");
  CHECK(at(Expr::constant(5), {1, 1}) == 5);
  CHECK(at(a, {7, 1}) == 7);
  CHECK(at(Expr::mul(a, 6), {7, 1}) == 42);
  CHECK(at(Expr::add(a, Expr::mul(b, 2)), {7, 2}) == 11);
  CHECK(at(Expr::ceil_div(a, 4), {8, 1}) == 2);
  CHECK(at(Expr::ceil_div(a, 4), {9, 1}) == 3);
}

TEST_CASE("an expression that overflows or names no var is worth nothing", "[manifest][expr]") {
  const int64_t max = std::numeric_limits<int64_t>::max();
  const Expr a = Expr::of_var("a");
  CHECK_FALSE(at(Expr::mul(a, max), {2, 1}));
  CHECK_FALSE(at(Expr::add(a, Expr::constant(max)), {1, 1}));
  CHECK_FALSE(at(Expr::ceil_div(a, 0), {1, 1}));
  CHECK_FALSE(at(Expr::of_var("c"), {1, 1}));
}

TEST_CASE("a shape is worth its elements and bytes", "[manifest][expr]") {
  const std::vector<int64_t> values = {10, 3};
  const VarValues vars{kVars, values};
  const std::vector<Dim> shape = {Dim::of_var("a"), Dim::of(4), Dim::of_var("b")};
  CHECK(elements_of(shape, vars) == 120);
  CHECK(bytes_of(Dtype::bf16, shape, vars) == 240);
  const std::vector<Dim> huge = {Dim::of(int64_t{1} << 40), Dim::of(int64_t{1} << 40)};
  CHECK_FALSE(elements_of(huge, vars));
}

TEST_CASE("an expression is written as a manifest writes it", "[manifest][expr]") {
  const Expr e = Expr::add(Expr::ceil_div(Expr::of_var("a"), 4), Expr::mul(Expr::of_var("b"), 2));
  CHECK(to_string(e) == "{\"add\": [{\"ceil_div\": [a, 4]}, {\"mul\": [b, 2]}]}");
  CHECK(mentions(e, "b"));
  CHECK_FALSE(mentions(e, "c"));
}
