#include "kern/text/tokenizer.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <ctime>

#include "kern/base/prng.h"
#include "kern/text/detokenizer.h"
#include "kern/text/splitter.h"
#include "kern/text/utf8.h"
#include "small.h"

using namespace kern::text;
using kern_test::kSmallBase;
using kern_test::small_model;
using kern_test::small_spec;
using kern_test::small_tokenizer;

namespace {

std::string load_error(std::string_view model, TokenizerSpec spec = small_spec()) {
  const auto loaded = Tokenizer::load(model, std::move(spec));
  return loaded ? "loaded" : loaded.error().text();
}

/// The 256 single bytes, one line each: the smallest vocabulary there is.
std::string byte_lines() {
  return *k3::train_tiktoken_model("", k3::split_pattern(), 256);
}

TokenizerSpec byte_spec(std::vector<SpecialToken> specials = {}) {
  return {k3::split_pattern(), 4, std::move(specials)};
}

std::vector<std::string> pieces_of(std::string_view text) {
  const auto splitter = Splitter::compile(k3::split_pattern());
  REQUIRE(splitter);
  std::vector<std::string_view> pieces;
  splitter->split(text, pieces);
  return {pieces.begin(), pieces.end()};
}

/// Processor seconds, the least of three runs: other programs on the machine do not count.
double seconds_to_encode(const std::string& text) {
  double least = 1e9;
  for (int run = 0; run < 3; ++run) {
    const std::clock_t start = std::clock();
    const std::vector<TokenId> ids = small_tokenizer().encode(text);
    least = std::min(least, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
    REQUIRE(small_tokenizer().decode(ids, Specials::keep) == text);
  }
  return least;
}

std::string repeat(std::string_view part, size_t bytes) {
  std::string out;
  while (out.size() < bytes) out += part;
  return out;
}

std::string random_bytes(kern::Prng& prng, size_t count) {
  std::string out;
  for (size_t i = 0; i < count; ++i) {
    const bool is_ascii = prng.below(3) == 0;
    out += static_cast<char>(is_ascii ? prng.below(128) : 128 + prng.below(128));
  }
  return out;
}

}  // namespace

TEST_CASE("text comes back from its ids", "[text][tokenizer]") {
  for (const char* text : {"", "Hello world", "  \n\n x\t", "Köln 中文 한국어 עברית",
                           "don't WE'LL 12345", "👩‍💻🚀", "\r\n\r\n", "<|open|>[EOS]"}) {
    const std::vector<TokenId> ids = small_tokenizer().encode(text);
    CHECK(small_tokenizer().decode(ids, Specials::keep) == text);
    CHECK(std::ranges::none_of(ids, [](TokenId id) { return small_tokenizer().is_special(id); }));
  }
}

TEST_CASE("specials are encoded in control segments only", "[text][tokenizer]") {
  const Tokenizer& tokenizer = small_tokenizer();
  const TokenId open = *tokenizer.find_special("<|open|>");
  CHECK(open == kSmallBase + 3);
  CHECK(tokenizer.find_special("<|reserved_token_1032|>") == 1032);
  CHECK_FALSE(tokenizer.find_special("<|nothing|>"));
  const std::vector<Segment> segments = {
      {"<|open|>", true}, {"<|open|>", false}, {"a<|sep|>b", true}};
  std::vector<TokenId> expected = {open};
  for (const TokenId id : tokenizer.encode("<|open|>")) expected.push_back(id);
  for (const TokenId id : tokenizer.encode("a")) expected.push_back(id);
  expected.push_back(kSmallBase + 5);
  for (const TokenId id : tokenizer.encode("b")) expected.push_back(id);
  CHECK(tokenizer.encode(segments) == expected);
}

TEST_CASE("skipping specials keeps those the config does not flag", "[text][tokenizer]") {
  const std::vector<TokenId> ids = {kSmallBase, 'a', kSmallBase + 3, kSmallBase + 2,
                                    kSmallBase + 8};
  CHECK(small_tokenizer().decode(ids, Specials::keep) ==
        "[BOS]a<|open|><|end_of_msg|><|reserved_token_1032|>");
  CHECK(small_tokenizer().decode(ids, Specials::skip) == "a<|open|>");
}

TEST_CASE("ids outside the vocabulary decode to the replacement character", "[text][tokenizer]") {
  const std::vector<TokenId> ids = {-1, 'a', kSmallBase + 256, INT32_MAX};
  CHECK(small_tokenizer().decode(ids, Specials::keep) ==
        "\uFFFD"
        "a\uFFFD\uFFFD");
  CHECK(small_tokenizer().token_bytes(-1).empty());
  CHECK_FALSE(small_tokenizer().is_special(kSmallBase + 256));
}

TEST_CASE("broken utf-8 is replaced by maximal subparts", "[text][utf8]") {
  CHECK(replace_broken_utf8("a\xF0\x9F\x98z\x80\xC0\x80\xED\xA0\x80\xF4\x90") ==
        "a\uFFFDz\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD");
  CHECK(replace_broken_utf8("ä\U0001F600") == "ä\U0001F600");
  CHECK(small_tokenizer().encode("x\xFF") == small_tokenizer().encode("x\uFFFD"));
  CHECK(utf8_step("\xE4\xB8").kind == Utf8Step::Kind::cut);
  CHECK(utf8_step("\xE4z").kind == Utf8Step::Kind::broken);
}

TEST_CASE("the split pattern cuts words, digits, marks and blanks", "[text][splitter]") {
  CHECK(pieces_of("Hello WORLDwide don't12345  x\n\n y!!\n") ==
        std::vector<std::string>{"Hello", " WORLDwide", " don't", "123", "45", " ", " x", "\n\n",
                                 " y", "!!\n"});
  CHECK(pieces_of("中文abc한글") == std::vector<std::string>{"中文", "abc한글"});
  CHECK(pieces_of("a\u180Eb") == std::vector<std::string>{"a", "\u180Eb"});
  CHECK(pieces_of("\u3005\u3007x") == std::vector<std::string>{"\u3005\u3007", "x"});
  CHECK(pieces_of("").empty());
}

TEST_CASE("letters newer than the library's tables are letters", "[text][splitter]") {
  CHECK(pieces_of("a\U00016100b") == std::vector<std::string>{"a\U00016100b"});
  CHECK(pieces_of("\U00031350\u4E2D") == std::vector<std::string>{"\U00031350\u4E2D"});
  CHECK(pieces_of("1\U000116D0") == std::vector<std::string>{"1\U000116D0"});
  CHECK(pieces_of("x\U0001F600") == std::vector<std::string>{"x", "\U0001F600"});
}

TEST_CASE("class intersections mean the same with and without a look-ahead", "[text][splitter]") {
  CHECK(*to_pcre2_pattern(R"([\p{Lu}\p{M}&&[^\p{Han}]]\s)").map([](std::string text) {
    return text.substr(0, 9);
  }) == R"([^\p{Ll}\)");
  CHECK(*to_pcre2_pattern("[a-f&&[^c]]") == "(?:(?=[^c])[a-f])");
  const auto splitter = Splitter::compile("[a-f&&[^c]]+");
  REQUIRE(splitter);
  std::vector<std::string_view> pieces;
  splitter->split("abcdxx", pieces);
  CHECK(pieces == std::vector<std::string_view>{"ab", "c", "d", "xx"});
}

TEST_CASE("a pattern that cannot be rewritten or compiled is refused", "[text][splitter]") {
  const auto reason = [](std::string_view pattern) {
    const auto compiled = Splitter::compile(pattern);
    return compiled ? "compiled" : compiled.error().text();
  };
  CHECK(reason("") == "split pattern: it is empty");
  CHECK(reason("[ab") == "split pattern: the class at byte 0 has no `]`");
  CHECK(reason("x[]") == "split pattern: empty class at byte 1");
  CHECK(reason("a\\") == "split pattern: a backslash at the end, byte 1");
  CHECK(reason("\\w+") == "split pattern: `\\w` at byte 0 means another set in PCRE2");
  CHECK(reason("[\\S]") == "split pattern: `\\S` inside a class at byte 1");
  CHECK(reason("\\pL") == "split pattern: expected `{` after `\\p` at byte 0");
  CHECK(reason("\\p{L") == "split pattern: the property at byte 0 has no `}`");
  CHECK(reason("[^a&&[b]]") == "split pattern: a negated intersection cannot be expressed");
  CHECK(reason("[a&&b]") == "split pattern: only `[A&&[B]]` may nest classes, byte 2");
  CHECK(reason("[a&&[b]c]") == "split pattern: expected `]` after an intersection, byte 7");
  CHECK(reason("(a").starts_with("split pattern: missing closing parenthesis at byte 2 of `(a`"));
  CHECK(reason(std::string(Splitter::kPatternBytesMax + 1, 'a')) ==
        "split pattern: at most 65536 bytes, got 65537");
}

TEST_CASE("a vocabulary file that is not whole is refused with a sentence", "[text][tokenizer]") {
  const std::string bytes = byte_lines();
  CHECK(load_error(bytes, byte_spec()) == "loaded");
  CHECK(load_error(bytes + "YWI= 256\r\n\n", byte_spec()) == "loaded");
  CHECK(load_error("", byte_spec()) == "vocabulary: no tokens");
  CHECK(load_error("YQ==\n", byte_spec()) ==
        "vocabulary line 1: expected `base64 rank`, got `YQ==`");
  CHECK(load_error(bytes + "Y_== 256\n", byte_spec()) ==
        "vocabulary line 257: `Y_==` is not base64");
  CHECK(load_error(bytes + "YWI 256\n", byte_spec()) == "vocabulary line 257: `YWI` is not base64");
  CHECK(load_error(bytes + "YR== 256\n", byte_spec()) ==
        "vocabulary line 257: `YR==` is not base64");
  CHECK(load_error(bytes + " 256\n", byte_spec()) == "vocabulary line 257: `` is not base64");
  CHECK(load_error(bytes + "YWI= 25x\n", byte_spec()) ==
        "vocabulary line 257: expected a rank, got `25x`");
  CHECK(load_error(bytes + "YWI= -1\n", byte_spec()) ==
        "vocabulary line 257: expected a rank, got `-1`");
  CHECK(load_error(bytes + "YWI= 99999999999\n", byte_spec()) ==
        "vocabulary line 257: expected a rank, got `99999999999`");
  CHECK(load_error(bytes + "YWI= 2000000000\n", byte_spec()) ==
        "vocabulary line 257: expected a rank below 4194304, got 2000000000");
  CHECK(load_error(bytes + "YWI= 255\n", byte_spec()) ==
        "vocabulary line 257: rank 255 appears twice");
  CHECK(load_error(bytes + "YWI= 257\n", byte_spec()) == "vocabulary: rank 256 of 258 is missing");
  CHECK(load_error(bytes + "YQ== 256\n", byte_spec()) ==
        "vocabulary: ranks 97 and 256 are the same bytes");
  CHECK(load_error(bytes.substr(0, bytes.find("/w==")), byte_spec()) ==
        "vocabulary: byte 0xFF has no token");
  CHECK(load_error(std::string(Tokenizer::kModelBytesMax + 1, 'a'), byte_spec()) ==
        "vocabulary: at most 67108864 bytes, got 67108865");
}

TEST_CASE("special slots that contradict each other are refused", "[text][tokenizer]") {
  const std::string bytes = byte_lines();
  CHECK(load_error(bytes, byte_spec({{260, "x"}})) ==
        "special `x`: expected an id in [256, 260), got 260");
  CHECK(load_error(bytes, byte_spec({{256, "x"}, {256, "y"}})) ==
        "special id 256 is named twice: `x` and `y`");
  CHECK(load_error(bytes, byte_spec({{256, "x"}, {257, "x"}})) ==
        "special `x` names both id 256 and id 257");
  CHECK(load_error(bytes, byte_spec({{256, ""}})) == "special id 256: its name is empty");
  TokenizerSpec many = byte_spec();
  many.special_slots = 5000;
  CHECK(load_error(bytes, many) == "special slots: expected 0 to 4096, got 5000");
}

TEST_CASE("a tokenizer config names the specials", "[text][tokenizer]") {
  const auto spec = parse_tokenizer_config(k3::tokenizer_config_json(kSmallBase), "x");
  REQUIRE(spec);
  CHECK(spec->specials == k3::special_tokens(kSmallBase));
  CHECK(spec->special_slots == 256);
  const auto reason = [](std::string_view json) {
    const auto parsed = parse_tokenizer_config(json, "x");
    return parsed ? "parsed" : parsed.error().text();
  };
  CHECK(reason("{}") == "tokenizer config: expected an object `added_tokens_decoder`, got none");
  CHECK(reason("[").starts_with("tokenizer config: not a JSON value: "));
  CHECK(reason(R"({"added_tokens_decoder": {"x": {"content": "a"}}})") ==
        "added_tokens_decoder: expected an id, got `x`");
  CHECK(reason(R"({"added_tokens_decoder": {"7": {"content": 3}}})") ==
        "added_tokens_decoder `7`: expected a string `content`");
  CHECK(reason(R"({"added_tokens_decoder": {"7": {"content": "a", "special": 1}}})") ==
        "added_tokens_decoder `7`: expected a boolean `special`");
}

TEST_CASE("time grows with the length of hostile text, not with its square", "[text][tokenizer]") {
  constexpr size_t kSmall = 250'000;
  constexpr size_t kLarge = 4 * kSmall;
  seconds_to_encode("warm");
  for (const char* part : {"a", "A", " ", "\n", "!", "1", "中", "ab", " \n", "'s", "Aa", "\u0301",
                           "a ", "\r\n ", "🚀"}) {
    INFO(part);
    const double small = seconds_to_encode(repeat(part, kSmall));
    const double large = seconds_to_encode(repeat(part, kLarge));
#ifndef __SANITIZE_ADDRESS__
    CHECK(large < 1.0);
#endif
    // Linear is 4, a square is 16; the constant absorbs noise.
    CHECK(large < 9 * small + 0.05);
  }
}

TEST_CASE("a detokenizer's deltas are whole characters and join to the decoded text",
          "[text][detokenizer][prop]") {
  kern::Prng prng(7);
  for (int round = 0; round < 300; ++round) {
    std::vector<TokenId> ids;
    // Bytes as tokens of one byte each, broken or not, with tokens of any kind between.
    for (const char byte : random_bytes(prng, 1 + prng.below(12)))
      ids.push_back(static_cast<unsigned char>(byte));
    for (size_t i = prng.below(6); i > 0; --i)
      ids.push_back(static_cast<TokenId>(prng.below(kSmallBase + 260)));
    for (const Specials specials : {Specials::keep, Specials::skip}) {
      Detokenizer detokenizer(small_tokenizer(), specials);
      std::string joined;
      for (const TokenId id : ids) {
        const std::string delta = detokenizer.push(id);
        CHECK(is_utf8(delta));
        CHECK(detokenizer.held_bytes() <= 3);
        joined += delta;
      }
      joined += detokenizer.finish();
      CHECK(joined == small_tokenizer().decode(ids, specials));
    }
  }
}

TEST_CASE("a character waits for its last byte, and the end replaces half of one",
          "[text][detokenizer]") {
  Detokenizer detokenizer(small_tokenizer(), Specials::skip);
  CHECK(detokenizer.push(0xF0).empty());
  CHECK(detokenizer.push(0x9F).empty());
  CHECK(detokenizer.push(0x98).empty());
  CHECK(detokenizer.push(0x80) == "\U0001F600");
  CHECK(detokenizer.push(0xE4).empty());
  CHECK(detokenizer.push(kSmallBase).empty());
  CHECK(detokenizer.push('a') ==
        "\uFFFD"
        "a");
  CHECK(detokenizer.push(0xC3).empty());
  CHECK(detokenizer.finish() == "\uFFFD");
  CHECK(detokenizer.finish().empty());
}
