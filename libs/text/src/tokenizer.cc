#include "kern/text/tokenizer.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "json.h"
#include "kern/base/assert.h"
#include "kern/text/splitter.h"
#include "kern/text/utf8.h"
#include "vocabulary.h"

namespace kern::text {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// Python's str.isspace for one character.
bool is_python_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

/// Cuts `text` into chunks of at most kPieceCharsMax characters, and these wherever a run of spaces
/// or of others grows beyond kRunCharsMax. The published tokenizer does it before splitting; ids
/// depend on it.
template <class Visit>
void for_each_chunk(std::string_view text, Visit&& visit) {
  size_t start = 0;
  size_t at = 0;
  size_t chunk_chars = 0;
  size_t run_chars = 0;
  bool run_is_space = false;
  while (at < text.size()) {
    const Utf8Step step = utf8_step(text.substr(at));
    const bool is_space = is_python_space(step.character);
    if (chunk_chars == Tokenizer::kPieceCharsMax) {
      visit(text.substr(start, at - start));
      start = at;
      chunk_chars = run_chars = 0;
    }
    if (run_chars > 0 && is_space == run_is_space) {
      if (++run_chars > Tokenizer::kRunCharsMax) {
        visit(text.substr(start, at - start));
        start = at;
        run_chars = 1;
      }
    } else {
      run_chars = 1;
      run_is_space = is_space;
    }
    ++chunk_chars;
    at += step.bytes;
  }
  KERN_ASSERT(start <= at && at == text.size(), "{}, {} of {}", start, at, text.size());
  if (start < text.size()) visit(text.substr(start));
}

Result<TokenId> parse_id(std::string_view digits) {
  TokenId id = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), id);
  if (error != std::errc() || end != digits.data() + digits.size() || id < 0)
    return fail(Kind::weight_artifact, "added_tokens_decoder: expected an id, got `{}`", digits);
  return id;
}

}  // namespace

Result<TokenizerSpec> parse_tokenizer_config(std::string_view json, std::string pattern) {
  auto config = parse_json(json, "tokenizer config");
  if (!config) return fail(Kind::weight_artifact, "{}", config.error().message);
  const Json* added = config->find("added_tokens_decoder");
  if (added == nullptr || added->type != Json::Type::object)
    return fail(Kind::weight_artifact,
                "tokenizer config: expected an object `added_tokens_decoder`, got {}",
                added == nullptr ? "none" : type_name(added->type));
  KERN_ASSERT(added->keys.size() == added->items.size());
  TokenizerSpec spec{std::move(pattern)};
  for (size_t i = 0; i < added->keys.size(); ++i) {
    KERN_TRY(id, parse_id(added->keys[i]));
    const Json* content = added->items[i].find("content");
    if (content == nullptr || content->type != Json::Type::string || content->text.empty())
      return fail(Kind::weight_artifact, "added_tokens_decoder `{}`: expected a string `content`",
                  id);
    const Json* special = added->items[i].find("special");
    if (special != nullptr && special->type != Json::Type::boolean)
      return fail(Kind::weight_artifact, "added_tokens_decoder `{}`: expected a boolean `special`",
                  id);
    spec.specials.push_back({id, content->text, special != nullptr && special->is_true()});
  }
  return spec;
}

struct Tokenizer::Impl {
  Vocabulary vocabulary;
  Splitter splitter;
  std::vector<SpecialToken> specials;  ///< by slot, every slot named
  std::map<std::string, TokenId, std::less<>> special_ids;

  void encode_chunk(std::string_view chunk, std::vector<TokenId>& ids) const {
    std::vector<std::string_view> pieces;
    splitter.split(chunk, pieces);
    size_t piece_bytes = 0;
    for (const std::string_view piece : pieces) {
      piece_bytes += piece.size();
      // A piece that is a token is that token, whatever its merges would give.
      const TokenId whole = vocabulary.find(piece);
      if (whole >= 0) {
        ids.push_back(whole);
      } else {
        vocabulary.merge(piece, ids);
      }
    }
    KERN_ASSERT(piece_bytes == chunk.size(), "{} of {}", piece_bytes, chunk.size());
  }

  /// `text` well-formed.
  void encode_ordinary(std::string_view text, std::vector<TokenId>& ids) const {
    for_each_chunk(text, [&](std::string_view chunk) { encode_chunk(chunk, ids); });
  }

  /// Ordinary text with special names in it: the leftmost counts, of several there the longest.
  void encode_control(std::string_view text, std::vector<TokenId>& ids) const {
    size_t done = 0;
    for (size_t at = 0; at < text.size(); ++at) {
      const SpecialToken* found = nullptr;
      for (const SpecialToken& special : specials) {
        if (text.substr(at).starts_with(special.name) &&
            (found == nullptr || special.name.size() > found->name.size()))
          found = &special;
      }
      if (found == nullptr) continue;
      encode_ordinary(text.substr(done, at - done), ids);
      KERN_ASSERT(!found->name.empty() && at >= done, "at {}, done {}", at, done);
      ids.push_back(found->id);
      done = at + found->name.size();
      at = done - 1;
    }
    encode_ordinary(text.substr(done), ids);
  }

