#pragma once
/// The JSON of answers: whole bodies and the chunks of a stream.
/// Thread safety: pure functions.

#include <string>

#include "exchange.h"
#include "kern/text/tokenizer.h"

namespace kern::serve {

/// Prints one exchange's answers.
class AnswerPrinter {
 public:
  AnswerPrinter(const Exchange& exchange, const ModelInfo& model, const text::Tokenizer& tokenizer)
      : exchange_(exchange), model_(model), tokenizer_(tokenizer) {}

  /// The body of an answer that is not streamed.
  std::string whole() const;
  /// The event that opens a chat choice.
  std::string role_event(const Choice& choice) const;
  /// What `delta` adds to a choice, with the tokens seen since the last event.
  std::string delta_event(const Choice& choice, const Delta& delta) const;
  /// The end of a choice.
  std::string finish_event(const Choice& choice) const;
  /// Usage, with no choices.
  std::string usage_event() const;

 private:
  class Json;

  const Exchange& exchange_;
  const ModelInfo& model_;
  const text::Tokenizer& tokenizer_;
};

/// "data: " + `json` + a blank line.
std::string sse_event(std::string_view json);

}  // namespace kern::serve
