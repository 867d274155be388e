#pragma once
/// An exchange is one generation request and its growing answers. Plain values that generate.cc
/// makes, deliver.cc changes and bodies.cc prints.
/// Thread safety: one thread.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "answer.h"
#include "kern/serve/api.h"

namespace kern::serve {

/// A token of an answer as a client wants to see it.
struct SeenToken {
  engine::Token token = 0;
  std::optional<float> logprob;  ///< none for tokens of an echoed prompt
  std::vector<engine::TokenLogprob> top;
  int64_t offset = 0;  ///< characters of text before it
};

struct PromptUse {
  std::vector<engine::Token> tokens;
  std::string echo;  ///< text put before the answer, or empty
  int32_t cached = 0;
};

/// One answer of an exchange.
struct Choice {
  engine::RequestId id;
  int32_t index = 0;
  size_t prompt = 0;
  bool first_of_prompt = false;  ///< the one whose cached tokens are told
  Answer answer;
  Delta whole;                  ///< everything so far, when not streamed
  std::vector<SeenToken> seen;  ///< not yet printed
  int64_t characters = 0;       ///< of text so far
  int32_t tokens = 0;
  int32_t calls = 0;
  bool stopping = false;      ///< a stop string ended it, the engine's word is due
  std::string finish_reason;  ///< empty until it ended
  TimeNs last_token = 0;
};

struct Exchange {
  ExchangeId id = 0;
  Responder* responder = nullptr;
  bool chat = false;
  bool stream = false;
  bool include_usage = false;
  bool begun = false;  ///< the stream's first bytes are out
  bool logprobs = false;
  int32_t top_logprobs = 0;
  std::string name;       ///< the answer's `id`
  std::string client_id;  ///< x-request-id, for the log
  int64_t created = 0;
  std::vector<HttpHeader> headers;
  std::vector<PromptUse> prompts;
  std::vector<Choice> choices;
  size_t open = 0;  ///< choices that have not ended
  TimeNs started = 0;
};

}  // namespace kern::serve
