#pragma once
/// JSON as text in, text out, for prompts and answers that must keep a client's literals.
/// Thread safety: pure functions.
/// Determinism: depends on the text alone.
/// Does not: convert numbers; `1e2` stays `1e2`.

#include <string>
#include <string_view>

#include "kern/base/result.h"

namespace kern::text {

inline constexpr size_t kJsonDepthMax = 64;

/// `json` without blanks, with the keys of every object sorted by code point and non-ASCII kept; of
/// a repeated key the last value counts. Fails with kind caller on anything that is not one JSON
/// value.
Result<std::string> canonical_json(std::string_view json);

/// Whether `text` is one JSON value, blanks around it allowed.
bool is_json(std::string_view text);

/// `text` as a JSON string with its quotes; broken UTF-8 is replaced, non-ASCII kept.
std::string quote_json(std::string_view text);

}  // namespace kern::text
