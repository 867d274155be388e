#include "json.h"

#include <simdjson.h>

#include <set>

namespace kern::safetensors {
namespace {

namespace dom = simdjson::dom;

constexpr size_t kDepthMax = 8;
constexpr size_t kExtentsMax = 16;

Result<dom::object> parse_object(dom::parser& parser, std::string_view json,
                                 std::string_view what) {
  if (const auto error = parser.allocate(json.size() + 1, kDepthMax); error != simdjson::SUCCESS)
    return fail(Kind::weight_artifact, "{}: {}", what, simdjson::error_message(error));
  dom::element root;
  const auto error = parser.parse(json.data(), json.size(), true).get(root);
  if (error == simdjson::DEPTH_ERROR)
    return fail(Kind::weight_artifact, "{} nests deeper than {} levels", what, kDepthMax);
  if (error == simdjson::UTF8_ERROR)
    return fail(Kind::weight_artifact, "{} is not valid UTF-8", what);
  if (error != simdjson::SUCCESS)
    return fail(Kind::weight_artifact, "{} is not JSON: {}", what, simdjson::error_message(error));
  dom::object object;
  if (root.get(object) != simdjson::SUCCESS)
    return fail(Kind::weight_artifact, "{} is not a JSON object", what);
  return object;
}

Result<std::vector<int64_t>> parse_shape(std::string_view tensor, dom::element value) {
  dom::array array;
  if (value.get(array) != simdjson::SUCCESS)
    return fail(Kind::weight_artifact, "tensor `{}`: `shape` is not an array", tensor);
  std::vector<int64_t> shape;
  for (const dom::element extent : array) {
    int64_t number = 0;
    if (extent.get(number) != simdjson::SUCCESS || number < 0)
      return fail(
          Kind::weight_artifact,
          "tensor `{}`: `shape` holds `{}`, expected whole numbers of at least 0 below 2^63",
          tensor, simdjson::minify(extent));
    if (shape.size() == kExtentsMax)
      return fail(Kind::weight_artifact, "tensor `{}`: `shape` has more than {} extents", tensor,
                  kExtentsMax);
    shape.push_back(number);
  }
  return shape;
}

Result<std::pair<uint64_t, uint64_t>> parse_offsets(std::string_view tensor, dom::element value) {
  uint64_t numbers[2] = {0, 0};
  dom::array array;
  size_t count = 0;
  bool good = value.get(array) == simdjson::SUCCESS;
  if (good) {
    for (const dom::element each : array) {
      good = good && count < 2 && each.get(numbers[count]) == simdjson::SUCCESS;
      if (!good) break;
      ++count;
    }
  }
  if (!good || count != 2)
    return fail(Kind::weight_artifact,
                "tensor `{}`: `data_offsets` is `{}`, expected two whole numbers of at least 0",
                tensor, simdjson::minify(value));
  return std::pair(numbers[0], numbers[1]);
}

Result<HeaderEntry> parse_entry(std::string_view name, dom::element value) {
  dom::object object;
  if (value.get(object) != simdjson::SUCCESS)
    return fail(Kind::weight_artifact, "tensor `{}`: its entry is not a JSON object", name);
  HeaderEntry entry;
  entry.name = name;
  std::set<std::string_view> seen;
  for (const auto [key, field] : object) {
    if (!seen.insert(key).second)
      return fail(Kind::weight_artifact, "tensor `{}`: the key `{}` stands twice", name, key);
    if (key == "dtype") {
      std::string_view word;
      if (field.get(word) != simdjson::SUCCESS)
        return fail(Kind::weight_artifact, "tensor `{}`: `dtype` is not a string", name);
      entry.dtype = word;
    } else if (key == "shape") {
      KERN_TRY(shape, parse_shape(name, field));
      entry.shape = std::move(shape);
    } else if (key == "data_offsets") {
      KERN_TRY(offsets, parse_offsets(name, field));
      std::tie(entry.begin, entry.end) = offsets;
    } else {
      return fail(Kind::weight_artifact,
                  "tensor `{}`: unknown key `{}`, expected dtype, shape and data_offsets", name,
                  key);
    }
  }
  for (const std::string_view key : {"dtype", "shape", "data_offsets"})
    if (!seen.contains(key))
      return fail(Kind::weight_artifact, "tensor `{}`: the key `{}` is missing", name, key);
  return entry;
}

Result<void> check_metadata(dom::element value) {
  dom::object object;
  if (value.get(object) != simdjson::SUCCESS)
    return fail(Kind::weight_artifact, "`__metadata__` is not a JSON object");
  for (const auto [key, field] : object)
    if (!field.is_string())
      return fail(Kind::weight_artifact, "`__metadata__`: the value of `{}` is not a string", key);
  return {};
}

}  // namespace

Result<std::vector<HeaderEntry>> parse_header(std::string_view json) {
  dom::parser parser;
  KERN_TRY(root, parse_object(parser, json, "the header"));
  std::vector<HeaderEntry> entries;
  std::set<std::string_view> seen;
  for (const auto [key, value] : root) {
    if (!seen.insert(key).second)
      return fail(Kind::weight_artifact, "tensor `{}` stands twice in the header", key);
    if (key == "__metadata__") {
      KERN_TRY_VOID(check_metadata(value));
      continue;
    }
    KERN_TRY(entry, parse_entry(key, value));
    entries.push_back(std::move(entry));
  }
  return entries;
}

Result<std::vector<std::pair<std::string, std::string>>> parse_index(std::string_view json) {
  dom::parser parser;
  KERN_TRY(root, parse_object(parser, json, "the index"));
  dom::object map;
  if (root["weight_map"].get(map) != simdjson::SUCCESS)
    return fail(Kind::weight_artifact, "the index has no object `weight_map`");
  std::vector<std::pair<std::string, std::string>> rows;
  std::set<std::string_view> seen;
  for (const auto [name, value] : map) {
    if (!seen.insert(name).second)
      return fail(Kind::weight_artifact, "tensor `{}` stands twice in the index", name);
    std::string_view file;
    if (value.get(file) != simdjson::SUCCESS)
      return fail(Kind::weight_artifact, "tensor `{}`: its shard is not a string", name);
    const bool plain = !file.empty() && file.find('/') == std::string_view::npos && file != "." &&
                       file != ".." && file.find('\0') == std::string_view::npos;
    if (!plain)
      return fail(Kind::weight_artifact,
                  "tensor `{}`: its shard `{}` is not a file name of the same folder", name, file);
    rows.emplace_back(name, file);
  }
  return rows;
}

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<int>(c));
    } else {
      out += c;
    }
  }
  out += '"';
}

}  // namespace kern::safetensors
