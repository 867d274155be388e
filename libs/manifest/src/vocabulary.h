#pragma once
/// The closed lists of words a manifest is written in, each in the order of its enumerators, so
/// that a word's position is its value. Thread safety: constants.

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace kern::manifest {

using Words = std::span<const std::string_view>;

inline constexpr std::string_view kDtypes[] = {"bf16", "f16", "f32", "fp8e4m3", "fp8e8m0", "i8",
                                               "i32",  "u32", "i64", "u64",     "u8"};
inline constexpr std::string_view kKinds[] = {"input",  "output",    "inout", "weight",
                                              "source", "workspace", "carry", "peer"};
inline constexpr std::string_view kFills[] = {
    "token",    "position", "valid",       "slot",  "seq_len", "cu_seqlens", "blocks",
    "snapshot", "fed_from", "temperature", "top_p", "top_k",   "min_p",      "seed",
    "draw",     "tokens",   "count",       "error", "logprob", "top_tokens", "top_logprobs"};
inline constexpr std::string_view kDirections[] = {"in", "out", "inout"};
inline constexpr std::string_view kAxes[] = {"rows", "groups", "ranks"};
inline constexpr std::string_view kShardings[] = {"position", "heads"};
inline constexpr std::string_view kPlacements[] = {"device", "host"};

inline std::optional<size_t> position(Words words, std::string_view word) {
  const auto at = std::find(words.begin(), words.end(), word);
  if (at == words.end()) return std::nullopt;
  return static_cast<size_t>(at - words.begin());
}

/// The texts that `parse_param_type` takes, as a regular expression.
std::string param_type_pattern();

}  // namespace kern::manifest
