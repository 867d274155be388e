#include "json.h"

#include <simdjson.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "kern/base/assert.h"
#include "kern/text/utf8.h"

namespace kern::text {
namespace {

namespace ondemand = simdjson::ondemand;

constexpr std::string_view kBlanks = " \t\n\r";

std::string_view trim(std::string_view text) {
  const size_t start = text.find_first_not_of(kBlanks);
  if (start == std::string_view::npos) return {};
  return text.substr(start, text.find_last_not_of(kBlanks) - start + 1);
}

/// Walks one value of a document. Its own errors are codes of simdjson too: one way out.
class Reader {
 public:
  simdjson::error_code read(ondemand::value value, size_t depth, Json& out) {
    if (depth > kJsonDepthMax) return simdjson::DEPTH_ERROR;
    ondemand::json_type type;
    if (auto error = value.type().get(type)) return error;
    switch (type) {
      case ondemand::json_type::object:
        return read_object(value, depth, out);
      case ondemand::json_type::array:
        return read_array(value, depth, out);
      case ondemand::json_type::string: {
        out.type = Json::Type::string;
        std::string_view text;
        if (auto error = value.get_string().get(text)) return error;
        out.text = text;
        return simdjson::SUCCESS;
      }
      case ondemand::json_type::boolean:
        return read_literal(value, Json::Type::boolean, out);
      case ondemand::json_type::number:
        return read_literal(value, Json::Type::number, out);
      default:
        return read_literal(value, Json::Type::null, out);
    }
  }

 private:
  static simdjson::error_code read_literal(ondemand::value value, Json::Type type, Json& out) {
    out.type = type;
    out.text = trim(value.raw_json_token());
    // Reading it checks its grammar and lets the walk go on behind it.
    if (type == Json::Type::boolean) return value.get_bool().error();
    if (type == Json::Type::number) return value.get_double().error();
    return out.text == "null" && value.is_null() ? simdjson::SUCCESS : simdjson::N_ATOM_ERROR;
  }

  simdjson::error_code read_array(ondemand::value value, size_t depth, Json& out) {
    out.type = Json::Type::array;
    ondemand::array array;
    if (auto error = value.get_array().get(array)) return error;
    for (auto element : array) {
      ondemand::value item;
      if (auto error = element.get(item)) return error;
      if (auto error = read(item, depth + 1, out.items.emplace_back())) return error;
    }
    return simdjson::SUCCESS;
  }

  simdjson::error_code read_object(ondemand::value value, size_t depth, Json& out) {
    out.type = Json::Type::object;
    ondemand::object object;
    if (auto error = value.get_object().get(object)) return error;
    std::map<std::string, size_t, std::less<>> places;
    for (auto member : object) {
      ondemand::field field;
      if (auto error = std::move(member).get(field)) return error;
      std::string_view key;
      if (auto error = field.unescaped_key().get(key)) return error;
      const auto [place, is_new] = places.try_emplace(std::string(key), out.items.size());
      if (is_new) {
        out.keys.emplace_back(key);
        out.items.emplace_back();
      }
      Json read_value;
      if (auto error = read(field.value(), depth + 1, read_value)) return error;
      out.items[place->second] = std::move(read_value);
    }
    return simdjson::SUCCESS;
  }
};

simdjson::error_code parse_one(std::string_view json, Json& out) {
  // Inside brackets a scalar is read like any other value, and a second value shows.
  std::string wrapped;
  wrapped.reserve(json.size() + 2 + simdjson::SIMDJSON_PADDING);
  wrapped.append("[").append(json).append("]");
  ondemand::parser parser;
  ondemand::document document;
  if (auto error = parser.iterate(wrapped, wrapped.capacity()).get(document)) return error;
  ondemand::array array;
  if (auto error = document.get_array().get(array)) return error;
  size_t count = 0;
  for (auto element : array) {
    ondemand::value value;
    if (auto error = element.get(value)) return error;
    if (++count > 1) return simdjson::TAPE_ERROR;
    if (auto error = Reader().read(value, 1, out)) return error;
  }
  if (count == 0) return simdjson::EMPTY;
  if (document.current_location().error() != simdjson::OUT_OF_BOUNDS) return simdjson::TAPE_ERROR;
  return simdjson::SUCCESS;
}

/// The object that `json` begins with, up to its closing brace. Control characters inside its
/// strings, which models and clients forget to escape, are escaped.
std::string first_object(std::string_view json) {
  std::string out;
  size_t depth = 0;
  bool in_string = false;
  bool is_escaped = false;
  for (const char byte : json) {
    const bool is_control = static_cast<unsigned char>(byte) < 0x20;
    if (in_string && is_control) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(byte));
    } else {
      out += byte;
    }
    if (in_string) {
      in_string = byte != '"' || is_escaped;
      is_escaped = byte == '\\' && !is_escaped;
    } else if (byte == '"') {
      in_string = true;
    } else if (byte == '{' || byte == '[') {
      ++depth;
    } else if ((byte == '}' || byte == ']') && (depth == 0 || --depth == 0)) {
      break;
    }
  }
  return out;
}

