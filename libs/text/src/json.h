#pragma once
/// A JSON value with the text of its literals: what the adapters of this library read from.
/// Objects keep the order of the text; of a repeated key the last value counts.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kern/base/result.h"
#include "kern/text/json_text.h"

namespace kern::text {

struct Json {
  enum class Type { null, boolean, number, string, array, object };
  Type type = Type::null;
  std::string text;               ///< decoded string, or the literal of a scalar
  std::vector<std::string> keys;  ///< of an object, beside `items`
  std::vector<Json> items;        ///< of an array or an object

  /// The member of an object; nothing when absent or when this is no object.
  const Json* find(std::string_view key) const;
  /// The same, but a null member counts as absent.
  const Json* find_value(std::string_view key) const;
  bool is_true() const { return type == Type::boolean && text == "true"; }
};

/// "string", "number", … for error sentences and for the type of an argument.
std::string_view type_name(Json::Type type);

/// One JSON value and nothing else; `what` names it in the error.
Result<Json> parse_json(std::string_view json, std::string_view what);

enum class JsonStyle {
  sorted_compact,  ///< {"a":1,"b":[2]} with keys sorted
  spaced,          ///< {"b": 1, "a": [2, 3]} in the order of the text
};
std::string print_json(const Json& value, JsonStyle style);

/// A member of an object's text: the decoded string, or the literal text of any other value.
struct JsonMember {
  std::string key;
  Json::Type type;
  std::string text;
};
/// The members of the JSON object that `json` begins with, repeated keys kept; what follows the
/// object is ignored. Nothing when `json` does not begin with a well-formed object.
std::optional<std::vector<JsonMember>> parse_members(std::string_view json);

}  // namespace kern::text
