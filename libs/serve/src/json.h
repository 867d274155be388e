#pragma once
/// Parsed request bodies. A Json is a handle into a JsonDocument; asking a wrong question of it is
/// answered with nothing, never with an error.
/// Thread safety: one thread each. Lifetime: a handle lives as long as its document.
/// Does not: keep the spelling of numbers, nor of white space.

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "kern/base/result.h"

namespace kern::serve {

enum class JsonType : uint8_t { null, boolean, integer, number, string, array, object };

/// "null", "a boolean", "an integer", "a number", "a string", "a list", "an object".
std::string_view to_string(JsonType type);

class Json {
 public:
  JsonType type() const;
  bool is(JsonType wanted) const { return type() == wanted; }

  /// The field of an object; a field that is null counts as absent.
  std::optional<Json> get(std::string_view name) const;
  /// A key that stands twice in this object.
  std::optional<std::string_view> duplicate_key() const;
  std::vector<std::pair<std::string_view, Json>> fields() const;

  size_t size() const;
  std::vector<Json> items() const;
  /// All elements, when each is an integer that fits.
  std::optional<std::vector<int32_t>> integers() const;

  std::optional<bool> boolean() const;
  std::optional<int64_t> integer() const;
  /// Of an integer too.
  std::optional<double> number() const;
  std::optional<std::string_view> string() const;

 private:
  friend struct JsonAccess;

  const void* document_ = nullptr;
  size_t at_ = 0;
};

class JsonDocument {
 public:
  /// Parses a whole body. Kind caller, with the reason and where.
  static Result<JsonDocument> parse(std::string_view text, int64_t depth_max);
  JsonDocument(JsonDocument&&) noexcept;
  JsonDocument& operator=(JsonDocument&&) noexcept;
  ~JsonDocument();
  Json root() const;

 private:
  struct Parsed;
  explicit JsonDocument(std::unique_ptr<Parsed> parsed);
  std::unique_ptr<Parsed> parsed_;
};

}  // namespace kern::serve
