#include "json.h"

#include <simdjson.h>

#include <cstring>

#include "kern/base/assert.h"

namespace kern::manifest {

namespace dom = simdjson::dom;
static_assert(std::is_trivially_copyable_v<dom::element>);
static_assert(sizeof(dom::element) == 16 && alignof(dom::element) == 8);

struct JsonAccess {
  static Json wrap(dom::element element) {
    Json json;
    std::memcpy(json.place_, &element, sizeof element);
    return json;
  }
  static dom::element unwrap(const Json& json) {
    dom::element element;
    std::memcpy(static_cast<void*>(&element), json.place_, sizeof element);
    return element;
  }
};

namespace {

/// The value of a typed read that `type()` promised.
template <class T>
T take(const simdjson::simdjson_result<T>& result) {
  T value{};
  const simdjson::error_code error = simdjson::simdjson_result<T>(result).get(value);
  KERN_ASSERT(error == simdjson::SUCCESS);
  return value;
}

dom::element at(const Json& json) {
  return JsonAccess::unwrap(json);
}

}  // namespace

Json::Type Json::type() const {
  switch (at(*this).type()) {
    case dom::element_type::NULL_VALUE:
      return Type::null;
    case dom::element_type::BOOL:
      return Type::boolean;
    case dom::element_type::INT64:
      return Type::integer;
    case dom::element_type::UINT64:
    case dom::element_type::DOUBLE:
      return Type::real;
    case dom::element_type::STRING:
      return Type::text;
    case dom::element_type::ARRAY:
      return Type::array;
    case dom::element_type::OBJECT:
      break;
  }
  return Type::object;
}

std::string_view Json::type_name() const {
  switch (type()) {
    case Type::null:
      return "null";
    case Type::boolean:
      return "a boolean";
    case Type::integer:
    case Type::real:
      return "a number";
    case Type::text:
      return "a string";
    case Type::array:
      return "a list";
    case Type::object:
      break;
  }
  return "an object";
}

bool Json::boolean() const {
  return take(at(*this).get_bool());
}
int64_t Json::integer() const {
  return take(at(*this).get_int64());
}
double Json::real() const {
  return take(at(*this).get_double());
}
std::string_view Json::text() const {
  return take(at(*this).get_string());
}

void Json::each_member(FunctionRef<void(std::string_view, Json)> visit) const {
  for (const auto [key, value] : take(at(*this).get_object())) visit(key, JsonAccess::wrap(value));
}

void Json::each_element(FunctionRef<void(size_t, Json)> visit) const {
  size_t index = 0;
  for (const dom::element value : take(at(*this).get_array()))
    visit(index++, JsonAccess::wrap(value));
}

size_t Json::size_hint() const {
  return take(at(*this).get_array()).size();
}

struct JsonDocument::Parser {
  dom::parser parser;
  dom::element root;
};

JsonDocument::JsonDocument(std::unique_ptr<Parser> parser) : parser_(std::move(parser)) {}
JsonDocument::JsonDocument(JsonDocument&&) noexcept = default;
JsonDocument::~JsonDocument() = default;
Json JsonDocument::root() const {
  return JsonAccess::wrap(parser_->root);
}

tl::expected<JsonDocument, std::string> JsonDocument::read(std::string_view text) {
  auto parser = std::make_unique<Parser>();
  const auto error = parser->parser.parse(text.data(), text.size(), true).get(parser->root);
  if (error != simdjson::SUCCESS)
    return tl::unexpected<std::string>(simdjson::error_message(error));
  return JsonDocument(std::move(parser));
}

}  // namespace kern::manifest
