#include <algorithm>

#include "json_writer.h"
#include "kern/serve/api.h"
#include "kern/text/chat.h"
#include "kern/text/tokenizer.h"
#include "state.h"

namespace kern::serve {
namespace {

using Tokens = std::vector<text::TokenId>;

Outcome<Tokens> tokenize_chat(const HttpRequest& request, const text::ChatStyle& style,
                              const text::Tokenizer& tokenizer) {
  const auto chat = text::parse_chat_json(request.body, style);
  if (!chat) return tl::unexpected(bad_request(chat.error(), "messages"));
  const auto segments = text::render_chat(*chat, style);
  if (!segments) return tl::unexpected(bad_request(segments.error(), "messages"));
  return tokenizer.encode(*segments);
}

Outcome<Tokens> tokenize_body(const HttpRequest& request, Fields& fields, const ApiOptions& options,
                              const ModelInfo& model, const text::Tokenizer& tokenizer) {
  if (auto error = check_model(fields, model)) return tl::unexpected(*error);
  if (fields.get("messages")) return tokenize_chat(request, options.style, tokenizer);
  const auto prompt = fields.string("prompt");
  if (!prompt && !fields.error())
    fields.refuse("prompt", "expected `prompt` or `messages`, got neither");
  if (fields.error()) return tl::unexpected(*fields.error());
  return tokenizer.encode(*prompt);
}

Outcome<Tokens> ids_to_detokenize(Fields& fields, const ModelInfo& model) {
  if (auto error = check_model(fields, model)) return tl::unexpected(*error);
  const auto tokens = fields.get("tokens");
  const auto ids = tokens ? tokens->integers() : std::nullopt;
  if (!ids)
    return tl::unexpected(ApiError{400, "`tokens` must be a list of token ids", "tokens", ""});
  for (const auto id : *ids)
    if (id < 0 || id >= model.vocab)
      return tl::unexpected(ApiError{
          400, fmt::format("token id {} is not within [0, {})", id, model.vocab), "tokens", ""});
  return *ids;
}

}  // namespace

HttpResponse Api::State::tokenize(const HttpRequest& request) const {
  const auto document = JsonDocument::parse(request.body, options.limits.json_depth_max);
  if (!document) return error_reply(bad_request(document.error(), ""), options.retry_after_s);
  Fields fields(document->root());
  const bool with_texts = fields.boolean("return_token_strs", false);
  const auto tokens = tokenize_body(request, fields, options, backend.model(), tokenizer);
  if (!tokens) return error_reply(tokens.error(), options.retry_after_s);
  JsonWriter json;
  json.begin_object().field("count", static_cast<int64_t>(tokens->size()));
  json.field("max_model_len", backend.model().max_model_len).key("tokens").begin_array();
  for (const auto token : *tokens) json.integer(token);
  json.end_array().key("token_strs");
  if (with_texts) {
    json.begin_array();
    for (const auto token : *tokens) json.string(tokenizer.token_bytes(token));
    json.end_array();
  } else {
    json.null();
  }
  json.end_object();
  return {.headers = {}, .body = json.take()};
}

HttpResponse Api::State::detokenize(const HttpRequest& request) const {
  const auto document = JsonDocument::parse(request.body, options.limits.json_depth_max);
  if (!document) return error_reply(bad_request(document.error(), ""), options.retry_after_s);
  Fields fields(document->root());
  const auto ids = ids_to_detokenize(fields, backend.model());
  if (!ids) return error_reply(ids.error(), options.retry_after_s);
  JsonWriter json;
  json.begin_object().field("prompt", tokenizer.decode(*ids, text::Specials::keep)).end_object();
  return {.headers = {}, .body = json.take()};
}

}  // namespace kern::serve
