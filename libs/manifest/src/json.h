#pragma once
/// A parsed JSON text as values that can be walked in order, duplicates included. Only json.cc
/// knows which parser is underneath. Thread safety: reading is; a document is one thread's to make.
/// Ownership: a Json and the views it gives live as long as its JsonDocument.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <tl/expected.hpp>

#include "function_ref.h"

namespace kern::manifest {

class Json {
 public:
  enum class Type : uint8_t { null, boolean, integer, real, text, array, object };

  Type type() const;
  /// What it is, for a sentence: "a number", "an object".
  std::string_view type_name() const;
  bool boolean() const;
  /// Unsigned values beyond int64 are of type real.
  int64_t integer() const;
  double real() const;
  std::string_view text() const;
  void each_member(FunctionRef<void(std::string_view, Json)> visit) const;
  void each_element(FunctionRef<void(size_t, Json)> visit) const;
  size_t size_hint() const;  ///< of an array

 private:
  friend class JsonDocument;
  friend struct JsonAccess;
  alignas(8) std::byte place_[16];
};

class JsonDocument {
 public:
  /// Refuses with the parser's own words.
  static tl::expected<JsonDocument, std::string> read(std::string_view text);
  JsonDocument(JsonDocument&&) noexcept;
  ~JsonDocument();
  Json root() const;

 private:
  struct Parser;
  explicit JsonDocument(std::unique_ptr<Parser> parser);
  std::unique_ptr<Parser> parser_;
};

}  // namespace kern::manifest
