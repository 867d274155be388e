#include <algorithm>

#include "kern/base/checked.h"
#include "scope.h"

namespace kern::manifest {
namespace {

using What = ParamType::What;

constexpr int64_t kTensormapBytes = 128;
constexpr int64_t kTensormapAlign = 64;
constexpr int64_t kBoxMax = 256;
constexpr int64_t kTmaAlign = 16;

int64_t scalar_bytes(What what) {
  switch (what) {
    case What::i32:
    case What::f32:
      return 4;
    case What::u8:
      return 1;
    default:
      return 8;
  }
}

int64_t natural_width(const Op& op, const PackField& field) {
  if (std::holds_alternative<Tensormap>(field.source)) return kTensormapBytes;
  if (const auto* param = std::get_if<ParamRef>(&field.source)) {
    const bool known = param->index >= 0 && static_cast<size_t>(param->index) < op.params.size();
    return known ? scalar_bytes(op.params[static_cast<size_t>(param->index)].what) : 8;
  }
  if (const auto* literal = std::get_if<Literal>(&field.source)) {
    static constexpr int64_t kBytes[] = {4, 8, 4, 1};
    return kBytes[static_cast<size_t>(literal->type)];
  }
  return std::holds_alternative<ScratchRef>(field.source) ? 8 : 4;
}

void check_dims(const Scope& scope, const Tensormap& map, const std::string& pointer) {
  if (map.dims.empty() || map.dims.size() > 5)
    return scope.problem(pointer, "a tensormap of {} dims; expected 1 to 5", map.dims.size());
  for (size_t i = 0; i < map.dims.size(); ++i)
    if (map.dims[i] < 1 && (i == 0 || i + 1 < map.dims.size()))
      scope.problem(pointer, "dims[{}] is {}; only the outermost of several may be 0", i,
                    map.dims[i]);
  if (map.strides.size() + 1 != map.dims.size())
    scope.problem(pointer, "{} strides for {} dims; expected one fewer", map.strides.size(),
                  map.dims.size());
  for (size_t i = 0; i < map.strides.size(); ++i)
    if (map.strides[i] < 1 || map.strides[i] % kTmaAlign != 0)
      scope.problem(pointer, "strides[{}] is {}; expected a multiple of {} bytes", i,
                    map.strides[i], kTmaAlign);
  const auto reach = footprint_of(map);
  if (map.strides.size() + 1 == map.dims.size() && reach.has_value() == map.wrap)
    scope.problem(pointer, "the strides {} and `wrap` is {}",
                  reach ? "do not overflow" : "overflow", map.wrap);
}

void check_box(const Scope& scope, const Tensormap& map, const std::string& pointer) {
  if (map.box.size() != map.dims.size())
    return scope.problem(pointer, "a box of {} extents for {} dims", map.box.size(),
                         map.dims.size());
  for (size_t i = 0; i < map.box.size(); ++i)
    if (map.box[i] < 1 || map.box[i] > kBoxMax)
      scope.problem(pointer, "box[{}] is {}; expected 1 to {}", i, map.box[i], kBoxMax);
  const int64_t bits = tma_bits(map.dtype);
  if (map.box.empty() || bits == 0 || map.box[0] < 1 || map.box[0] > kBoxMax) return;
  const int64_t box_bits = map.box[0] * bits;
  if (box_bits % (kTmaAlign * 8) != 0)
    scope.problem(pointer, "box[0] spans {} bits; expected a multiple of {} bytes", box_bits,
                  kTmaAlign);
  if (map.dims[0] % (kTmaAlign * 8 / bits) != 0)
    scope.problem(pointer, "dims[0] of {} elements is no multiple of {} bytes", map.dims[0],
                  kTmaAlign);
  if (map.swizzle > 0 && box_bits > map.swizzle * 8)
    scope.problem(pointer, "box[0] spans {} bits, more than the swizzle's {} bytes", box_bits,
                  map.swizzle);
}

void check_tensormap(const Scope& scope, const Op& op, const Tensormap& map,
                     const std::string& pointer) {
  if (scope.m.device == Device::host)
    scope.problem(pointer, "a tensormap on the host device, which has none");
  if (map.param < 0 || static_cast<size_t>(map.param) >= op.params.size()) {
    scope.problem(pointer, "param {} of an op that has {}", map.param, op.params.size());
  } else {
    const ParamType& type = op.params[static_cast<size_t>(map.param)];
    if (type.what != What::buffer && type.what != What::state)
      scope.problem(pointer, "a tensormap over param {}, a `{}`; expected a buffer or a state",
                    map.param, to_string(type));
  }
  if (tma_bits(map.dtype) == 0) scope.problem(pointer, "unknown tensormap dtype `{}`", map.dtype);
  check_dims(scope, map, pointer);
  check_box(scope, map, pointer);
  const auto one_of = [](int64_t value, std::initializer_list<int64_t> list) {
    return std::find(list.begin(), list.end(), value) != list.end();
  };
  if (!one_of(map.swizzle, {0, 32, 64, 128}))
    scope.problem(pointer, "a swizzle of {}; expected 0, 32, 64 or 128", map.swizzle);
  if (!one_of(map.l2_promotion, {0, 64, 128, 256}))
    scope.problem(pointer, "an l2_promotion of {}; expected 0, 64, 128 or 256", map.l2_promotion);
}

void check_field(const Scope& scope, const Op& op, const PackField& field,
                 const std::string& pointer) {
  if (const auto* param = std::get_if<ParamRef>(&field.source)) {
    if (param->index < 0 || static_cast<size_t>(param->index) >= op.params.size())
      scope.problem(pointer, "param {} of an op that has {}", param->index, op.params.size());
  } else if (const auto* var = std::get_if<VarRef>(&field.source)) {
    if (scope.var(var->name) == nullptr) scope.problem(pointer, "unknown var `{}`", var->name);
  } else if (const auto* expr = std::get_if<Expr>(&field.source)) {
    scope.check_expr(*expr, pointer);
  } else if (const auto* rank = std::get_if<RankRef>(&field.source)) {
    scope.check_group(rank->group, pointer);
  } else if (const auto* map = std::get_if<Tensormap>(&field.source)) {
    check_tensormap(scope, op, *map, pointer);
    if (field.width && *field.width != kTensormapBytes)
      scope.problem(pointer, "a tensormap in {} bytes; expected {}", *field.width, kTensormapBytes);
    if (field.at % kTensormapAlign != 0)
      scope.problem(pointer, "a tensormap at {}; expected a multiple of {}", field.at,
                    kTensormapAlign);
  }
  if (field.width && *field.width < 1)
    scope.problem(pointer, "a width of {}; expected at least 1", *field.width);
}

struct Span {
  int64_t first, last;
  size_t field;
};

void check_pack(const Scope& scope, const Op& op, const Pack& pack, const std::string& pointer) {
  std::vector<Span> spans;
  for (size_t i = 0; i < pack.fields.size(); ++i) {
    const PackField& field = pack.fields[i];
    const std::string here = fmt::format("{}/pack/fields/{}", pointer, i);
    check_field(scope, op, field, here);
    const int64_t width = field.width.value_or(natural_width(op, field));
    if (field.at < 0 || field.at > pack.size || width > pack.size - field.at)
      scope.problem(here, "{} bytes at {} do not lie in the pack's {}", width, field.at, pack.size);
    else if (width > 0)
      spans.push_back({field.at, field.at + width, i});
  }
  std::sort(spans.begin(), spans.end(),
            [](const Span& a, const Span& b) { return a.first < b.first; });
  for (size_t i = 1; i < spans.size(); ++i)
    if (spans[i].first < spans[i - 1].last)
      scope.problem(fmt::format("{}/pack/fields/{}", pointer, spans[i].field), "overlaps field {}",
                    spans[i - 1].field);
}

}  // namespace

void verify_packs(const Scope& scope) {
  for (const Op& op : scope.m.ops) {
    for (size_t i = 0; i < op.launches.size(); ++i) {
      const Launch& launch = op.launches[i];
      if (!launch.args) continue;
      for (size_t a = 0; a < launch.args->size(); ++a)
        if (const auto* pack = std::get_if<Pack>(&(*launch.args)[a]))
          check_pack(scope, op, *pack, fmt::format("{}/args/{}", pointer_to(op, i), a));
    }
  }
}

}  // namespace kern::manifest
