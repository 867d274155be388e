#include "tokenizer/k3_tokenizer.h"

#include "kern/base/file.h"
#include "kern/text/json_text.h"

namespace k3 {
namespace {

constexpr size_t kConfigBytesMax = size_t{1} << 20;

constexpr std::string_view kUpper = R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]])";
constexpr std::string_view kLower = R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]])";
constexpr std::string_view kLead = R"([^\r\n\p{L}\p{N}]?)";
constexpr std::string_view kSuffix = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)";

/// A named slot: its place behind the base, and whether decoders may skip it.
struct SlotName {
  int32_t slot;
  std::string_view name;
  bool skipped;
};
constexpr SlotName kSlotNames[] = {
    {0, "[BOS]", true},
    {1, "[EOS]", true},
    {2, kern::text::kEndMarker, true},
    {3, kern::text::kOpenMarker, false},
    {4, kern::text::kCloseMarker, false},
    {5, kern::text::kSeparatorMarker, false},
    {6, "[start_header_id]", true},
    {7, "[end_header_id]", true},
    {9, "[EOT]", true},
    {18, "<|media_begin|>", true},
    {19, "<|media_content|>", true},
    {20, "<|media_end|>", true},
    {21, "<|media_pad|>", true},
    {65, "<osagent_mode>", true},
    {254, "[UNK]", true},
    {255, "[PAD]", true},
};

}  // namespace

std::string split_pattern() {
  const std::string alternatives[] = {
      R"([\p{Han}]+)",
      fmt::format("{}{}*{}+{}", kLead, kUpper, kLower, kSuffix),
      fmt::format("{}{}+{}*{}", kLead, kUpper, kLower, kSuffix),
      R"(\p{N}{1,3})",
      R"( ?[^\s\p{L}\p{N}]+[\r\n]*)",
      R"(\s*[\r\n]+)",
      R"(\s+(?!\S))",
      R"(\s+)",
  };
  return fmt::format("{}", fmt::join(alternatives, "|"));
}

std::vector<kern::text::SpecialToken> special_tokens(int32_t first_special_id) {
  std::vector<kern::text::SpecialToken> out;
  for (const SlotName& named : kSlotNames)
    out.push_back({first_special_id + named.slot, std::string(named.name), named.skipped});
  return out;
}

std::string tokenizer_config_json(int32_t first_special_id) {
  std::string out = "{\n  \"added_tokens_decoder\": {";
  std::string_view separator = "";
  for (const kern::text::SpecialToken& special : special_tokens(first_special_id)) {
    out += fmt::format(
        "{}\n    \"{}\": {{\"content\": {}, \"lstrip\": false, \"normalized\": false, "
        "\"rstrip\": false, \"single_word\": false, \"special\": {}}}",
        separator, special.id, kern::text::quote_json(special.name), special.skipped);
    separator = ",";
  }
  return out +
         "\n  },\n  \"bos_token\": \"[BOS]\",\n  \"eos_token\": \"[EOS]\",\n"
         "  \"pad_token\": \"[PAD]\",\n  \"unk_token\": \"[UNK]\"\n}\n";
}

kern::text::ChatStyle chat_style() {
  return {.family = "Kimi K3"};
}

kern::Result<kern::text::Tokenizer> load_tokenizer(const std::filesystem::path& checkpoint) {
  using kern::text::Tokenizer;
  using kern::text::TokenizerSpec;
  KERN_TRY(model, kern::read_file(checkpoint / "tiktoken.model", Tokenizer::kModelBytesMax));
  TokenizerSpec spec{.pattern = split_pattern(), .special_slots = kSpecialSlots};
  const std::filesystem::path config = checkpoint / "tokenizer_config.json";
  std::error_code error;
  if (std::filesystem::exists(config, error)) {
    KERN_TRY(json, kern::read_file(config, kConfigBytesMax));
    KERN_TRY(named,
             kern::with_context(kern::text::parse_tokenizer_config(json, std::move(spec.pattern)),
                                "{}", config.string()));
    spec = std::move(named);
  } else {
    KERN_TRY(base, kern::with_context(Tokenizer::load(model, spec), "{}", checkpoint.string()));
    spec.specials = special_tokens(base.base_size());
  }
  return kern::with_context(Tokenizer::load(model, std::move(spec)), "{}", checkpoint.string());
}

}  // namespace k3
