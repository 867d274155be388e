#pragma once
/// The base tokens of a vocabulary file: ranks to bytes, bytes to ranks, and byte-pair merging.
/// Thread safety: all const functions may be called from several threads.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kern/base/result.h"
#include "kern/text/tokenizer.h"

namespace kern::text {

class Vocabulary {
 public:
  /// The lines of a vocabulary file; see Tokenizer::load.
  static Result<Vocabulary> parse(std::string_view model);

  int32_t size() const { return static_cast<int32_t>(starts_.size()) - 1; }
  std::string_view bytes(TokenId id) const {
    const auto at = static_cast<size_t>(id);
    return std::string_view(blob_).substr(starts_[at], starts_[at + 1] - starts_[at]);
  }
  /// The rank of exactly these bytes, or -1.
  TokenId find(std::string_view token) const;
  /// Appends the tokens of one piece: always the lowest-ranked adjacent pair merges next, of equal
  /// ranks the leftmost. O(n log n) in the piece's bytes.
  void merge(std::string_view piece, std::vector<TokenId>& ids) const;

 private:
  Result<void> insert(TokenId id);

  std::string blob_;              ///< all tokens, by rank
  std::vector<uint32_t> starts_;  ///< size() + 1 offsets into blob_
  std::vector<TokenId> table_;    ///< open addressing over the bytes' hash; -1 is free
  size_t token_bytes_max_ = 0;
};

}  // namespace kern::text
