#include "unicode_16.h"

#include <algorithm>

#include "kern/base/assert.h"
#include "kern/text/utf8.h"

namespace kern::text {
namespace {

enum class Late { upper, lower, letter, mark, digit, han };
struct LateRange {
  char32_t first;
  char32_t last;
  Late kind;
};

/// In order, without gaps in meaning: what lies between two ranges is as it was.
constexpr LateRange kLateRanges[] = {
    {0x897, 0x897, Late::mark},       {0xCF3, 0xCF3, Late::mark},
    {0xECE, 0xECE, Late::mark},       {0x1C89, 0x1C89, Late::upper},
    {0x1C8A, 0x1C8A, Late::lower},    {0xA7CB, 0xA7CC, Late::upper},
    {0xA7CD, 0xA7CD, Late::lower},    {0xA7DA, 0xA7DA, Late::upper},
    {0xA7DB, 0xA7DB, Late::lower},    {0xA7DC, 0xA7DC, Late::upper},
    {0x105C0, 0x105F3, Late::letter}, {0x10D40, 0x10D49, Late::digit},
    {0x10D4A, 0x10D4F, Late::letter}, {0x10D50, 0x10D65, Late::upper},
    {0x10D69, 0x10D6D, Late::mark},   {0x10D6F, 0x10D6F, Late::letter},
    {0x10D70, 0x10D85, Late::lower},  {0x10EC2, 0x10EC4, Late::letter},
    {0x10EFC, 0x10EFF, Late::mark},   {0x1123F, 0x11240, Late::letter},
    {0x11241, 0x11241, Late::mark},   {0x11380, 0x11389, Late::letter},
    {0x1138B, 0x1138B, Late::letter}, {0x1138E, 0x1138E, Late::letter},
    {0x11390, 0x113B5, Late::letter}, {0x113B7, 0x113B7, Late::letter},
    {0x113B8, 0x113C0, Late::mark},   {0x113C2, 0x113C2, Late::mark},
    {0x113C5, 0x113C5, Late::mark},   {0x113C7, 0x113CA, Late::mark},
    {0x113CC, 0x113D0, Late::mark},   {0x113D1, 0x113D1, Late::letter},
    {0x113D2, 0x113D2, Late::mark},   {0x113D3, 0x113D3, Late::letter},
    {0x113E1, 0x113E2, Late::mark},   {0x116D0, 0x116E3, Late::digit},
    {0x11BC0, 0x11BE0, Late::letter}, {0x11BF0, 0x11BF9, Late::digit},
    {0x11F00, 0x11F01, Late::mark},   {0x11F02, 0x11F02, Late::letter},
    {0x11F03, 0x11F03, Late::mark},   {0x11F04, 0x11F10, Late::letter},
    {0x11F12, 0x11F33, Late::letter}, {0x11F34, 0x11F3A, Late::mark},
    {0x11F3E, 0x11F42, Late::mark},   {0x11F50, 0x11F59, Late::digit},
    {0x11F5A, 0x11F5A, Late::mark},   {0x1342F, 0x1342F, Late::letter},
    {0x13440, 0x13440, Late::mark},   {0x13441, 0x13446, Late::letter},
    {0x13447, 0x13455, Late::mark},   {0x13460, 0x143FA, Late::letter},
    {0x16100, 0x1611D, Late::letter}, {0x1611E, 0x1612F, Late::mark},
    {0x16130, 0x16139, Late::digit},  {0x16D40, 0x16D6C, Late::letter},
    {0x16D70, 0x16D79, Late::digit},  {0x18CFF, 0x18CFF, Late::letter},
    {0x1B132, 0x1B132, Late::letter}, {0x1B155, 0x1B155, Late::letter},
    {0x1CCF0, 0x1CCF9, Late::digit},  {0x1D2C0, 0x1D2D3, Late::digit},
    {0x1DF25, 0x1DF2A, Late::lower},  {0x1E030, 0x1E06D, Late::letter},
    {0x1E08F, 0x1E08F, Late::mark},   {0x1E4D0, 0x1E4EB, Late::letter},
    {0x1E4EC, 0x1E4EF, Late::mark},   {0x1E4F0, 0x1E4F9, Late::digit},
    {0x1E5D0, 0x1E5ED, Late::letter}, {0x1E5EE, 0x1E5EF, Late::mark},
    {0x1E5F0, 0x1E5F0, Late::letter}, {0x1E5F1, 0x1E5FA, Late::digit},
    {0x2B739, 0x2B739, Late::han},    {0x2EBF0, 0x2EE5D, Late::han},
    {0x31350, 0x323AF, Late::han},
};

/// A character of Unicode 14 of this kind, three or four bytes long.
std::string_view stand_in(Late kind, size_t bytes) {
  const bool is_short = bytes == 3;
  switch (kind) {
    case Late::upper:
      return is_short ? "\xE1\xB8\x80" : "\xF0\x90\x90\x80";  // 1E00, 10400
    case Late::lower:
      return is_short ? "\xE1\xB8\x81" : "\xF0\x90\x90\xA8";  // 1E01, 10428
    case Late::letter:
      return is_short ? "\xE0\xB8\x81" : "\xF0\x90\x80\x80";  // 0E01, 10000
    case Late::mark:
      return is_short ? "\xE2\x83\x90" : "\xF0\x90\x87\xBD";  // 20D0, 101FD
    case Late::digit:
      return is_short ? "\xE0\xB9\x90" : "\xF0\x9D\x9F\x8E";  // 0E50, 1D7CE
    case Late::han:
      return is_short ? "\xE4\xB8\x80" : "\xF0\xA0\x80\x80";  // 4E00, 20000
  }
  return {};
}

const LateRange* find_late(char32_t character) {
  const auto* range = std::ranges::lower_bound(kLateRanges, character, {}, &LateRange::last);
  const bool is_in = range != std::end(kLateRanges) && character >= range->first;
  return is_in ? range : nullptr;
}

}  // namespace

std::string with_stand_ins(std::string_view text) {
  std::string out;
  size_t at = 0;
  while (at < text.size()) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const Utf8Step step = utf8_step(text.substr(at));
    if (const LateRange* range = find_late(step.character)) {
      const std::string_view other = stand_in(range->kind, step.bytes);
      KERN_ASSERT(other.size() == step.bytes, "U+{:X}", static_cast<uint32_t>(step.character));
      if (out.empty()) out = text;
      out.replace(at, step.bytes, other);
    }
    at += step.bytes;
  }
  return out;
}

}  // namespace kern::text
