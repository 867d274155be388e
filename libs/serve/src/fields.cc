#include "fields.h"

namespace kern::serve {

Fields::Fields(Json object) : object_(object) {
  if (!object.is(JsonType::object)) {
    refuse("", fmt::format("the body must be a JSON object, got {}", to_string(object.type())));
    return;
  }
  if (const auto key = object.duplicate_key())
    refuse(*key, fmt::format("`{}` stands twice in the body", *key));
}

void Fields::refuse(std::string_view name, std::string message, std::string code) {
  if (error_) return;
  error_ = ApiError{.status = 400,
                    .message = std::move(message),
                    .param = std::string(name),
                    .code = std::move(code)};
}

void Fields::refuse_type(std::string_view name, std::string_view wanted, const Json& got) {
  refuse(name, fmt::format("`{}` must be {}, got {}", name, wanted, to_string(got.type())));
}

bool Fields::boolean(std::string_view name, bool fallback) {
  const auto field = object_.get(name);
  if (!field || error_) return fallback;
  const auto value = field->boolean();
  if (!value) refuse_type(name, "a boolean", *field);
  return value.value_or(fallback);
}

double Fields::number(std::string_view name, double fallback, double low, double high) {
  const auto field = object_.get(name);
  if (!field || error_) return fallback;
  const auto value = field->number();
  if (!value) {
    refuse_type(name, "a number", *field);
    return fallback;
  }
  if (*value < low || *value > high) {
    refuse(name, fmt::format("`{}` must lie within [{}, {}], got {}", name, low, high, *value));
    return fallback;
  }
  return *value;
}

std::optional<int64_t> Fields::integer(std::string_view name, int64_t low, int64_t high) {
  const auto field = object_.get(name);
  if (!field || error_) return std::nullopt;
  const auto value = field->integer();
  if (!value) {
    refuse_type(name, "an integer", *field);
    return std::nullopt;
  }
  if (*value < low || *value > high) {
    refuse(name, fmt::format("`{}` must lie within [{}, {}], got {}", name, low, high, *value));
    return std::nullopt;
  }
  return value;
}

std::optional<std::string> Fields::string(std::string_view name) {
  const auto field = object_.get(name);
  if (!field || error_) return std::nullopt;
  const auto value = field->string();
  if (!value) {
    refuse_type(name, "a string", *field);
    return std::nullopt;
  }
  return std::string(*value);
}

}  // namespace kern::serve
