#include "json.h"

#include <simdjson.h>

#include <bit>
#include <cmath>
#include <limits>
#include <set>

#include "kern/base/assert.h"

namespace kern::serve {

namespace dom = simdjson::dom;

/// Turns handles into the parser's elements and back.
struct JsonAccess {
  static_assert(sizeof(dom::element) == sizeof(Json));
  static_assert(std::is_trivially_copyable_v<dom::element>);

  static dom::element open(const Json& handle) {
    dom::element element;
    std::memcpy(static_cast<void*>(&element), &handle, sizeof(element));
    return element;
  }
  static Json close(const dom::element& element) {
    Json handle;
    std::memcpy(static_cast<void*>(&handle), &element, sizeof(handle));
    return handle;
  }
};

struct JsonDocument::Parsed {
  dom::parser parser;
  dom::element root;
};

JsonDocument::JsonDocument(std::unique_ptr<Parsed> parsed) : parsed_(std::move(parsed)) {}
JsonDocument::JsonDocument(JsonDocument&&) noexcept = default;
JsonDocument& JsonDocument::operator=(JsonDocument&&) noexcept = default;
JsonDocument::~JsonDocument() = default;

Result<JsonDocument> JsonDocument::parse(std::string_view text, int64_t depth_max) {
  KERN_ASSERT(depth_max > 0, "a nesting of {}", depth_max);
  auto parsed = std::make_unique<Parsed>();
  // The parser counts the scalar inside the innermost bracket as one more level.
  if (parsed->parser.allocate(text.size() + 1, static_cast<size_t>(depth_max) + 1))
    return fail(Kind::busy, "no memory to parse a body of {} bytes", text.size());
  const auto error = parsed->parser.parse(text.data(), text.size()).get(parsed->root);
  if (error == simdjson::DEPTH_ERROR)
    return fail(Kind::caller, "the body nests deeper than {} levels", depth_max);
  if (error == simdjson::EMPTY)
    return fail(Kind::caller, "the body is empty, expected one JSON object");
  if (error)
    return fail(Kind::caller, "the body is not valid JSON: {}", simdjson::error_message(error));
  return JsonDocument(std::move(parsed));
}

Json JsonDocument::root() const {
  return JsonAccess::close(parsed_->root);
}

std::string_view to_string(JsonType type) {
  switch (type) {
    case JsonType::null:
      return "null";
    case JsonType::boolean:
      return "a boolean";
    case JsonType::integer:
      return "an integer";
    case JsonType::number:
      return "a number";
    case JsonType::string:
      return "a string";
    case JsonType::array:
      return "a list";
    case JsonType::object:
      return "an object";
  }
  return "nothing";
}

JsonType Json::type() const {
  switch (JsonAccess::open(*this).type()) {
    case dom::element_type::ARRAY:
      return JsonType::array;
    case dom::element_type::OBJECT:
      return JsonType::object;
    case dom::element_type::INT64:
    case dom::element_type::UINT64:
      return JsonType::integer;
    case dom::element_type::DOUBLE:
      return JsonType::number;
    case dom::element_type::STRING:
      return JsonType::string;
    case dom::element_type::BOOL:
      return JsonType::boolean;
    case dom::element_type::NULL_VALUE:
      return JsonType::null;
  }
  return JsonType::null;
}

std::optional<Json> Json::get(std::string_view name) const {
  dom::object object;
  dom::element value;
  if (JsonAccess::open(*this).get(object) || object.at_key(name).get(value)) return std::nullopt;
  if (value.is_null()) return std::nullopt;
  return JsonAccess::close(value);
}

std::optional<std::string_view> Json::duplicate_key() const {
  dom::object object;
  if (JsonAccess::open(*this).get(object)) return std::nullopt;
  std::set<std::string_view> seen;
  for (const auto field : object)
    if (!seen.insert(field.key).second) return field.key;
  return std::nullopt;
}

std::vector<std::pair<std::string_view, Json>> Json::fields() const {
  std::vector<std::pair<std::string_view, Json>> out;
  dom::object object;
  if (JsonAccess::open(*this).get(object)) return out;
  for (const auto field : object) out.emplace_back(field.key, JsonAccess::close(field.value));
  return out;
}

size_t Json::size() const {
  // The parser's own count saturates, so elements are counted.
  dom::array array;
  size_t count = 0;
  if (JsonAccess::open(*this).get(array)) return 0;
  for ([[maybe_unused]] const auto element : array) ++count;
  return count;
}

std::vector<Json> Json::items() const {
  std::vector<Json> out;
  dom::array array;
  if (JsonAccess::open(*this).get(array)) return out;
  for (const auto element : array) out.push_back(JsonAccess::close(element));
  return out;
}

std::optional<std::vector<int32_t>> Json::integers() const {
  dom::array array;
  if (JsonAccess::open(*this).get(array)) return std::nullopt;
  std::vector<int32_t> out;
  for (const auto element : array) {
    int64_t value = 0;
    if (element.get(value) || value < std::numeric_limits<int32_t>::min() ||
        value > std::numeric_limits<int32_t>::max())
      return std::nullopt;
    out.push_back(static_cast<int32_t>(value));
  }
  return out;
}

std::optional<bool> Json::boolean() const {
  bool value = false;
  if (JsonAccess::open(*this).get(value)) return std::nullopt;
  return value;
}

std::optional<int64_t> Json::integer() const {
  const auto element = JsonAccess::open(*this);
  int64_t value = 0;
  if (!element.get(value)) return value;
  double real = 0;
  if (element.get(real) || real != std::floor(real) || std::abs(real) > 1e15) return std::nullopt;
  return static_cast<int64_t>(real);
}

std::optional<double> Json::number() const {
  double value = 0;
  if (JsonAccess::open(*this).get(value)) return std::nullopt;
  return value;
}

std::optional<std::string_view> Json::string() const {
  std::string_view value;
  if (JsonAccess::open(*this).get(value)) return std::nullopt;
  return value;
}

}  // namespace kern::serve
