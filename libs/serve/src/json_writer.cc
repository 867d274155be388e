#include "json_writer.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>

#include "kern/base/assert.h"

namespace kern::serve {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

bool is_continuation(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) == 0x80;
}

/// Whether a byte stands for itself in a JSON string.
bool is_plain(char byte) {
  return byte >= 0x20 && byte != '"' && byte != '\\';
}

/// The short escape of a control character, or an empty view.
std::string_view short_escape(char byte) {
  switch (byte) {
    case '"':
      return "\\\"";
    case '\\':
      return "\\\\";
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    case '\b':
      return "\\b";
    case '\f':
      return "\\f";
    default:
      return {};
  }
}

}  // namespace

size_t utf8_character_bytes(std::string_view text) {
  if (text.empty()) return 0;
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return 1;
  const size_t bytes = lead >= 0xC2 && lead < 0xE0   ? 2
                       : lead >= 0xE0 && lead < 0xF0 ? 3
                       : lead >= 0xF0 && lead < 0xF5 ? 4
                                                     : 0;
  if (bytes == 0 || text.size() < bytes) return 0;
  for (size_t i = 1; i < bytes; ++i)
    if (!is_continuation(text[i])) return 0;
  const auto second = static_cast<unsigned char>(text[1]);
  const bool overlong = (lead == 0xE0 && second < 0xA0) || (lead == 0xF0 && second < 0x90);
  const bool surrogate = lead == 0xED && second >= 0xA0;
  const bool too_high = lead == 0xF4 && second >= 0x90;
  return overlong || surrogate || too_high ? 0 : bytes;
}

std::string valid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t bytes = utf8_character_bytes(text);
    out += bytes == 0 ? kReplacement : text.substr(0, bytes);
    text.remove_prefix(bytes == 0 ? 1 : bytes);
  }
  return out;
}

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  while (!text.empty()) {
    size_t plain = 0;
    while (plain < text.size() && is_plain(text[plain])) ++plain;
    out += text.substr(0, plain);
    text.remove_prefix(plain);
    if (text.empty()) break;
    const char byte = text[0];
    size_t bytes = 1;
    if (const auto escape = short_escape(byte); !escape.empty()) {
      out += escape;
    } else if (static_cast<unsigned char>(byte) < 0x20) {
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<unsigned>(byte));
    } else {
      const size_t whole = utf8_character_bytes(text);
      out += whole == 0 ? kReplacement : text.substr(0, whole);
      bytes = whole == 0 ? 1 : whole;
    }
    text.remove_prefix(bytes);
  }
  out += '"';
}

void JsonWriter::separate() {
  if (!fresh_) out_ += ',';
  fresh_ = false;
}

void JsonWriter::open(char bracket) {
  separate();
  out_ += bracket;
  fresh_ = true;
  ++depth_;
}

void JsonWriter::close(char bracket) {
  KERN_ASSERT(depth_ > 0, "`{}` closes nothing", bracket);
  out_ += bracket;
  fresh_ = false;
  --depth_;
}

JsonWriter& JsonWriter::begin_object() {
  return open('{'), *this;
}
JsonWriter& JsonWriter::end_object() {
  return close('}'), *this;
}
JsonWriter& JsonWriter::begin_array() {
  return open('['), *this;
}
JsonWriter& JsonWriter::end_array() {
  return close(']'), *this;
}

JsonWriter& JsonWriter::key(std::string_view name) {
  KERN_ASSERT(depth_ > 0, "key `{}` stands in no object", name);
  separate();
  append_json_string(out_, name);
  out_ += ':';
  fresh_ = true;
  return *this;
}

JsonWriter& JsonWriter::string(std::string_view text) {
  separate();
  append_json_string(out_, text);
  return *this;
}

JsonWriter& JsonWriter::integer(int64_t number) {
  const fmt::format_int digits(number);
  return raw({digits.data(), digits.size()});
}

JsonWriter& JsonWriter::number(float number) {
  return std::isfinite(number) ? raw(fmt::format("{}", number)) : null();
}

JsonWriter& JsonWriter::boolean(bool flag) {
  return raw(flag ? "true" : "false");
}
JsonWriter& JsonWriter::null() {
  return raw("null");
}

JsonWriter& JsonWriter::raw(std::string_view json) {
  separate();
  out_ += json;
  return *this;
}

std::string JsonWriter::take() {
  KERN_ASSERT(depth_ == 0, "{} brackets are open", depth_);
  fresh_ = true;
  return std::move(out_);
}

}  // namespace kern::serve
