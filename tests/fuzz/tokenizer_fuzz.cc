// Any bytes as a vocabulary, its config, and a text to encode: the three parts of the input, split
// at its first two NUL bytes. Whoever loads encodes and decodes any well-formed text to itself,
// never makes a special of ordinary text, and streams to the same characters.
#include <cstdint>
#include <string>

#include "kern/base/assert.h"
#include "kern/text/detokenizer.h"
#include "kern/text/tokenizer.h"
#include "kern/text/tool_calls.h"

using namespace kern::text;

namespace {

constexpr const char* kPattern = R"([a-zA-Z]+|\s+|[^a-zA-Z\s])";

std::string_view next_part(std::string_view& rest) {
  const size_t at = rest.find('\0');
  const std::string_view part = rest.substr(0, at);
  rest = at == std::string_view::npos ? std::string_view() : rest.substr(at + 1);
  return part;
}

/// Every byte, so that a vocabulary that lacks some is one that has them.
std::string with_all_bytes(std::string_view lines) {
  static constexpr char kLetters[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (unsigned byte = 0; byte < 256; ++byte)
    out += fmt::format("{}{}== {}\n", kLetters[byte >> 2], kLetters[(byte & 3) << 4], byte);
  return out + std::string(lines);
}

void check(const Tokenizer& tokenizer, std::string_view text) {
  const auto ids = tokenizer.encode(text);
  for (const TokenId id : ids)
    KERN_ASSERT(id >= 0 && id < tokenizer.base_size(), "ordinary text became {}", id);
  const std::string once = tokenizer.decode(ids, Specials::keep);
  const auto again = tokenizer.encode(once);
  KERN_ASSERT(tokenizer.decode(again, Specials::keep) == once, "a decoded text changes again");
  Detokenizer stream(tokenizer, Specials::keep);
  std::string streamed;
  for (const TokenId id : ids) streamed += stream.push(id);
  streamed += stream.finish();
  KERN_ASSERT(streamed == once, "streamed otherwise");
  const Segment segment{std::string(text), true};
  const auto marked = tokenizer.encode(std::span(&segment, 1));
  for (const TokenId id : marked) KERN_ASSERT(id >= 0 && id < tokenizer.vocab_size());
  read_output(tokenizer, marked, OutputStart::think);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  const std::string_view lines = next_part(rest), config = next_part(rest);
  TokenizerSpec spec{.pattern = kPattern, .special_slots = 8, .specials = {}};
  if (auto read = parse_tokenizer_config(config, kPattern)) {
    spec.specials = read->specials;
    spec.special_slots = 64;
  }
  for (const std::string& model : {std::string(lines), with_all_bytes(lines)}) {
    const auto tokenizer = Tokenizer::load(model, spec);
    if (tokenizer)
      check(*tokenizer, rest);
    else
      KERN_ASSERT(!tokenizer.error().message.empty());
  }
  return 0;
}
