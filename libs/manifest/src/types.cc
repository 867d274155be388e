#include "kern/manifest/types.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "vocabulary.h"

namespace kern::manifest {
namespace {

constexpr int64_t kDtypeSizes[] = {2, 2, 4, 1, 1, 1, 4, 4, 8, 8, 1};

/// Takes "name<inner>" apart; empty when the text has another form.
std::string_view inside(std::string_view text, std::string_view name) {
  if (!text.starts_with(name) || !text.ends_with('>')) return {};
  text.remove_prefix(name.size());
  if (!text.starts_with('<')) return {};
  return text.substr(1, text.size() - 2);
}

}  // namespace

std::string_view to_string(Dtype dtype) {
  return kDtypes[static_cast<size_t>(dtype)];
}
int64_t size_of(Dtype dtype) {
  return kDtypeSizes[static_cast<size_t>(dtype)];
}
std::string_view to_string(BufferKind kind) {
  return kKinds[static_cast<size_t>(kind)];
}
std::string_view to_string(Fill fill) {
  return kFills[static_cast<size_t>(fill)];
}
std::string_view to_string(Direction direction) {
  return kDirections[static_cast<size_t>(direction)];
}

Expr Expr::constant(int64_t value) {
  Expr e;
  e.value = value;
  return e;
}

Expr Expr::of_var(std::string name) {
  Expr e;
  e.op = Op::var;
  e.var = std::move(name);
  return e;
}

Expr Expr::mul(Expr inner, int64_t c) {
  Expr e;
  e.op = Op::mul;
  e.value = c;
  e.operands.push_back(std::move(inner));
  return e;
}

Expr Expr::add(Expr a, Expr b) {
  Expr e;
  e.op = Op::add;
  e.operands.push_back(std::move(a));
  e.operands.push_back(std::move(b));
  return e;
}

Expr Expr::ceil_div(Expr inner, int64_t c) {
  Expr e = mul(std::move(inner), c);
  e.op = Op::ceil_div;
  return e;
}

std::string to_string(const ParamType& type) {
  switch (type.what) {
    case ParamType::What::i32:
      return "i32";
    case ParamType::What::i64:
      return "i64";
    case ParamType::What::f32:
      return "f32";
    case ParamType::What::u8:
      return "u8";
    case ParamType::What::bytes:
      return fmt::format("bytes<{}>", type.bytes);
    case ParamType::What::state:
      return fmt::format("{} state", to_string(type.direction));
    case ParamType::What::buffer:
      break;
  }
  return fmt::format("{} buffer<{}>", to_string(type.direction), to_string(type.dtype));
}

std::optional<ParamType> parse_param_type(std::string_view text) {
  using What = ParamType::What;
  if (text == "i32") return ParamType::scalar(What::i32);
  if (text == "i64") return ParamType::scalar(What::i64);
  if (text == "f32") return ParamType::scalar(What::f32);
  if (text == "u8") return ParamType::scalar(What::u8);
  if (const std::string_view count = inside(text, "bytes"); !count.empty()) {
    int64_t bytes = 0;
    const auto [end, error] = std::from_chars(count.data(), count.data() + count.size(), bytes);
    if (error != std::errc() || end != count.data() + count.size() || bytes < 1 || count[0] == '0')
      return std::nullopt;
    return ParamType{What::bytes, Direction::in, Dtype::bf16, bytes};
  }
  const size_t space = text.find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  const auto direction = position(kDirections, text.substr(0, space));
  if (!direction) return std::nullopt;
  text.remove_prefix(space + 1);
  if (text == "state") return ParamType::state(static_cast<Direction>(*direction));
  const auto dtype = position(kDtypes, inside(text, "buffer"));
  if (!dtype) return std::nullopt;
  return ParamType::buffer(static_cast<Direction>(*direction), static_cast<Dtype>(*dtype));
}

std::string param_type_pattern() {
  return fmt::format("^(i32|i64|f32|u8|bytes<[1-9][0-9]*>|({}) (state|buffer<({})>))$",
                     fmt::join(kDirections, "|"), fmt::join(kDtypes, "|"));
}

bool Manifest::uses_extension(std::string_view name) const {
  return std::find(uses.begin(), uses.end(), name) != uses.end();
}

}  // namespace kern::manifest
