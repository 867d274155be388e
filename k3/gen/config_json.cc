#include "gen/config_json.h"

#include <simdjson.h>

namespace k3 {

using namespace kern;

using simdjson::dom::element;

struct ConfigJson::Document {
  simdjson::dom::parser parser;
  element fields;
};

namespace {

Result<element> find(element at, std::string_view path) {
  for (std::string_view left = path; !left.empty();) {
    const size_t dot = left.find('.');
    const std::string_view key = left.substr(0, dot);
    if (const auto error = at[key].get(at); error != simdjson::SUCCESS)
      return fail(Kind::caller, "config: `{}` is missing", path);
    left = dot == std::string_view::npos ? std::string_view{} : left.substr(dot + 1);
  }
  return at;
}

template <class T>
Result<T> read(element fields, std::string_view path, std::string_view expected) {
  KERN_TRY(found, find(fields, path));
  T value;
  if (found.get(value) != simdjson::SUCCESS)
    return fail(Kind::caller, "config: `{}`: expected {}, got {}", path, expected,
                simdjson::minify(found));
  return value;
}

}  // namespace

ConfigJson::ConfigJson(std::unique_ptr<Document> document) : document_(std::move(document)) {}
ConfigJson::ConfigJson(ConfigJson&&) noexcept = default;
ConfigJson::~ConfigJson() = default;

Result<ConfigJson> ConfigJson::parse(std::string_view json) {
  auto document = std::make_unique<Document>();
  const auto error = document->parser.parse(json.data(), json.size(), true).get(document->fields);
  if (error != simdjson::SUCCESS)
    return fail(Kind::caller, "config: not JSON: {}", simdjson::error_message(error));
  if (!document->fields.is_object()) return fail(Kind::caller, "config: expected an object");
  element nested;
  if (document->fields["text_config"].get(nested) == simdjson::SUCCESS) document->fields = nested;
  return ConfigJson(std::move(document));
}

Result<int64_t> ConfigJson::integer(std::string_view path) const {
  return read<int64_t>(document_->fields, path, "an integer");
}

Result<double> ConfigJson::number(std::string_view path) const {
  return read<double>(document_->fields, path, "a number");
}

Result<std::string> ConfigJson::text(std::string_view path) const {
  KERN_TRY(view, read<std::string_view>(document_->fields, path, "a string"));
  return std::string(view);
}

Result<bool> ConfigJson::boolean(std::string_view path) const {
  return read<bool>(document_->fields, path, "true or false");
}

Result<std::vector<int64_t>> ConfigJson::integers(std::string_view path) const {
  KERN_TRY(list, read<simdjson::dom::array>(document_->fields, path, "a list of integers"));
  std::vector<int64_t> values;
  for (const element one : list) {
    int64_t value;
    if (one.get(value) != simdjson::SUCCESS)
      return fail(Kind::caller, "config: `{}`: expected integers, got {}", path,
                  simdjson::minify(one));
    values.push_back(value);
  }
  return values;
}

bool ConfigJson::has(std::string_view path) const {
  return find(document_->fields, path).has_value();
}

}  // namespace k3
