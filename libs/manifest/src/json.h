#pragma once
/// A JSON text as values that can be walked in order, duplicates included. Nothing is copied and no
/// tree is built: a value is a place in the text, and the text is checked where it is walked, every
/// part of it once. Only json.cc knows which parser is underneath.
/// Thread safety: one thread, reading included.
/// Ownership: a document borrows its text; a Json and the views it gives live as long as both.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tl/expected.hpp>

#include "function_ref.h"

namespace kern::manifest {

class JsonText;

/// A list or object as it is written, and of how many brackets, commas, colons and scalars.
struct Spelling {
  std::string_view text;
  size_t tokens = 0;
};

class Json {
 public:
  enum class Type : uint8_t { null, boolean, integer, real, text, array, object };

  Json() = default;  ///< no value; nothing may be asked of it
  Type type() const;
  /// What it is, for a sentence: "a number", "an object".
  std::string_view type_name() const;
  bool boolean() const;
  /// Integers beyond int64 are of type real.
  int64_t integer() const;
  double real() const;
  std::string_view text() const;
  /// Both stop where the text stops being JSON; `JsonDocument::finish` tells.
  void each_member(FunctionRef<void(std::string_view, Json)> visit) const;
  /// Goes on while `visit` says so.
  void each_member_while(FunctionRef<bool(std::string_view, Json)> visit) const;
  void each_element(FunctionRef<void(size_t, Json)> visit) const;
  /// Of a list or object that was just walked.
  Spelling spelling() const;
  /// Whether the value has the same bytes as one that was walked, and so needs no walk of its own.
  bool is_spelled(const Spelling& spelling) const;

 private:
  friend class JsonText;
  friend class JsonDocument;
  Json(JsonText& text, size_t at) : text_(&text), at_(at) {}

  JsonText* text_ = nullptr;
  size_t at_ = 0;
};

/// What is not JSON, in the parser's words, and the line where that is known.
struct NotJson {
  std::string reason;
  size_t line = 0;
};

class JsonDocument {
 public:
  /// Refuses what cannot be JSON. `text` must outlive the document.
  static tl::expected<JsonDocument, NotJson> read(std::string_view text);
  JsonDocument(JsonDocument&&) noexcept;
  ~JsonDocument();
  Json root() const;
  /// Checks what no walk has come by. Says what is not JSON; values read before mean something only
  /// when nothing is.
  std::optional<NotJson> finish() const;

 private:
  explicit JsonDocument(std::unique_ptr<JsonText> text);
  std::unique_ptr<JsonText> text_;
};

}  // namespace kern::manifest
