#pragma once
/// What a load may refuse of a manifest that verify accepts: the list of libs/runtime/README.md.

#include <array>
#include <string>
#include <string_view>

#include "kern/base/error.h"
#include "kern/manifest/verify.h"
#include "kern/runtime/runtime.h"

namespace kern_test {

/// A page of every paged state and two slots, pages as large as the manifest's own tables say.
inline kern::runtime::Capacity smallest_capacity(const kern::manifest::Verified& manifest) {
  kern::runtime::Capacity capacity{2, 64, 2};
  for (const auto& buffer : manifest->buffers) {
    if (!buffer.domain || !buffer.domain->stride) continue;
    const auto* state = manifest.state(buffer.domain->index_into);
    if (state != nullptr && state->size == kern::manifest::State::Size::per_token)
      capacity.page_tokens = *buffer.domain->stride;
  }
  return capacity;
}

inline bool is_listed_refusal(const kern::Error& error) {
  static constexpr std::array<std::string_view, 21> kSentences = {
      "overflow 64 bits",
      "its capacity overflows",
      "is memory of a foreign engine",
      "at this capacity",
      "the capacity pages of",
      "is freed while weights load",
      "the host device maps no memory",
      "the host device has no built-in",
      "the cuda device has no built-in",
      "sums in rank order",
      "only the number of rows may",
      "is a peer buffer",
      // a built-in's arguments
      "args, got",
      "expected a buffer",
      "expected i32 or i64",
      "expected 1 to 2^31",
      "row strides",
      "bytes left",
      "the count is",
      "is no rank of a group",
      "for each of",
  };
  for (const std::string_view sentence : kSentences)
    if (error.message.find(sentence) != std::string::npos) return true;
  return false;
}

}  // namespace kern_test
