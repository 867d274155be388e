#pragma once
/// The smallest things that the engine's tests share.

#include <numeric>
#include <string>
#include <vector>

#include "kern/engine/executor.h"
#include "kern/engine/messages.h"

namespace kern::engine::fixtures {

/// A tiny pipeline: items of 256 rows and 4 sequences, pages of 64 tokens.
inline ExecutorLimits limits(uint32_t pages = 33, uint32_t slots = 9) {
  return {.prefill_rows_max = 256,
          .prefill_seqs_max = 4,
          .decode_seqs_max = 3,
          .context_max = 1024,
          .page_tokens = 64,
          .recurrent = true,
          .pages = pages,
          .slots = slots};
}

/// `length` tokens that count up from `first`.
inline std::vector<Token> prompt(size_t length, Token first = 0) {
  std::vector<Token> tokens(length);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

/// What an executor says to an item when every emitting row yields `token`.
inline ItemResult result_of(const Item& item, Token token = 5) {
  ItemResult result{.id = item.id};
  for (const Slice& slice : item.slices)
    if (slice.emits) result.emitted.push_back({.request = slice.request, .token = token});
  return result;
}

/// A group of so many ranks with one paged and one recurrent state.
inline GroupHello hello(uint32_t ranks = 1, uint32_t pages = 33, uint32_t slots = 9) {
  GroupHello hello{.ranks = ranks,
                   .page_tokens = 64,
                   .pages = pages,
                   .slots = slots,
                   .seqs_max = 4,
                   .context_max = 1024};
  for (uint32_t rank = 0; rank < ranks; ++rank)
    hello.addresses.push_back("host:" + std::to_string(rank));
  hello.states = {{.name = "kv", .paged = true, .bytes = 16},
                  {.name = "line", .paged = false, .bytes = 64}};
  return hello;
}

}  // namespace kern::engine::fixtures
