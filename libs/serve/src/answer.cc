#include "answer.h"

#include <iterator>
#include <utility>

namespace kern::serve {

void Delta::append(Delta other) {
  reasoning += other.reasoning;
  content += other.content;
  std::move(other.calls.begin(), other.calls.end(), std::back_inserter(calls));
}

Answer::Answer(const text::Tokenizer& tokenizer, text::Specials specials,
               std::vector<std::string> stops)
    : plain_(std::in_place, tokenizer, specials), matcher_(std::move(stops)) {}

Answer::Answer(const text::Tokenizer& tokenizer, text::OutputStart start,
               std::vector<std::string> stops)
    : chat_(std::in_place, tokenizer, start), matcher_(std::move(stops)) {}

Delta Answer::push(engine::Token token) {
  if (stopped()) return {};
  if (chat_) return read(chat_->push(token));
  Delta delta;
  delta.content = matcher_.push(plain_->push(token));
  return delta;
}

Delta Answer::finish() {
  if (stopped()) return {};
  Delta delta;
  if (chat_)
    delta = read(chat_->finish());
  else
    delta.content = matcher_.push(plain_->finish());
  if (!stopped()) delta.content += matcher_.flush();
  return delta;
}

Delta Answer::read(const std::vector<text::OutputEvent>& events) {
  Delta delta;
  for (const auto& event : events) {
    if (stopped()) break;
    if (const auto* thought = std::get_if<text::ReasoningDelta>(&event)) {
      delta.reasoning += thought->text;
    } else if (const auto* content = std::get_if<text::ContentDelta>(&event)) {
      delta.content += matcher_.push(content->text);
    } else {
      // The content channel is closed: no stop string can end behind it.
      delta.content += matcher_.flush();
      delta.calls.push_back(std::get<text::CalledTool>(event));
    }
  }
  return delta;
}

}  // namespace kern::serve
