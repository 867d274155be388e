#include "inputs.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <variant>

#include "kern/base/assert.h"

namespace kern::runtime {
namespace {

using manifest::Bound;
using manifest::Buffer;
using manifest::BufferKind;
using manifest::Dtype;
using manifest::Expr;
using manifest::State;
using manifest::Verified;

/// How many places an `index_into` may name: [0, count).
int64_t places_in(const Verified& manifest, const Layout& layout, const manifest::Domain& domain) {
  if (const auto index = manifest.index().states.find(domain.index_into)) {
    const State& state = manifest->states[*index];
    const Capacity& capacity = layout.capacity;
    switch (state.size) {
      case State::Size::per_token:
        return domain.stride ? capacity.pages : capacity.pages * capacity.page_tokens;
      case State::Size::per_seq:
        return domain.stride ? layout.state_bytes[*index] / *domain.stride : capacity.slots;
      default:
        return layout.state_bytes[*index] / domain.stride.value_or(1);
    }
  }
  const Buffer* target = manifest.buffer(domain.index_into);
  KERN_ASSERT(target != nullptr, "`{}`", domain.index_into);
  const auto rows = manifest::eval(target->shape[0], manifest.at_bounds());
  KERN_ASSERT(rows.has_value(), "buffer `{}`", target->name);
  return *rows / domain.stride.value_or(1);
}

void set_bound(const Bound& bound, Values& values, const Cell*& cell, double& real,
               bool& has_real) {
  if (const auto* integer = std::get_if<int64_t>(&bound)) {
    cell = values.of_integer(*integer);
  } else if (const auto* expr = std::get_if<Expr>(&bound)) {
    cell = values.of(*expr);
  } else {
    real = std::get<double>(bound);
    has_real = true;
  }
}

CheckedInput checked_input(const Verified& manifest, const Layout& layout, size_t index,
                           const std::byte* data, Values& values) {
  const Buffer& buffer = manifest->buffers[index];
  CheckedInput out;
  out.buffer = index;
  out.data = data;
  for (const manifest::Dim& dim : buffer.shape)
    out.extents.push_back(dim.is_var() ? values.of_var(dim.var) : values.of_integer(dim.value));
  const manifest::Domain& domain = *buffer.domain;
  out.monotone = domain.monotone;
  if (!domain.index_into.empty()) {
    out.min = values.of_integer(0);
    out.max = values.of_integer(places_in(manifest, layout, domain) - 1);
  }
  if (domain.min) set_bound(*domain.min, values, out.min, out.min_real, out.has_min_real);
  if (domain.max) set_bound(*domain.max, values, out.max, out.max_real, out.has_max_real);
  return out;
}

/// The place of the first element outside [low, high], or count.
template <class T>
int64_t first_outside(const T* data, int64_t count, T low, T high) {
  T least = data[0], most = data[0];
  bool ordered = true;  // false once a NaN is met
  for (int64_t i = 0; i < count; ++i) {
    least = std::min(least, data[i]);
    most = std::max(most, data[i]);
    ordered &= data[i] == data[i];
  }
  if (ordered && least >= low && most <= high) return count;
  return std::find_if(data, data + count, [&](T v) { return !(v >= low && v <= high); }) - data;
}

template <class T>
Result<void> check_typed(const Buffer& buffer, const CheckedInput& input, int64_t count, T low,
                         T high) {
  const T* data = reinterpret_cast<const T*>(input.data);
  if (input.min != nullptr && !(static_cast<double>(*input.min) <= static_cast<double>(low)))
    low = static_cast<T>(*input.min);
  if (input.max != nullptr && !(static_cast<double>(*input.max) >= static_cast<double>(high)))
    high = static_cast<T>(*input.max);
  if (input.has_min_real) low = std::max(low, static_cast<T>(input.min_real));
  if (input.has_max_real) high = std::min(high, static_cast<T>(input.max_real));
  if (const int64_t at = first_outside(data, count, low, high); at < count)
    return fail(Kind::caller, "input `{}`[{}] is {}, expected {} to {}{}", buffer.name, at,
                data[at], low, high,
                buffer.domain->index_into.empty()
                    ? std::string()
                    : fmt::format(" (an index into `{}`)", buffer.domain->index_into));
  if (!input.monotone) return {};
  for (int64_t i = 1; i < count; ++i)
    if (data[i] < data[i - 1])
      return fail(Kind::caller, "input `{}`[{}] is {}, expected at least {}, the one before",
                  buffer.name, i, data[i], data[i - 1]);
  return {};
}

template <class T>
Result<void> check_as(const Buffer& buffer, const CheckedInput& input, int64_t count) {
  using Limits = std::numeric_limits<T>;
  if constexpr (std::is_floating_point_v<T>)
    return check_typed<T>(buffer, input, count, -Limits::infinity(), Limits::infinity());
  else
    return check_typed<T>(buffer, input, count, Limits::min(), Limits::max());
}

}  // namespace

Result<void> add_checked_inputs(const Verified& manifest, const manifest::Program& program,
                                const Layout& layout, const Addresses& addresses,
                                LoweredProgram& out) {
  std::set<size_t> seen;
  for (const manifest::Call& call : program.calls)
    for (const manifest::CallArg& arg : call.args) {
      const auto* bound = std::get_if<manifest::BufferArg>(&arg);
      if (bound == nullptr) continue;
      const size_t index = *manifest.index().buffers.find(bound->buffer);
      const Buffer& buffer = manifest->buffers[index];
      const bool filled = buffer.kind == BufferKind::input || buffer.kind == BufferKind::inout;
      if (!filled || !buffer.domain || !seen.insert(index).second) continue;
      const std::byte* data = addresses.host_view(index);
      KERN_ASSERT(data != nullptr, "input `{}`", buffer.name);
      out.inputs.push_back(checked_input(manifest, layout, index, data, out.values));
    }
  return {};
}

Result<void> check_inputs(const manifest::Manifest& manifest, const LoweredProgram& program) {
  for (const CheckedInput& input : program.inputs) {
    const Buffer& buffer = manifest.buffers[input.buffer];
    int64_t count = 1;
    for (const Cell* extent : input.extents) count *= *extent;
    if (count == 0) continue;
    switch (buffer.dtype) {
      case Dtype::i32:
        KERN_TRY_VOID(check_as<int32_t>(buffer, input, count));
        break;
      case Dtype::i64:
        KERN_TRY_VOID(check_as<int64_t>(buffer, input, count));
        break;
      case Dtype::u32:
        KERN_TRY_VOID(check_as<uint32_t>(buffer, input, count));
        break;
      case Dtype::u64:
        KERN_TRY_VOID(check_as<uint64_t>(buffer, input, count));
        break;
      case Dtype::i8:
        KERN_TRY_VOID(check_as<int8_t>(buffer, input, count));
        break;
      case Dtype::u8:
        KERN_TRY_VOID(check_as<uint8_t>(buffer, input, count));
        break;
      case Dtype::f32:
        KERN_TRY_VOID(check_as<float>(buffer, input, count));
        break;
      default:
        break;  // packed and half types: their bounds are for the values' drawer
    }
  }
  return {};
}

}  // namespace kern::runtime
