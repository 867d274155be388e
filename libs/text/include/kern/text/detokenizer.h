#pragma once
/// Ids to text one by one, for streams. What `push` returns is always whole characters: bytes that
/// begin a character wait for the rest. All deltas joined are `Tokenizer::decode` of all ids.
/// Thread safety: one thread each.
/// Ownership / lifetime: the tokenizer must outlive it.
/// Determinism: depends on the ids alone.
/// Does not: hold back stop strings, or look at markers.

#include <string>

#include "kern/text/tokenizer.h"

namespace kern::text {

class Detokenizer {
 public:
  Detokenizer(const Tokenizer& tokenizer, Specials specials)
      : tokenizer_(&tokenizer), specials_(specials) {}

  /// The characters that `id` completes; empty while one is unfinished.
  std::string push(TokenId id);
  /// U+FFFD for an unfinished character, else nothing; afterwards it can be used again.
  std::string finish();
  /// Bytes held back, at most three.
  size_t held_bytes() const { return held_.size(); }

 private:
  const Tokenizer* tokenizer_;
  Specials specials_;
  std::string held_;
};

}  // namespace kern::text
