#include "vocabulary.h"

#include <array>
#include <bit>
#include <charconv>
#include <cstring>
#include <queue>

#include "kern/base/assert.h"

namespace kern::text {
namespace {

constexpr int32_t kBaseTokensMax = 1 << 22;

uint64_t hash_bytes(std::string_view bytes) {
  uint64_t hash = 0x9E3779B97F4A7C15ULL ^ bytes.size();
  while (!bytes.empty()) {
    uint64_t word = 0;
    const size_t count = std::min(bytes.size(), sizeof(word));
    std::memcpy(&word, bytes.data(), count);
    hash = (hash ^ word) * 0xD6E8FEB86659FD93ULL;
    hash ^= hash >> 29;
    bytes.remove_prefix(count);
  }
  return hash ^ (hash >> 32);
}

/// The value of a base64 letter, or -1.
int base64_value(char letter) {
  if (letter >= 'A' && letter <= 'Z') return letter - 'A';
  if (letter >= 'a' && letter <= 'z') return letter - 'a' + 26;
  if (letter >= '0' && letter <= '9') return letter - '0' + 52;
  if (letter == '+') return 62;
  return letter == '/' ? 63 : -1;
}

/// Strict: whole groups of four, padding only at the end, no spare bits. False when it is not that.
bool decode_base64(std::string_view text, std::string& out) {
  out.clear();
  if (text.empty() || text.size() % 4 != 0) return false;
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  uint32_t bits = 0;
  int bit_count = 0;
  for (const char letter : text.substr(0, text.size() - padding)) {
    const int value = base64_value(letter);
    if (value < 0) return false;
    bits = (bits << 6) | static_cast<uint32_t>(value);
    bit_count += 6;
    if (bit_count >= 8) {
      bit_count -= 8;
      out += static_cast<char>(bits >> bit_count & 0xFF);
    }
  }
  return (bits & ((1U << bit_count) - 1)) == 0;
}

struct VocabularyLine {
  std::string token;
  int32_t rank = 0;
};

Result<VocabularyLine> parse_line(std::string_view line, size_t number) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos)
    return fail(Kind::weight_artifact, "vocabulary line {}: expected `base64 rank`, got `{}`",
                number, line.substr(0, 40));
  VocabularyLine out;
  if (!decode_base64(line.substr(0, space), out.token))
    return fail(Kind::weight_artifact, "vocabulary line {}: `{}` is not base64", number,
                line.substr(0, std::min<size_t>(space, 40)));
  const std::string_view digits = line.substr(space + 1);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), out.rank);
  if (error != std::errc() || end != digits.data() + digits.size() || out.rank < 0)
    return fail(Kind::weight_artifact, "vocabulary line {}: expected a rank, got `{}`", number,
                digits.substr(0, 40));
  if (out.rank >= kBaseTokensMax)
    return fail(Kind::weight_artifact, "vocabulary line {}: expected a rank below {}, got {}",
                number, kBaseTokensMax, out.rank);
  return out;
}

/// All lines by rank; an absent rank is an empty string.
Result<std::vector<std::string>> parse_lines(std::string_view model) {
  std::vector<std::string> tokens;
  size_t number = 0;
  size_t count = 0;
  while (!model.empty()) {
    const size_t end = std::min(model.find('\n'), model.size());
    std::string_view line = model.substr(0, end);
    model.remove_prefix(std::min(end + 1, model.size()));
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    KERN_TRY(parsed, parse_line(line, number));
    const auto rank = static_cast<size_t>(parsed.rank);
    if (rank >= tokens.size()) tokens.resize(rank + 1);
    if (!tokens[rank].empty())
      return fail(Kind::weight_artifact, "vocabulary line {}: rank {} appears twice", number, rank);
    tokens[rank] = std::move(parsed.token);
    ++count;
  }
  if (count == 0) return fail(Kind::weight_artifact, "vocabulary: no tokens");
  for (size_t rank = 0; rank < tokens.size(); ++rank) {
    if (tokens[rank].empty())
      return fail(Kind::weight_artifact, "vocabulary: rank {} of {} is missing", rank,
                  tokens.size());
  }
  return tokens;
}

