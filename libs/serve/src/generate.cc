#include <algorithm>
#include <charconv>
#include <ctime>
#include <utility>

#include "kern/base/assert.h"
#include "kern/base/prng.h"
#include "kern/serve/api.h"
#include "kern/text/chat.h"
#include "kern/text/tokenizer.h"
#include "state.h"

namespace kern::serve {
namespace {

constexpr int32_t kCompletionTokensDefault = 16;
constexpr double kTimeoutSecondsMax = 1e6;

ApiError too_long(const ModelInfo& model, const std::string& got, const char* param) {
  return {.status = 400,
          .message = fmt::format("this model's maximum context length is {} tokens, {}",
                                 model.max_model_len, got),
          .param = param,
          .code = "context_length_exceeded"};
}

/// The tokens an answer to `prompt` may have.
Outcome<int32_t> answer_room(const std::vector<engine::Token>& prompt,
                             const GenerationParams& params, const ModelInfo& model, bool chat) {
  const char* const param = chat ? "messages" : "prompt";
  const auto used = static_cast<int64_t>(prompt.size());
  const int64_t left = model.max_model_len - used;
  if (prompt.empty())
    return tl::unexpected(ApiError{400, "the prompt must have at least one token", param, ""});
  if (left < (params.max_tokens == 0 ? 0 : 1))
    return tl::unexpected(
        too_long(model, fmt::format("the prompt alone has {} tokens", used), param));
  if (params.max_tokens && *params.max_tokens > left)
    return tl::unexpected(
        too_long(model,
                 fmt::format("{} tokens were asked for: {} in the prompt and {} in the answer",
                             used + *params.max_tokens, used, *params.max_tokens),
                 params.max_tokens_field));
  const auto room = static_cast<int32_t>(left);
  return params.max_tokens.value_or(chat ? room : std::min(room, kCompletionTokensDefault));
}

text::OutputStart start_of(const text::ChatRequest& chat) {
  if (!chat.add_generation_prompt) return text::OutputStart::outside;
  return chat.thinking ? text::OutputStart::think : text::OutputStart::response;
}

/// The seed of answer number `index` of one prompt; the first has the client's own.
uint64_t seed_of(uint64_t seed, int32_t index) {
  KERN_ASSERT(index >= 0, "answer {} of a prompt", index);
  return index == 0 ? seed : Prng(seed + static_cast<uint64_t>(index)).next();
}

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const auto& word : words) out += (out.empty() ? "" : ", ") + word;
  return out;
}

/// One choice for each prompt and each of its `n` answers.
template <class Make>
void add_choices(Exchange& exchange, int32_t n, const Make& make_answer) {
  for (size_t prompt = 0; prompt < exchange.prompts.size(); ++prompt)
    for (int32_t i = 0; i < n; ++i) {
      Choice choice{.index = static_cast<int32_t>(exchange.choices.size()),
                    .prompt = prompt,
                    .first_of_prompt = i == 0,
                    .answer = make_answer()};
      exchange.choices.push_back(std::move(choice));
    }
}

void add_echo(Choice& choice, const PromptUse& prompt, bool stream, bool logprobs) {
  if (!stream) choice.whole.content = prompt.echo;
  choice.characters = std::count_if(prompt.echo.begin(), prompt.echo.end(), [](char byte) {
    return (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
  });
  if (!logprobs) return;
  for (const auto token : prompt.tokens)
    choice.seen.push_back({.token = token, .logprob = {}, .top = {}, .offset = 0});
}

/// Where each echoed token begins; a token inside a character begins where the character does.
void set_echo_offsets(std::vector<SeenToken>& seen, const text::Tokenizer& tokenizer) {
  text::Detokenizer detokenizer(tokenizer, text::Specials::keep);
  int64_t characters = 0;
  for (auto& token : seen) {
    token.offset = characters;
    for (const char byte : detokenizer.push(token.token))
      characters += (static_cast<unsigned char>(byte) & 0xC0) != 0x80 ? 1 : 0;
  }
}

}  // namespace