simdjson::error_code read_members(std::string_view json, std::vector<JsonMember>& out) {
  const simdjson::padded_string padded(first_object(json));
  ondemand::parser parser;
  ondemand::document document;
  if (auto error = parser.iterate(padded).get(document)) return error;
  ondemand::object object;
  if (auto error = document.get_object().get(object)) return error;
  for (auto member : object) {
    ondemand::field field;
    if (auto error = std::move(member).get(field)) return error;
    std::string_view key;
    if (auto error = field.unescaped_key().get(key)) return error;
    std::string name(key);
    std::string_view raw;
    ondemand::value value = field.value();
    if (auto error = simdjson::to_json_string(value).get(raw)) return error;
    Json parsed;
    if (auto error = parse_one(raw, parsed)) return error;
    const bool is_string = parsed.type == Json::Type::string;
    out.push_back({std::move(name), parsed.type, is_string ? parsed.text : std::string(raw)});
  }
  return simdjson::SUCCESS;
}

void print(const Json& value, JsonStyle style, std::string& out) {
  const bool is_spaced = style == JsonStyle::spaced;
  const auto separate = [&](bool is_first) {
    if (!is_first) out += is_spaced ? ", " : ",";
  };
  switch (value.type) {
    case Json::Type::string:
      out += quote_json(value.text);
      return;
    case Json::Type::array:
      out += '[';
      for (const Json& item : value.items) {
        separate(&item == value.items.data());
        print(item, style, out);
      }
      out += ']';
      return;
    case Json::Type::object: {
      KERN_ASSERT(value.keys.size() == value.items.size());
      std::vector<size_t> order(value.keys.size());
      std::iota(order.begin(), order.end(), size_t{0});
      // Byte order of UTF-8 is code point order.
      if (style == JsonStyle::sorted_compact)
        std::ranges::sort(order, {}, [&](size_t i) -> std::string_view { return value.keys[i]; });
      out += '{';
      for (size_t at = 0; at < order.size(); ++at) {
        separate(at == 0);
        out += quote_json(value.keys[order[at]]);
        out += is_spaced ? ": " : ":";
        print(value.items[order[at]], style, out);
      }
      out += '}';
      return;
    }
    default:
      out += value.text;
  }
}

}  // namespace

const Json* Json::find(std::string_view key) const {
  KERN_ASSERT(keys.empty() || keys.size() == items.size());
  const auto place = std::ranges::find(keys, key);
  return place == keys.end() ? nullptr : &items[static_cast<size_t>(place - keys.begin())];
}

const Json* Json::find_value(std::string_view key) const {
  const Json* member = find(key);
  return member != nullptr && member->type != Type::null ? member : nullptr;
}

std::string_view type_name(Json::Type type) {
  KERN_ASSERT(type <= Json::Type::object);
  constexpr std::string_view kNames[] = {"null", "boolean", "number", "string", "array", "object"};
  return kNames[static_cast<size_t>(type)];
}

Result<Json> parse_json(std::string_view json, std::string_view what) {
  Json out;
  if (const auto error = parse_one(json, out))
    return fail(Kind::caller, "{}: not a JSON value: {}", what, simdjson::error_message(error));
  return out;
}

std::string print_json(const Json& value, JsonStyle style) {
  std::string out;
  print(value, style, out);
  return out;
}

std::optional<std::vector<JsonMember>> parse_members(std::string_view json) {
  std::vector<JsonMember> out;
  if (read_members(json, out)) return std::nullopt;
  return out;
}

Result<std::string> canonical_json(std::string_view json) {
  KERN_TRY(value, parse_json(json, "json"));
  return print_json(value, JsonStyle::sorted_compact);
}

bool is_json(std::string_view text) {
  Json out;
  return parse_one(text, out) == simdjson::SUCCESS;
}

std::string quote_json(std::string_view text) {
  std::string out = "\"";
  for (const char byte : is_utf8(text) ? std::string(text) : replace_broken_utf8(text)) {
    switch (byte) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (static_cast<unsigned char>(byte) < 0x20) {
          out += fmt::format("\\u{:04x}", static_cast<unsigned>(byte));
        } else {
          out += byte;
        }
    }
  }
  return out + '"';
}

}  // namespace kern::text
