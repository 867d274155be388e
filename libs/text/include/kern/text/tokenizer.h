#pragma once
/// Text to token ids and back: byte-level BPE over the pieces of a split pattern, in tiktoken's
/// file format. Base tokens have ids [0, base_size); behind them lie the special slots, of which
/// some have names. Ordinary text never becomes a special id: `encode` does not know them, and a
/// special is encoded only where the caller says that a segment is control text. Thread safety: all
/// const functions may be called from several threads. Ownership / lifetime: views returned by
/// `token_bytes` live as long as the tokenizer. Determinism: depends on the model file, the spec
/// and the text alone. Does not: read files, know any model's names, or render chats.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kern/base/result.h"

namespace kern::text {

using TokenId = int32_t;

/// A named special slot.
struct SpecialToken {
  TokenId id = 0;
  std::string name;
  bool skipped = true;  ///< left out when a decoder skips specials ("special": true in the config)
  friend bool operator==(const SpecialToken&, const SpecialToken&) = default;
};

/// What a vocabulary file does not say about itself.
struct TokenizerSpec {
  std::string pattern;          ///< see splitter.h
  int32_t special_slots = 256;  ///< ids after the base; unnamed ones are <|reserved_token_{id}|>
  std::vector<SpecialToken> specials;  ///< the named ones
};

/// Reads `added_tokens_decoder` of a tokenizer_config.json: an object from decimal id to
/// {"content": name, "special": bool}. The pattern is the caller's: the config has none.
Result<TokenizerSpec> parse_tokenizer_config(std::string_view json, std::string pattern);

/// A run of text that is encoded by itself: `is_control` allows special names in it.
struct Segment {
  std::string text;
  bool is_control = false;
  friend bool operator==(const Segment&, const Segment&) = default;
};

enum class Specials { keep, skip };

class Tokenizer {
 public:
  static constexpr size_t kModelBytesMax = size_t{64} << 20;
  static constexpr int32_t kSpecialSlotsMax = 4096;
  static constexpr size_t kPieceCharsMax = 400'000;  ///< longer text is cut before splitting
  static constexpr size_t kRunCharsMax = 25'000;     ///< longer runs of (non-)space too

  /// `model` holds one `base64 rank` line a token, ranks 0..n-1 each once, every single byte
  /// present.
  static Result<Tokenizer> load(std::string_view model, TokenizerSpec spec);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// Ordinary text: no special id ever comes out. Broken UTF-8 is replaced first.
  std::vector<TokenId> encode(std::string_view text) const;
  /// Segment by segment; specials are looked for in control segments only.
  std::vector<TokenId> encode(std::span<const Segment> segments) const;
  /// Well-formed UTF-8; broken bytes and ids outside the vocabulary come out as U+FFFD.
  std::string decode(std::span<const TokenId> ids, Specials specials) const;

  /// The bytes of a base token or the name of a special one; empty for an id outside the
  /// vocabulary.
  std::string_view token_bytes(TokenId id) const;
  /// Whether a decoder that skips specials leaves `id` out.
  bool is_skipped(TokenId id) const;
  bool is_special(TokenId id) const { return id >= base_size() && id < vocab_size(); }
  /// The id of a special by its name.
  std::optional<TokenId> find_special(std::string_view name) const;
  int32_t base_size() const;
  int32_t vocab_size() const;  ///< base and special slots

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kern::text
