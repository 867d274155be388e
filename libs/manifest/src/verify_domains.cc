#include <cmath>

#include "scope.h"

namespace kern::manifest {
namespace {

bool is_float(Dtype dtype) {
  return dtype == Dtype::bf16 || dtype == Dtype::f16 || dtype == Dtype::f32 ||
         dtype == Dtype::fp8e4m3 || dtype == Dtype::fp8e8m0;
}

/// The bound as a number, a var at its max; nothing when it was refused.
std::optional<double> check_bound(const Scope& scope, const Buffer& buffer, const Bound& bound,
                                  std::string_view which, const std::string& pointer) {
  if (const auto* integer = std::get_if<int64_t>(&bound)) return static_cast<double>(*integer);
  if (const auto* real = std::get_if<double>(&bound)) {
    if (is_float(buffer.dtype) && std::isfinite(*real)) return *real;
    scope.problem(pointer, "`{}` of {} on a buffer of {}", which, *real, to_string(buffer.dtype));
    return std::nullopt;
  }
  const auto value = scope.check_expr(std::get<Expr>(bound), pointer);
  return value ? std::optional(static_cast<double>(*value)) : std::nullopt;
}

double at_one(const Scope& scope, const Bound& bound) {
  if (const auto* integer = std::get_if<int64_t>(&bound)) return static_cast<double>(*integer);
  if (const auto* real = std::get_if<double>(&bound)) return *real;
  return static_cast<double>(eval(std::get<Expr>(bound), scope.low).value_or(0));
}

/// In order at the vars' maxima, bounds may still cross where every var is 1.
void check_order_at_one(const Scope& scope, const Bound& low, const Bound& high,
                        const std::string& pointer) {
  const double min = at_one(scope, low), max = at_one(scope, high);
  if (min > max)
    scope.problem(pointer, "`min` {} is above `max` {} where every var is 1", min, max);
}

void check_target(const Scope& scope, const Buffer& buffer, const std::string& pointer) {
  const Domain& domain = *buffer.domain;
  if (is_float(buffer.dtype))
    scope.problem(pointer, "a buffer of {} cannot index anything", to_string(buffer.dtype));
  if (domain.min || domain.max)
    scope.problem(pointer, "`index_into` and `min` or `max` exclude each other");
  const State* state = scope.state(domain.index_into);
  if (state == nullptr && scope.buffer(domain.index_into) == nullptr)
    return scope.problem(pointer, "`index_into` unknown buffer or state `{}`", domain.index_into);
  if (!domain.stride) return;
  if (*domain.stride < 1)
    scope.problem(pointer, "a stride of {}; expected at least 1", *domain.stride);
  else if (state != nullptr && state->size == State::Size::per_seq &&
           state->bytes % *domain.stride != 0)
    scope.problem(pointer, "lines of {} bytes do not divide the {} bytes a sequence of state `{}`",
                  *domain.stride, state->bytes, state->name);
}

}  // namespace

void verify_domains(const Scope& scope) {
  for (const Buffer& buffer : scope.m.buffers) {
    if (!buffer.domain) continue;
    const Domain& domain = *buffer.domain;
    const std::string pointer = pointer_to("buffers", buffer.name) + "/domain";
    std::optional<double> min, max;
    if (domain.min) min = check_bound(scope, buffer, *domain.min, "min", pointer);
    if (domain.max) max = check_bound(scope, buffer, *domain.max, "max", pointer);
    if (min && max && *min > *max)
      scope.problem(pointer, "`min` {} is above `max` {}", *min, *max);
    else if (min && max)
      check_order_at_one(scope, *domain.min, *domain.max, pointer);
    if (!domain.min && !domain.max && domain.index_into.empty() && !domain.monotone)
      scope.problem(pointer, "an empty domain; expected bounds, `index_into` or `monotone`");
    if (domain.monotone && buffer.shape.size() != 1)
      scope.problem(pointer, "`monotone` goes with one-dimensional buffers only");
    if (!domain.index_into.empty())
      check_target(scope, buffer, pointer);
    else if (domain.stride)
      scope.problem(pointer, "`stride` goes with `index_into` only");
  }
}

}  // namespace kern::manifest
