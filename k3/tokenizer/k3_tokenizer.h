#pragma once
/// What K3's tokenizer is, beyond its vocabulary file: the split pattern, the special tokens and
/// their places behind the base vocabulary, the chat style, and the text that small vocabularies
/// are trained on. Thread safety: pure functions; `load_tokenizer` reads two files. Does not: ship
/// a vocabulary.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "kern/base/result.h"
#include "kern/text/chat.h"
#include "kern/text/tokenizer.h"

namespace k3 {

inline constexpr int32_t kSpecialSlots = 256;

/// The split pattern of the released tokenizer, in its own dialect.
std::string split_pattern();
/// The named specials when the slots begin at `first_special_id` (163584 in the released model).
std::vector<kern::text::SpecialToken> special_tokens(int32_t first_special_id);
/// A tokenizer_config.json that names them: added_tokens_decoder, bos, eos, unk and pad.
std::string tokenizer_config_json(int32_t first_special_id);
/// Family name, efforts and default of the chat renderer.
kern::text::ChatStyle chat_style();
/// The project's own training text (tokenizer/corpus/), a few tens of KB in several scripts.
std::string_view training_corpus();
/// `tiktoken.model` and, when there, `tokenizer_config.json` of a checkpoint folder. Without a
/// config the released model's names are used, behind the base.
kern::Result<kern::text::Tokenizer> load_tokenizer(const std::filesystem::path& checkpoint);

}  // namespace k3
