#pragma once
/// Writes JSON: commas and escapes are its business, the order of keys is the caller's.
/// Text that is not UTF-8 comes out with U+FFFD in place of each bad byte, so the result is always
/// valid JSON. Numbers that JSON cannot spell come out as null.
/// Thread safety: one thread each.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kern::serve {

class JsonWriter {
 public:
  JsonWriter& begin_object();
  JsonWriter& end_object();
  JsonWriter& begin_array();
  JsonWriter& end_array();
  JsonWriter& key(std::string_view name);

  JsonWriter& string(std::string_view text);
  JsonWriter& integer(int64_t number);
  /// A float's shortest spelling; null when not finite.
  JsonWriter& number(float number);
  JsonWriter& boolean(bool flag);
  JsonWriter& null();
  /// Text that is JSON already.
  JsonWriter& raw(std::string_view json);

  JsonWriter& field(std::string_view name, std::string_view text) { return key(name).string(text); }
  JsonWriter& field(std::string_view name, const char* text) { return key(name).string(text); }
  JsonWriter& field(std::string_view name, int64_t value) { return key(name).integer(value); }

  const std::string& text() const { return out_; }
  std::string take();

 private:
  void separate();
  void open(char bracket);
  void close(char bracket);

  std::string out_;
  bool fresh_ = true;  ///< nothing stands before the next value in its object or array
  int depth_ = 0;
};

/// Appends `text` to `out` as a JSON string with its quotes.
void append_json_string(std::string& out, std::string_view text);

/// How many bytes the UTF-8 character at the start of `text` has; 0 when it is not a whole valid
/// one.
size_t utf8_character_bytes(std::string_view text);

/// `text` with U+FFFD in place of each byte that is not UTF-8.
std::string valid_utf8(std::string_view text);

}  // namespace kern::serve