/// A pair that could merge: the part at `left` with the one behind it, together up to `end`.
struct Candidate {
  TokenId rank;
  uint32_t left;
  uint32_t end;
  friend bool operator<(const Candidate& a, const Candidate& b) {
    // priority_queue gives the greatest: the lowest rank, then the leftmost.
    return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
  }
};

}  // namespace

TokenId Vocabulary::find(std::string_view token) const {
  if (token.empty() || token.size() > token_bytes_max_) return -1;
  KERN_DCHECK(std::has_single_bit(table_.size()));
  const size_t mask = table_.size() - 1;
  for (size_t at = hash_bytes(token) & mask;; at = (at + 1) & mask) {
    const TokenId id = table_[at];
    if (id < 0 || bytes(id) == token) return id;
  }
}

Result<void> Vocabulary::insert(TokenId id) {
  KERN_ASSERT(id >= 0 && id < size(), "id {}", id);
  const std::string_view token = bytes(id);
  const size_t mask = table_.size() - 1;
  size_t at = hash_bytes(token) & mask;
  while (table_[at] >= 0) {
    if (bytes(table_[at]) == token)
      return fail(Kind::weight_artifact, "vocabulary: ranks {} and {} are the same bytes",
                  table_[at], id);
    at = (at + 1) & mask;
  }
  table_[at] = id;
  return {};
}

Result<Vocabulary> Vocabulary::parse(std::string_view model) {
  KERN_TRY(tokens, parse_lines(model));
  Vocabulary out;
  out.starts_.push_back(0);
  for (const std::string& token : tokens) {
    out.blob_ += token;
    out.starts_.push_back(static_cast<uint32_t>(out.blob_.size()));
    out.token_bytes_max_ = std::max(out.token_bytes_max_, token.size());
  }
  KERN_ASSERT(out.blob_.size() <= Tokenizer::kModelBytesMax);
  KERN_ASSERT(out.starts_.size() == tokens.size() + 1);
  out.table_.assign(std::bit_ceil(tokens.size() * 2), -1);
  for (TokenId id = 0; id < out.size(); ++id) KERN_TRY_VOID(out.insert(id));
  for (int byte = 0; byte < 256; ++byte) {
    const char letter = static_cast<char>(byte);
    if (out.find({&letter, 1}) < 0)
      return fail(Kind::weight_artifact, "vocabulary: byte 0x{:02X} has no token", byte);
  }
  return out;
}

void Vocabulary::merge(std::string_view piece, std::vector<TokenId>& ids) const {
  const auto size = static_cast<uint32_t>(piece.size());
  KERN_ASSERT(piece.size() < UINT32_MAX && size > 0, "{} bytes", piece.size());
  // A part starts at every i with next[i] != 0 and ends at next[i]; prev is the start before it.
  std::vector<uint32_t> next(size + 1);
  std::vector<uint32_t> prev(size + 1);
  std::vector<Candidate> storage;
  storage.reserve(size);
  std::priority_queue<Candidate> queue({}, std::move(storage));
  const auto offer = [&](uint32_t left) {
    if (next[left] >= size) return;
    const uint32_t end = next[next[left]];
    const TokenId rank = find(piece.substr(left, end - left));
    if (rank >= 0) queue.push({rank, left, end});
  };
  for (uint32_t i = 0; i < size; ++i) {
    next[i] = i + 1;
    prev[i + 1] = i;
  }
  for (uint32_t i = 0; i < size; ++i) offer(i);
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    KERN_DCHECK(best.left < best.end && best.end <= size);
    const uint32_t middle = next[best.left];
    // Stale when either part has merged since: starts and ends only ever move on.
    if (middle == 0 || middle >= size || next[middle] != best.end) continue;
    next[best.left] = best.end;
    next[middle] = 0;
    prev[best.end] = best.left;
    offer(best.left);
    if (best.left > 0) offer(prev[best.left]);
  }
  for (uint32_t at = 0; at < size; at = next[at]) {
    const TokenId id = find(piece.substr(at, next[at] - at));
    KERN_ASSERT(id >= 0, "part at byte {}", at);
    ids.push_back(id);
  }
}

}  // namespace kern::text
