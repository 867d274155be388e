#include "bodies.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "json_writer.h"

namespace kern::serve {
namespace {

/// What clients expect where a probability is zero.
constexpr float kLogprobFloor = -9999.0F;

float printable(float logprob) {
  return std::isfinite(logprob) ? std::max(logprob, kLogprobFloor) : kLogprobFloor;
}

}  // namespace

/// A JsonWriter that knows the exchange.
class AnswerPrinter::Json : public JsonWriter {
 public:
  explicit Json(const AnswerPrinter& printer) : printer_(printer) {}

  /// Everything before `choices`.
  void head(std::string_view object) {
    const Exchange& exchange = printer_.exchange_;
    begin_object().field("id", exchange.name).field("object", object);
    field("created", exchange.created).field("model", printer_.model_.name);
  }
  std::string_view chunk_object() const {
    return printer_.exchange_.chat ? "chat.completion.chunk" : "text_completion";
  }
  /// The tail of a stream's event.
  std::string end_chunk() {
    end_object().end_array();
    if (printer_.exchange_.include_usage) key("usage").null();
    end_object();
    return sse_event(take());
  }
  void finish_reason(const Choice& choice) {
    key("finish_reason");
    if (choice.finish_reason.empty())
      null();
    else
      string(choice.finish_reason);
  }
  void usage() {
    int64_t prompt_tokens = 0, cached = 0, generated = 0;
    for (const auto& prompt : printer_.exchange_.prompts) {
      prompt_tokens += static_cast<int64_t>(prompt.tokens.size());
      cached += prompt.cached;
    }
    for (const auto& choice : printer_.exchange_.choices) generated += choice.tokens;
    key("usage").begin_object().field("prompt_tokens", prompt_tokens);
    field("completion_tokens", generated).field("total_tokens", prompt_tokens + generated);
    key("prompt_tokens_details").begin_object().field("cached_tokens", cached).end_object();
    end_object();
  }
  void logprobs(const Choice& choice) {
    key("logprobs");
    if (!printer_.exchange_.logprobs)
      null();
    else if (printer_.exchange_.chat)
      chat_logprobs(choice);
    else
      completion_logprobs(choice);
  }
  void calls(const Choice& choice, const std::vector<text::CalledTool>& calls, bool with_index) {
    key("tool_calls").begin_array();
    for (const auto& call : calls) {
      begin_object();
      if (with_index) field("index", call.index);
      field("id", fmt::format("call_{}_{}_{}", printer_.exchange_.name.substr(9), choice.index,
                              call.index));
      field("type", "function").key("function").begin_object();
      field("name", call.name).field("arguments", call.arguments).end_object().end_object();
    }
    end_array();
  }

 private:
  /// A token's text for /v1/completions, unlike for unlike tokens.
  std::string completion_text(engine::Token token) const {
    const std::string_view bytes = printer_.tokenizer_.token_bytes(token);
    std::string spelled = valid_utf8(bytes);
    if (spelled == bytes) return spelled;
    spelled = "bytes:";
    for (const char byte : bytes)
      spelled += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
    return spelled;
  }
  void completion_logprobs(const Choice& choice) {
    begin_object().key("tokens").begin_array();
    for (const auto& seen : choice.seen) string(completion_text(seen.token));
    end_array().key("token_logprobs").begin_array();
    for (const auto& seen : choice.seen)
      if (seen.logprob)
        number(printable(*seen.logprob));
      else
        null();
    end_array().key("top_logprobs").begin_array();
    for (const auto& seen : choice.seen) top_object(seen);
    end_array().key("text_offset").begin_array();
    for (const auto& seen : choice.seen) integer(seen.offset);
    end_array().end_object();
  }
  /// The likeliest tokens and the chosen one, by text.
  void top_object(const SeenToken& seen) {
    if (!seen.logprob) {
      null();
      return;
    }
    std::set<std::string> printed;
    begin_object();
    const auto print = [&](engine::Token token, float logprob) {
      const std::string text = completion_text(token);
      if (printed.insert(text).second) key(text).number(printable(logprob));
    };
    for (const auto& top : seen.top) print(top.token, top.logprob);
    print(seen.token, *seen.logprob);
    end_object();
  }
  void chat_token(engine::Token token, float logprob) {
    const std::string_view bytes = printer_.tokenizer_.token_bytes(token);
    field("token", bytes).key("logprob").number(printable(logprob));
    key("bytes").begin_array();
    for (const char byte : bytes) integer(static_cast<unsigned char>(byte));
    end_array();
  }
  void chat_logprobs(const Choice& choice) {
    begin_object().key("content").begin_array();
    for (const auto& seen : choice.seen) {
      begin_object();
      chat_token(seen.token, seen.logprob.value_or(kLogprobFloor));
      key("top_logprobs").begin_array();
      const auto count =
          std::min(seen.top.size(), static_cast<size_t>(printer_.exchange_.top_logprobs));
      for (size_t i = 0; i < count; ++i) {
        begin_object();
        chat_token(seen.top[i].token, seen.top[i].logprob);
        end_object();
      }
      end_array().end_object();
    }
    end_array().end_object();
  }

