#include "kern/text/detokenizer.h"

#include "kern/base/assert.h"
#include "kern/text/utf8.h"

namespace kern::text {

std::string Detokenizer::push(TokenId id) {
  if (specials_ == Specials::skip && tokenizer_->is_skipped(id)) return {};
  const bool is_known = id >= 0 && id < tokenizer_->vocab_size();
  held_ += is_known ? tokenizer_->token_bytes(id) : std::string_view("\xEF\xBF\xBD");
  // What is held ends where a character is cut by the end; a cut part is always the last.
  size_t whole = 0;
  while (whole < held_.size()) {
    const Utf8Step step = utf8_step(std::string_view(held_).substr(whole));
    if (step.kind == Utf8Step::Kind::cut) break;
    whole += step.bytes;
  }
  KERN_ASSERT(whole <= held_.size(), "{} of {}", whole, held_.size());
  std::string out = replace_broken_utf8(std::string_view(held_).substr(0, whole));
  held_.erase(0, whole);
  KERN_ASSERT(held_.size() <= 3, "{} bytes held", held_.size());
  return out;
}

std::string Detokenizer::finish() {
  std::string out = replace_broken_utf8(held_);
  held_.clear();
  return out;
}

}  // namespace kern::text
