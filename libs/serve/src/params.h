#pragma once
/// What a generation request asks for, checked against the limits, before any text is encoded.
/// Thread safety: plain values and pure functions.

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "api_error.h"
#include "fields.h"
#include "kern/engine/request.h"

namespace kern::serve {

/// What both generation routes share.
struct GenerationParams {
  engine::Sampling sampling;  ///< without its seed
  std::optional<uint64_t> seed;
  int32_t n = 1;
  std::optional<int32_t> max_tokens;
  const char* max_tokens_field = "max_tokens";  ///< where the client says it
  std::vector<std::string> stop;
  std::vector<engine::Token> stop_token_ids;
  bool ignore_eos = false;
  bool stream = false;
  bool include_usage = false;
  bool skip_special_tokens = true;
  int32_t top_logprobs = -1;  ///< as engine::Request has it
  int32_t priority = 0;
  double timeout_s = 0;              ///< 0: none
  std::vector<std::string> ignored;  ///< fields that were given and have no effect
};

/// A prompt of /v1/completions or /tokenize: text, or ids.
using Prompt = std::variant<std::string, std::vector<engine::Token>>;

struct CompletionParams {
  GenerationParams shared;
  std::vector<Prompt> prompts;
  bool echo = false;
};

/// The fields of /v1/completions.
Outcome<CompletionParams> read_completion(Fields& fields, const ApiOptions& options,
                                          const ModelInfo& model);
/// The fields of /v1/chat/completions that are not the chat itself.
Outcome<GenerationParams> read_chat(Fields& fields, const ApiOptions& options,
                                    const ModelInfo& model);
/// 404 when `model` names another model than the one served.
std::optional<ApiError> check_model(Fields& fields, const ModelInfo& model);
/// One prompt, text or ids below the vocabulary's end.
std::optional<Prompt> read_prompt(Fields& fields, const Json& value, const ModelInfo& model);

}  // namespace kern::serve
