#pragma once
/// A byte-level BPE trainer, for checkpoints of small configurations that need a real vocabulary of
/// any size: token 0..255 are the single bytes, every further token is the most frequent pair of
/// the corpus. Thread safety: pure functions. Determinism: the same corpus, pattern and size give
/// the same bytes; ties go to the smaller pair. Does not: read files, or train large vocabularies
/// quickly.

#include <cstdint>
#include <string>
#include <string_view>

#include "kern/base/result.h"

namespace k3 {

inline constexpr int32_t kBaseVocabMax = 65536;

/// The text of a tiktoken.model of `base_vocab_size` lines, [256, kBaseVocabMax]. When the corpus
/// runs out of pairs the rest are tokens of two bytes that no earlier token spells, so the size is
/// always met.
kern::Result<std::string> train_tiktoken_model(std::string_view corpus, std::string_view pattern,
                                               int32_t base_vocab_size);

}  // namespace k3