Outcome<Exchange> Api::State::read_completion_exchange(Fields& fields, GenerationParams& params) {
  auto read = read_completion(fields, options, backend.model());
  if (!read) return tl::unexpected(read.error());
  params = std::move(read->shared);
  Exchange exchange;
  for (const auto& prompt : read->prompts) {
    PromptUse use;
    if (const auto* text = std::get_if<std::string>(&prompt))
      use.tokens = tokenizer.encode(*text);
    else
      use.tokens = std::get<std::vector<engine::Token>>(prompt);
    if (read->echo) use.echo = tokenizer.decode(use.tokens, text::Specials::keep);
    exchange.prompts.push_back(std::move(use));
  }
  const auto specials = params.skip_special_tokens ? text::Specials::skip : text::Specials::keep;
  add_choices(exchange, params.n, [&] { return Answer(tokenizer, specials, params.stop); });
  if (!read->echo) return exchange;
  for (auto& choice : exchange.choices) {
    add_echo(choice, exchange.prompts[choice.prompt], params.stream, params.top_logprobs >= 0);
    set_echo_offsets(choice.seen, tokenizer);
  }
  return exchange;
}

Outcome<Exchange> Api::State::read_chat_exchange(const HttpRequest& request, Fields& fields,
                                                 GenerationParams& params) {
  auto read = read_chat(fields, options, backend.model());
  if (!read) return tl::unexpected(read.error());
  params = std::move(*read);
  const auto chat = text::parse_chat_json(request.body, options.style);
  if (!chat) return tl::unexpected(bad_request(chat.error(), "messages"));
  const auto segments = text::render_chat(*chat, options.style);
  if (!segments) return tl::unexpected(bad_request(segments.error(), "messages"));
  Exchange exchange;
  exchange.chat = true;
  exchange.prompts.push_back({.tokens = tokenizer.encode(*segments), .echo = {}});
  const auto start = start_of(*chat);
  add_choices(exchange, params.n, [&] { return Answer(tokenizer, start, params.stop); });
  return exchange;
}

Outcome<void> Api::State::check_ready() const {
  const Health health = backend.health();
  if (!draining && health.state == HealthState::ready) return {};
  const auto state = draining ? HealthState::draining : health.state;
  return tl::unexpected(ApiError{503,
                                 fmt::format("the server is {}{}{}", to_string(state),
                                             health.reason.empty() ? "" : ": ", health.reason),
                                 "", "not_ready"});
}

Outcome<void> Api::State::check_queue(size_t wanted) const {
  const auto most = static_cast<size_t>(options.limits.answers_max);
  if (wanted > most)
    return tl::unexpected(ApiError{
        400, fmt::format("{} answers were asked for, at most {} fit", wanted, most), "n", ""});
  if (metrics.answers_open + wanted > most)
    return tl::unexpected(ApiError{
        429, fmt::format("{} answers are open, at most {} fit", metrics.answers_open, most), "",
        "queue_full"});
  return {};
}

Outcome<TimeNs> Api::State::deadline_of(const HttpRequest& request,
                                        const GenerationParams& params) const {
  double seconds = params.timeout_s;
  if (!request.timeout.empty()) {
    double header = 0;
    const char* const end = request.timeout.data() + request.timeout.size();
    const auto [stop, error] = std::from_chars(request.timeout.data(), end, header);
    if (error != std::errc() || stop != end || !(header > 0) || header > kTimeoutSecondsMax)
      return tl::unexpected(ApiError{400,
                                     fmt::format("header `x-request-timeout` must be seconds "
                                                 "within (0, {}]",
                                                 kTimeoutSecondsMax),
                                     "x-request-timeout", ""});
    seconds = seconds > 0 ? std::min(seconds, header) : header;
  }
  if (seconds <= 0) return TimeNs{0};
  return clock.now() + static_cast<TimeNs>(seconds * static_cast<double>(kSecondNs));
}

