#include "kern/text/utf8.h"

#include <cstdint>

#include "kern/base/assert.h"

namespace kern::text {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// How a lead byte goes on: sequence length and the range its second byte must lie in (Unicode
/// table 3-7).
struct Lead {
  size_t bytes;
  uint8_t second_min;
  uint8_t second_max;
};

Lead lead_of(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Utf8Step utf8_step(std::string_view text) {
  using Kind = Utf8Step::Kind;
  if (text.empty()) return {Kind::character, 0, 0};
  const auto first = static_cast<uint8_t>(text[0]);
  const Lead lead = lead_of(first);
  if (lead.bytes == 0) return {Kind::broken, 1, 0};
  if (lead.bytes == 1) return {Kind::character, 1, first};
  char32_t character = first & (0x7F >> lead.bytes);
  for (size_t i = 1; i < lead.bytes; ++i) {
    if (i == text.size()) return {Kind::cut, i, 0};
    const auto byte = static_cast<uint8_t>(text[i]);
    const uint8_t low = i == 1 ? lead.second_min : uint8_t{0x80};
    const uint8_t high = i == 1 ? lead.second_max : uint8_t{0xBF};
    if (byte < low || byte > high) return {Kind::broken, i, 0};
    character = (character << 6) | (byte & 0x3F);
  }
  return {Kind::character, lead.bytes, character};
}

bool is_utf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    if (static_cast<uint8_t>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const Utf8Step step = utf8_step(text.substr(at));
    if (step.kind != Utf8Step::Kind::character) return false;
    at += step.bytes;
  }
  return true;
}

std::string replace_broken_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    KERN_DCHECK(step.bytes > 0);
    out += step.kind == Utf8Step::Kind::character ? text.substr(0, step.bytes) : kReplacement;
    text.remove_prefix(step.bytes);
  }
  return out;
}

}  // namespace kern::text