  const AnswerPrinter& printer_;
};

std::string sse_event(std::string_view json) {
  std::string event;
  event.reserve(json.size() + 8);
  event += "data: ";
  event += json;
  event += "\n\n";
  return event;
}

std::string AnswerPrinter::whole() const {
  Json json(*this);
  json.head(exchange_.chat ? "chat.completion" : "text_completion");
  json.key("choices").begin_array();
  for (const auto& choice : exchange_.choices) {
    json.begin_object().field("index", choice.index);
    const Delta& whole = choice.whole;
    if (exchange_.chat) {
      json.key("message").begin_object().field("role", "assistant").key("content");
      if (whole.content.empty() && !whole.calls.empty())
        json.null();
      else
        json.string(whole.content);
      if (!whole.reasoning.empty()) json.field("reasoning_content", whole.reasoning);
      if (!whole.calls.empty()) json.calls(choice, whole.calls, false);
      json.end_object();
    } else {
      json.field("text", whole.content);
    }
    json.logprobs(choice);
    json.finish_reason(choice);
    json.end_object();
  }
  json.end_array();
  json.usage();
  json.end_object();
  return json.take();
}

std::string AnswerPrinter::role_event(const Choice& choice) const {
  Json json(*this);
  json.head(json.chunk_object());
  json.key("choices").begin_array().begin_object().field("index", choice.index);
  json.key("delta").begin_object().field("role", "assistant").field("content", "").end_object();
  json.key("logprobs").null().key("finish_reason").null();
  return json.end_chunk();
}

std::string AnswerPrinter::delta_event(const Choice& choice, const Delta& delta) const {
  Json json(*this);
  json.head(json.chunk_object());
  json.key("choices").begin_array().begin_object().field("index", choice.index);
  if (exchange_.chat) {
    json.key("delta").begin_object();
    if (!delta.reasoning.empty()) json.field("reasoning_content", delta.reasoning);
    if (!delta.content.empty()) json.field("content", delta.content);
    if (!delta.calls.empty()) json.calls(choice, delta.calls, true);
    json.end_object();
  } else {
    json.field("text", delta.content);
  }
  json.logprobs(choice);
  json.key("finish_reason").null();
  return json.end_chunk();
}

std::string AnswerPrinter::finish_event(const Choice& choice) const {
  Json json(*this);
  json.head(json.chunk_object());
  json.key("choices").begin_array().begin_object().field("index", choice.index);
  if (exchange_.chat)
    json.key("delta").begin_object().end_object();
  else
    json.field("text", "");
  if (choice.seen.empty())
    json.key("logprobs").null();
  else
    json.logprobs(choice);
  json.finish_reason(choice);
  return json.end_chunk();
}

std::string AnswerPrinter::usage_event() const {
  Json json(*this);
  json.head(json.chunk_object());
  json.key("choices").begin_array().end_array();
  json.usage();
  json.end_object();
  return sse_event(json.take());
}

}  // namespace kern::serve
