#pragma once
/// UTF-8 as this library needs it: is it whole, where does a broken sequence end, and what stands
/// in for it. Broken bytes become U+FFFD, one for each maximal subpart of an ill-formed sequence,
/// which is what Python's bytes.decode(errors="replace") does. Thread safety: pure functions.
/// Determinism: depends on the bytes alone.
/// Does not: normalise, fold case or know any property of a character.

#include <cstddef>
#include <string>
#include <string_view>

namespace kern::text {

/// The first character of a byte string: how many bytes it takes and what it is.
struct Utf8Step {
  enum class Kind { character, broken, cut };
  Kind kind = Kind::character;
  size_t bytes = 0;        ///< of the character or of the maximal broken part; 0 only at the end
  char32_t character = 0;  ///< when kind is character
};

/// Looks at the first bytes of `text`. `cut`: they begin a character that more bytes could
/// complete.
Utf8Step utf8_step(std::string_view text);

/// Whether every character of `text` is well-formed.
bool is_utf8(std::string_view text);

/// `text` with each broken or cut part replaced by U+FFFD; a well-formed text comes back unchanged.
std::string replace_broken_utf8(std::string_view text);

}  // namespace kern::text