  Result<void> name_slots(const TokenizerSpec& spec) {
    const TokenId base = vocabulary.size();
    if (spec.special_slots < 0 || spec.special_slots > kSpecialSlotsMax)
      return fail(Kind::weight_artifact, "special slots: expected 0 to {}, got {}",
                  kSpecialSlotsMax, spec.special_slots);
    for (TokenId id = base; id < base + spec.special_slots; ++id)
      specials.push_back({id, {}, true});
    for (const SpecialToken& special : spec.specials) {
      if (special.id < base || special.id >= base + spec.special_slots)
        return fail(Kind::weight_artifact, "special `{}`: expected an id in [{}, {}), got {}",
                    special.name, base, base + spec.special_slots, special.id);
      SpecialToken& slot = specials[static_cast<size_t>(special.id - base)];
      if (!slot.name.empty())
        return fail(Kind::weight_artifact, "special id {} is named twice: `{}` and `{}`",
                    special.id, slot.name, special.name);
      if (special.name.empty())
        return fail(Kind::weight_artifact, "special id {}: its name is empty", special.id);
      slot = special;
    }
    for (SpecialToken& slot : specials) {
      if (slot.name.empty()) slot.name = fmt::format("<|reserved_token_{}|>", slot.id);
      const auto [place, is_new] = special_ids.try_emplace(slot.name, slot.id);
      if (!is_new)
        return fail(Kind::weight_artifact, "special `{}` names both id {} and id {}", slot.name,
                    place->second, slot.id);
    }
    KERN_ASSERT(special_ids.size() == specials.size());
    return {};
  }
};

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::load(std::string_view model, TokenizerSpec spec) {
  if (model.size() > kModelBytesMax)
    return fail(Kind::weight_artifact, "vocabulary: at most {} bytes, got {}", kModelBytesMax,
                model.size());
  KERN_TRY(splitter, Splitter::compile(spec.pattern));
  KERN_TRY(vocabulary, Vocabulary::parse(model));
  auto impl = std::make_unique<Impl>(Impl{std::move(vocabulary), std::move(splitter), {}, {}});
  KERN_TRY_VOID(impl->name_slots(spec));
  KERN_ASSERT(impl->specials.size() == static_cast<size_t>(spec.special_slots));
  return Tokenizer(std::move(impl));
}

std::vector<TokenId> Tokenizer::encode(std::string_view text) const {
  std::vector<TokenId> ids;
  if (is_utf8(text)) {
    impl_->encode_ordinary(text, ids);
  } else {
    impl_->encode_ordinary(replace_broken_utf8(text), ids);
  }
  return ids;
}

std::vector<TokenId> Tokenizer::encode(std::span<const Segment> segments) const {
  std::vector<TokenId> ids;
  for (const Segment& segment : segments) {
    const bool is_whole = is_utf8(segment.text);
    const std::string replaced = is_whole ? std::string() : replace_broken_utf8(segment.text);
    const std::string_view text = is_whole ? std::string_view(segment.text) : replaced;
    if (segment.is_control) {
      impl_->encode_control(text, ids);
    } else {
      impl_->encode_ordinary(text, ids);
    }
  }
  return ids;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, Specials specials) const {
  std::string bytes;
  for (const TokenId id : ids) {
    if (specials == Specials::skip && is_skipped(id)) continue;
    const bool is_known = id >= 0 && id < vocab_size();
    bytes += is_known ? token_bytes(id) : kReplacement;
  }
  return is_utf8(bytes) ? bytes : replace_broken_utf8(bytes);
}

std::string_view Tokenizer::token_bytes(TokenId id) const {
  if (id < 0 || id >= vocab_size()) return {};
  if (id < base_size()) return impl_->vocabulary.bytes(id);
  return impl_->specials[static_cast<size_t>(id - base_size())].name;
}

bool Tokenizer::is_skipped(TokenId id) const {
  return is_special(id) && impl_->specials[static_cast<size_t>(id - base_size())].skipped;
}

std::optional<TokenId> Tokenizer::find_special(std::string_view name) const {
  const auto place = impl_->special_ids.find(name);
  if (place == impl_->special_ids.end()) return std::nullopt;
  return place->second;
}

int32_t Tokenizer::base_size() const {
  return impl_->vocabulary.size();
}
int32_t Tokenizer::vocab_size() const {
  return base_size() + static_cast<int32_t>(impl_->specials.size());
}

}  // namespace kern::text