Outcome<std::vector<engine::Request>> Api::State::make_requests(Exchange& exchange,
                                                                const GenerationParams& params,
                                                                TimeNs deadline) {
  std::vector<engine::Request> requests;
  const ModelInfo& model = backend.model();
  const uint64_t seed = params.seed ? *params.seed : backend.random_seed();
  for (auto& choice : exchange.choices) {
    const auto& prompt = exchange.prompts[choice.prompt].tokens;
    const auto room = answer_room(prompt, params, model, exchange.chat);
    if (!room) return tl::unexpected(room.error());
    engine::Request request{.id = engine::RequestId(next_request++),
                            .prompt = prompt,
                            .max_tokens = *room,
                            .sampling = params.sampling,
                            .stop_tokens = params.stop_token_ids,
                            .priority = params.priority,
                            .deadline = deadline,
                            .top_logprobs = params.top_logprobs};
    request.sampling.seed = seed_of(seed, choice.index % params.n);
    if (!params.ignore_eos)
      request.stop_tokens.insert(request.stop_tokens.end(), model.stop_tokens.begin(),
                                 model.stop_tokens.end());
    choice.id = request.id;
    requests.push_back(std::move(request));
  }
  return requests;
}

void Api::State::fill(Exchange& exchange, const HttpRequest& request,
                      const GenerationParams& params) {
  exchange.id = next_exchange++;
  exchange.stream = params.stream;
  exchange.include_usage = params.stream && params.include_usage;
  exchange.logprobs = params.top_logprobs >= 0;
  exchange.top_logprobs = std::max(params.top_logprobs, 0);
  exchange.name =
      fmt::format("{}-{}{:08x}", exchange.chat ? "chatcmpl" : "cmpl", nonce, exchange.id);
  exchange.client_id = request.request_id;
  exchange.created = std::time(nullptr);
  exchange.headers.emplace_back("x-request-id",
                                request.request_id.empty() ? exchange.name : request.request_id);
  if (!params.ignored.empty())
    exchange.headers.emplace_back("x-ignored-fields", joined(params.ignored));
  KERN_ASSERT(!exchange.choices.empty(), "{} asks for no answer", exchange.name);
  exchange.open = exchange.choices.size();
  exchange.started = clock.now();
}

void Api::State::end_unasked(Exchange& exchange) {
  KERN_ASSERT(exchange.open == exchange.choices.size(), "{} has begun", exchange.name);
  if (exchange.stream) begin_stream(exchange);
  for (size_t i = 0, count = exchange.choices.size(); i < count; ++i)
    end_choice(exchange, exchange.choices[i], "length");
}

/// The checks come from cheap to dear: readiness, fields, rendering and encoding, room.
Outcome<ExchangeId> Api::State::generate(const HttpRequest& request, bool chat,
                                         Responder& responder) {
  if (auto ready = check_ready(); !ready) return tl::unexpected(ready.error());
  const auto document = JsonDocument::parse(request.body, options.limits.json_depth_max);
  if (!document) return tl::unexpected(bad_request(document.error(), ""));
  Fields fields(document->root());
  if (fields.error()) return tl::unexpected(*fields.error());
  GenerationParams params;
  auto read =
      chat ? read_chat_exchange(request, fields, params) : read_completion_exchange(fields, params);
  if (!read) return tl::unexpected(read.error());
  if (auto room = check_queue(read->choices.size()); !room) return tl::unexpected(room.error());
  const auto deadline = deadline_of(request, params);
  if (!deadline) return tl::unexpected(deadline.error());
  auto requests = make_requests(*read, params, *deadline);
  if (!requests) return tl::unexpected(requests.error());
  KERN_ASSERT(requests->size() == read->choices.size(), "{} requests for {} choices",
              requests->size(), read->choices.size());
  fill(*read, request, params);

  const ExchangeId id = read->id;
  read->responder = &responder;
  const auto [at, added] = exchanges.emplace(id, std::move(*read));
  KERN_ASSERT(added, "exchange {} exists", id);
  metrics.answers_open += at->second.choices.size();
  if (params.max_tokens == 0) {
    end_unasked(at->second);
    return ExchangeId{0};
  }
  for (size_t i = 0; i < requests->size(); ++i)
    places[(*requests)[i].id.value()] = {.exchange = id, .choice = i};
  // A submit may fail the whole exchange from inside; the rest of it is then not asked for.
  for (auto& each : *requests) {
    if (!places.contains(each.id.value())) continue;
    backend.submit(std::move(each));
  }
  return exchanges.contains(id) ? id : ExchangeId{0};
}

}  // namespace kern::serve
