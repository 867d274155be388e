#include "tokenizer/train_bpe.h"

#include <map>
#include <queue>
#include <set>
#include <utility>
#include <vector>

#include "kern/base/assert.h"
#include "kern/text/splitter.h"
#include "kern/text/utf8.h"

namespace k3 {
namespace {

using kern::Kind;
using Pair = std::pair<int32_t, int32_t>;

/// One distinct piece of the corpus, as tokens.
struct Piece {
  std::vector<int32_t> symbols;
  int64_t count = 0;
};

/// A pair and how often it stood in the corpus when it was queued.
struct Queued {
  int64_t count;
  Pair pair;
  friend bool operator<(const Queued& a, const Queued& b) {
    // priority_queue gives the greatest: the most frequent, then the smaller pair.
    return a.count != b.count ? a.count < b.count : a.pair > b.pair;
  }
};

class Trainer {
 public:
  explicit Trainer(std::vector<Piece> pieces) : pieces_(std::move(pieces)) {
    for (int32_t byte = 0; byte < 256; ++byte) add_token(std::string(1, static_cast<char>(byte)));
    for (size_t i = 0; i < pieces_.size(); ++i) count_pairs(i, 1);
    for (const auto& [pair, count] : counts_) queue_.push({count, pair});
  }

  /// The tokens by rank.
  std::vector<std::string> run(size_t size) {
    while (tokens_.size() < size && !queue_.empty()) {
      const Queued best = queue_.top();
      queue_.pop();
      const auto current = counts_.find(best.pair);
      if (current == counts_.end() || current->second != best.count) continue;
      merge(best.pair);
    }
    for (int32_t fill = 0; tokens_.size() < size; ++fill) {
      KERN_ASSERT(fill < 65536);
      const std::string bytes = {static_cast<char>(fill >> 8), static_cast<char>(fill & 255)};
      if (!ids_.contains(bytes)) add_token(bytes);
    }
    return std::move(tokens_);
  }

 private:
  int32_t add_token(const std::string& bytes) {
    const auto id = static_cast<int32_t>(tokens_.size());
    ids_.emplace(bytes, id);
    tokens_.push_back(bytes);
    return id;
  }

  /// Adds (sign 1) or takes away (sign -1) the pairs of one piece.
  void count_pairs(size_t at, int sign) {
    const Piece& piece = pieces_[at];
    for (size_t i = 0; i + 1 < piece.symbols.size(); ++i) {
      const Pair pair = {piece.symbols[i], piece.symbols[i + 1]};
      int64_t& count = counts_[pair];
      count += sign * piece.count;
      KERN_ASSERT(count >= 0);
      changed_.insert(pair);
      if (sign > 0) where_[pair].insert(at);
    }
  }

  void merge(Pair pair) {
    const std::string bytes =
        tokens_[static_cast<size_t>(pair.first)] + tokens_[static_cast<size_t>(pair.second)];
    // Two pairs may spell the same bytes; they are the same token.
    const auto known = ids_.find(bytes);
    const int32_t id = known != ids_.end() ? known->second : add_token(bytes);
    changed_.clear();
    const std::set<size_t> places = std::move(where_[pair]);
    where_.erase(pair);
    for (const size_t at : places) {
      count_pairs(at, -1);
      std::vector<int32_t>& symbols = pieces_[at].symbols;
      std::vector<int32_t> merged;
      for (size_t i = 0; i < symbols.size(); ++i) {
        const bool is_pair = i + 1 < symbols.size() && Pair{symbols[i], symbols[i + 1]} == pair;
        merged.push_back(is_pair ? id : symbols[i]);
        i += is_pair ? 1 : 0;
      }
      symbols = std::move(merged);
      count_pairs(at, 1);
    }
    for (const Pair& touched : changed_) {
      const auto entry = counts_.find(touched);
      if (entry->second == 0) {
        counts_.erase(entry);
        where_.erase(touched);
      } else {
        queue_.push({entry->second, touched});
      }
    }
  }

  std::vector<Piece> pieces_;
  std::vector<std::string> tokens_;
  std::map<std::string, int32_t> ids_;
  std::map<Pair, int64_t> counts_;
  std::map<Pair, std::set<size_t>> where_;  ///< pieces that hold or once held the pair
  std::set<Pair> changed_;                  ///< pairs whose count the merge in hand touched
  std::priority_queue<Queued> queue_;       ///< stale entries differ from counts_
};

std::string base64(std::string_view bytes) {
  constexpr std::string_view kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    const size_t count = std::min<size_t>(3, bytes.size() - i);
    for (size_t j = 0; j < 3; ++j)
      bits = (bits << 8) | (j < count ? static_cast<uint8_t>(bytes[i + j]) : 0U);
    for (size_t j = 0; j < 4; ++j) out += j <= count ? kLetters[bits >> (18 - 6 * j) & 63] : '=';
  }
  return out;
}

}  // namespace

kern::Result<std::string> train_tiktoken_model(std::string_view corpus, std::string_view pattern,
                                               int32_t base_vocab_size) {
  if (base_vocab_size < 256 || base_vocab_size > kBaseVocabMax)
    return kern::fail(Kind::caller, "base vocabulary: expected 256 to {} tokens, got {}",
                      kBaseVocabMax, base_vocab_size);
  KERN_TRY(splitter, kern::text::Splitter::compile(pattern));
  const std::string text = kern::text::replace_broken_utf8(corpus);
  std::vector<std::string_view> cut;
  splitter.split(text, cut);
  std::map<std::string_view, int64_t> counts;
  for (const std::string_view piece : cut) ++counts[piece];
  std::vector<Piece> pieces;
  for (const auto& [bytes, count] : counts) {
    Piece& piece = pieces.emplace_back();
    piece.count = count;
    for (const char byte : bytes) piece.symbols.push_back(static_cast<uint8_t>(byte));
  }
  const std::vector<std::string> tokens =
      Trainer(std::move(pieces)).run(static_cast<size_t>(base_vocab_size));
  std::string out;
  for (size_t rank = 0; rank < tokens.size(); ++rank)
    out += fmt::format("{} {}\n", base64(tokens[rank]), rank);
  return out;
}

}  // namespace k3
