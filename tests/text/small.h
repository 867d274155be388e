#pragma once
/// The tokenizer that the tests of this folder share: 1024 base tokens of the project's corpus.

#include "tokenizer/k3_tokenizer.h"
#include "tokenizer/train_bpe.h"

namespace kern_test {

inline constexpr int32_t kSmallBase = 1024;

inline const std::string& small_model() {
  static const std::string model =
      *k3::train_tiktoken_model(k3::training_corpus(), k3::split_pattern(), kSmallBase);
  return model;
}

inline kern::text::TokenizerSpec small_spec() {
  return {k3::split_pattern(), k3::kSpecialSlots, k3::special_tokens(kSmallBase)};
}

inline const kern::text::Tokenizer& small_tokenizer() {
  static const kern::text::Tokenizer tokenizer =
      *kern::text::Tokenizer::load(small_model(), small_spec());
  return tokenizer;
}

}  // namespace kern_test
