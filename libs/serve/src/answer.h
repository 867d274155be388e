#pragma once
/// One answer as it grows: token ids in, text, thoughts and calls out, ended at stop strings. The
/// deltas joined are the same whether a client streams or not, because there is no other way.
/// Thread safety: one thread each. Lifetime: the tokenizer outlives it.
/// Does not: count tokens, or know JSON.

#include <optional>
#include <string>
#include <vector>

#include "kern/engine/request.h"
#include "kern/text/detokenizer.h"
#include "kern/text/tool_calls.h"
#include "stop_matcher.h"

namespace kern::serve {

/// What one token (or the end) adds to an answer.
struct Delta {
  std::string reasoning;
  std::string content;
  std::vector<text::CalledTool> calls;
  bool empty() const { return reasoning.empty() && content.empty() && calls.empty(); }
  void append(Delta other);
};

class Answer {
 public:
  /// A plain completion.
  Answer(const text::Tokenizer& tokenizer, text::Specials specials, std::vector<std::string> stops);
  /// A chat turn that begins in `start`. Stop strings are looked for in the content alone.
  Answer(const text::Tokenizer& tokenizer, text::OutputStart start, std::vector<std::string> stops);

  Delta push(engine::Token token);
  /// The answer is over, whole or cut; nothing after a stop string.
  Delta finish();
  /// A stop string ended it.
  bool stopped() const { return matcher_.matched(); }

 private:
  Delta read(const std::vector<text::OutputEvent>& events);

  std::optional<text::Detokenizer> plain_;
  std::optional<text::OutputReader> chat_;
  StopMatcher matcher_;
};

}  // namespace kern::serve
