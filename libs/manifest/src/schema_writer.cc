#include "schema_writer.h"

#include <algorithm>

#include "kern/base/assert.h"
#include "kern/manifest/schema.h"

namespace kern::manifest {

using Layout = JsonWriter::Layout;

namespace {

/// Definitions stand in `$defs` of the whole.
constexpr size_t kDefinitionDepth = 2;

}  // namespace

void SchemaWriter::open(Layout layout) {
  out_.open_object(layout);
  if (!about_.empty()) pair("description", std::exchange(about_, {}));
}

void SchemaWriter::pair(std::string_view key, std::string_view value) {
  out_.key(key);
  out_.text(value);
}

void SchemaWriter::type(std::initializer_list<std::string_view> types) {
  if (types.size() == 1) return pair("type", *types.begin());
  out_.key("type");
  out_.open_array();
  for (const std::string_view type : types) out_.text(type);
  out_.close_array();
}

void SchemaWriter::required(std::initializer_list<std::string_view> keys) {
  out_.key("required");
  out_.open_array();
  for (const std::string_view key : keys) out_.text(key);
  out_.close_array();
}

bool SchemaWriter::begin(std::string_view name) {
  open();
  pair("$ref", fmt::format("#/$defs/{}", name));
  close();
  auto at = std::find_if(definitions_.begin(), definitions_.end(),
                         [&](const Definition& one) { return one.name == name; });
  const auto index = static_cast<size_t>(at - definitions_.begin());
  if (std::any_of(open_.begin(), open_.end(),
                  [&](const Open& one) { return one.definition == index; }))
    return false;
  if (at == definitions_.end()) definitions_.push_back({std::string(name), {}});
  open_.push_back({index, std::exchange(out_, JsonWriter(kDefinitionDepth))});
  return true;
}

void SchemaWriter::end() {
  Definition& definition = definitions_[open_.back().definition];
  std::string text = std::exchange(out_, std::move(open_.back().outer)).take();
  open_.pop_back();
  KERN_ASSERT(definition.text.empty() || definition.text == text, "`{}` names two things",
              definition.name);
  definition.text = std::move(text);
}

void SchemaWriter::property(const Field& field) {
  out_.key(field.key);
  about_ = field.about;
  if (field.need != Need::nullable && field.need != Need::one_nullable)
    return field.read(Json(), At{});
  any_of([&] { plain({"null"}); }, [&] { field.read(Json(), At{}); });
}

void SchemaWriter::object(std::string_view name, std::initializer_list<Field> fields,
                          const Companion* companion) {
  if (!begin(name)) return;
  open(Layout::broken);
  type({"object"});
  out_.key("properties");
  out_.open_object(Layout::broken);
  for (const Field& field : fields)
    if (field.until == kNewest) property(field);
  out_.close_object();
  keys_that_must_stand(fields, companion);
  out_.key("additionalProperties");
  out_.boolean(false);
  close();
  end();
}

void SchemaWriter::keys_that_must_stand(std::initializer_list<Field> fields,
                                        const Companion* companion) {
  const auto each = [&](auto... needs) {
    std::vector<const Field*> found;
    for (const Field& field : fields)
      if (((field.need == needs) || ...)) found.push_back(&field);
    return found;
  };
  if (const auto found = each(Need::required); !found.empty()) {
    out_.key("required");
    out_.open_array();
    for (const Field* field : found) out_.text(field->key);
    out_.close_array();
  }
  if (const auto found = each(Need::one, Need::one_nullable); !found.empty()) {
    out_.key("oneOf");
    out_.open_array();
    for (const Field* field : found) {
      open();
      required({field->key});
      if (field->need == Need::one_nullable) {
        out_.key("properties");
        out_.written(fmt::format(R"({{"{}": {{"not": {{"type": "null"}}}}}})", field->key));
      }
      close();
    }
    out_.close_array();
  }
  if (companion == nullptr) return;
  out_.key("dependentSchemas");
  open();
  out_.key(companion->key);
  any_of(
      [&] {
        open();
        required({companion->first});
        close();
      },
      [&] {
        open();
        required({companion->second});
        close();
      });
  close();
}

void SchemaWriter::named(Describe describe, EmptyName empty) {
  open();
  type({"object"});
  if (empty == EmptyName::refused) {
    out_.key("propertyNames");
    name();
  }
  out_.key("additionalProperties");
  describe();
  close();
}

void SchemaWriter::list(Describe describe, size_t at_least) {
  open();
  type({"array"});
  if (at_least != 0) {
    out_.key("minItems");
    out_.integer(static_cast<int64_t>(at_least));
  }
  out_.key("items");
  describe();
  close();
}

std::string SchemaWriter::aside(Describe describe) {
  JsonWriter outer = std::exchange(out_, JsonWriter(kDefinitionDepth));
  describe();
  return std::exchange(out_, std::move(outer)).take();
}

void SchemaWriter::list_of(size_t count, Describe describe) {
  open();
  type({"array"});
  std::vector<std::string> elements;
  for (size_t i = 0; i < count; ++i) elements.push_back(aside(describe));
  if (std::count(elements.begin(), elements.end(), elements[0]) == std::ssize(elements)) {
    out_.key("items");
    out_.written(elements[0]);
  } else {
    out_.key("prefixItems");
    out_.open_array();
    for (const std::string& element : elements) out_.written(element);
    out_.close_array();
  }
  for (const std::string_view key : {"minItems", "maxItems"}) {
    out_.key(key);
    out_.integer(static_cast<int64_t>(count));
  }
  close();
}

void SchemaWriter::any_of(Describe first, Describe second) {
  open();
  out_.key("anyOf");
  out_.open_array();
  first();
  second();
  out_.close_array();
  close();
}

void SchemaWriter::choose(std::string_view key, std::string_view prefix, Describe with,
                          Describe without) {
  open();
  out_.key("if");
  open();
  out_.key("properties");
  open();
  out_.key(key);
  open();
  type({"string"});
  pair("pattern", fmt::format("^{}", prefix));
  close();
  close();
  required({key});
  close();
  out_.key("then");
  with();
  out_.key("else");
  without();
  close();
}

void SchemaWriter::integer(int64_t min, int64_t max) {
  open();
  type({"integer", "string"});  // a string names a constant
  out_.key("minimum");
  out_.integer(min);
  out_.key("maximum");
  out_.integer(max);
  close();
}

void SchemaWriter::exactly(int64_t value) {
  open();
  out_.key("const");
  out_.integer(value);
  close();
}

void SchemaWriter::plain(std::initializer_list<std::string_view> types) {
  open();
  type(types);
  close();
}

void SchemaWriter::name() {
  open();
  type({"string"});
  out_.key("minLength");
  out_.integer(1);
  close();
}

void SchemaWriter::words(Words words) {
  open();
  out_.key("enum");
  out_.open_array();
  for (const std::string_view word : words) out_.text(word);
  out_.close_array();
  close();
}

void SchemaWriter::matching(std::string_view pattern) {
  open();
  type({"string"});
  pair("pattern", pattern);
  close();
}

std::string SchemaWriter::finish(std::string_view root) {
  KERN_ASSERT(open_.empty());
  out_ = JsonWriter();
  out_.open_object(Layout::broken);
  pair("$schema", "https://json-schema.org/draft/2020-12/schema");
  pair("title", fmt::format("manifest, schema_version {}", kNewest));
  pair("description",
       "What is well-formed. Where an integer or a number may stand, a string names one of "
       "`constants`; where an expression or an extent may stand, also one of `vars`. Beyond a "
       "schema: names that stand twice, and everything `kern verify` proves.");
  pair("$ref", fmt::format("#/$defs/{}", root));
  out_.key("$defs");
  out_.open_object(Layout::broken);
  for (const Definition& definition : definitions_) {
    out_.key(definition.name);
    out_.written(definition.text);
  }
  out_.close_object();
  out_.close_object();
  return out_.take() + '\n';
}

std::string schema() {
  SchemaWriter writer;
  Reader reader(writer);
  Manifest ignored;
  read_manifest(reader, Json(), At{}, ignored, true);
  KERN_ASSERT(reader.ok());
  return writer.finish("manifest");
}

}  // namespace kern::manifest
