#include <algorithm>
#include <ctime>
#include <utility>

#include "bodies.h"
#include "kern/base/assert.h"
#include "kern/serve/api.h"
#include "state.h"

namespace kern::serve {
namespace {

/// Characters of well-formed text.
int64_t characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; });
}

ApiError failure(const engine::FailedEvent& event) {
  const std::string& said = event.message;
  switch (event.kind) {
    case engine::FailureKind::too_long:
      return {
          .status = 400, .message = "the " + said, .param = {}, .code = "context_length_exceeded"};
    case engine::FailureKind::queue_full:
      return {429, said, "", "queue_full"};
    case engine::FailureKind::unavailable:
      return {503, said, "", "unavailable"};
    case engine::FailureKind::deadline:
      return {503, said, "", "deadline_exceeded"};
    case engine::FailureKind::internal:
      return {500, said, "", "internal_error"};
  }
  return {500, said, "", "internal_error"};
}

Ended ended_as(std::string_view reason) {
  if (reason == "length") return Ended::length;
  return reason == "tool_calls" ? Ended::tool_calls : Ended::stop;
}

}  // namespace

void Api::deliver(engine::RequestEvent event) {
  const auto place = state_->places.find(event.id.value());
  if (place == state_->places.end()) return;
  const auto found = state_->exchanges.find(place->second.exchange);
  KERN_ASSERT(found != state_->exchanges.end(), "request {} has no exchange", event.id.value());
  Exchange& exchange = found->second;
  Choice& choice = exchange.choices[place->second.choice];
  KERN_ASSERT(choice.id == event.id, "request {} stands for {}", event.id.value(),
              choice.id.value());
  if (const auto* token = std::get_if<engine::TokenEvent>(&event.what))
    state_->on_token(exchange, choice, *token);
  else if (const auto* finished = std::get_if<engine::FinishedEvent>(&event.what))
    state_->on_finished(exchange, choice, *finished);
  else
    state_->on_failed(exchange, choice, std::get<engine::FailedEvent>(event.what));
}

void Api::tick() {
  const TimeNs now = state_->clock.now();
  while (!state_->stopping.empty() && state_->stopping.front().first <= now) {
    const auto id = state_->stopping.front().second;
    state_->stopping.pop_front();
    deliver({id, engine::FinishedEvent{.reason = engine::FinishReason::aborted}});
  }
  state_->rate.emplace_back(now, state_->metrics.generation_tokens);
  while (state_->rate.size() > 1 && state_->rate.front().first < now - 10 * kSecondNs)
    state_->rate.pop_front();
}

void Api::cancel(ExchangeId exchange) {
  const auto found = state_->exchanges.find(exchange);
  if (found != state_->exchanges.end()) state_->drop(found->second, Ended::abort);
}

/// Sends what comes before the first token: the head, the roles, the echoed prompts. It waits for
/// the engine's first word, so that a request which fails at once still has its own status.
void Api::State::begin_stream(Exchange& exchange) {
  KERN_ASSERT(exchange.stream, "{} is not streamed", exchange.name);
  if (exchange.begun) return;
  exchange.begun = true;
  count(exchange.chat ? "/v1/chat/completions" : "/v1/completions", 200);
  exchange.responder->begin_stream(exchange.headers);
  const AnswerPrinter printer(exchange, backend.model(), tokenizer);
  std::string events;
  if (exchange.chat)
    for (const auto& choice : exchange.choices) events += printer.role_event(choice);
  for (auto& choice : exchange.choices) {
    Delta echo;
    echo.content = exchange.prompts[choice.prompt].echo;
    if (!echo.content.empty()) events += printer.delta_event(choice, echo);
    if (!echo.content.empty()) choice.seen.clear();
  }
  if (!events.empty()) exchange.responder->send(events);
}

void Api::State::emit(Exchange& exchange, Choice& choice, Delta delta) {
  KERN_ASSERT(choice.finish_reason.empty(), "choice {} of {} grows after its end", choice.index,
              exchange.name);
  choice.calls += static_cast<int32_t>(delta.calls.size());
  choice.characters += characters(delta.content);
  if (!exchange.stream) return choice.whole.append(std::move(delta));
  if (delta.empty()) return;
  const AnswerPrinter printer(exchange, backend.model(), tokenizer);
  exchange.responder->send(printer.delta_event(choice, delta));
  choice.seen.clear();
}

/// Aborting comes last: the backend may answer from inside, and that ends the choice.
void Api::State::on_token(Exchange& exchange, Choice& choice, const engine::TokenEvent& event) {
  if (choice.stopping) return;
  const TimeNs now = clock.now();
  if (choice.tokens == 0)
    metrics.first_token.add(now - exchange.started);
  else
    metrics.between_tokens.add(now - choice.last_token);
  choice.last_token = now;
  ++choice.tokens;
  ++metrics.generation_tokens;
  if (exchange.stream) begin_stream(exchange);
  if (exchange.logprobs)
    choice.seen.push_back({event.token, event.logprob.value_or(0), event.top, choice.characters});
  emit(exchange, choice, choice.answer.push(event.token));
  if (!choice.answer.stopped()) return;
  choice.stopping = true;
  stopping.emplace_back(now + options.abort_wait_ms * kMillisecondNs, choice.id);
  backend.abort(choice.id);
}

void Api::State::on_finished(Exchange& exchange, Choice& choice,
                             const engine::FinishedEvent& event) {
  using engine::FinishReason;
  auto& prompt = exchange.prompts[choice.prompt];
  if (choice.first_of_prompt) prompt.cached = event.cached_tokens;
  // The stop string decided; how the engine ended no longer matters.
  if (choice.stopping) return end_choice(exchange, choice, "stop");
  if (event.reason == FinishReason::aborted)
    return fail_exchange(exchange, {.status = 503,
                                    .message = "the server ended this request before its answer",
                                    .param = {},
                                    .code = "aborted"});
  if (exchange.stream) begin_stream(exchange);
  metrics.generation_tokens +=
      static_cast<uint64_t>(std::max(event.completion_tokens - choice.tokens, 0));
  choice.tokens = std::max(choice.tokens, event.completion_tokens);
  emit(exchange, choice, choice.answer.finish());
  const bool stopped = event.reason == FinishReason::stop || choice.answer.stopped();
  end_choice(exchange, choice, !stopped ? "length" : choice.calls > 0 ? "tool_calls" : "stop");
}

void Api::State::on_failed(Exchange& exchange, Choice& choice, const engine::FailedEvent& event) {
  if (choice.stopping) return end_choice(exchange, choice, "stop");
  fail_exchange(exchange, failure(event));
}

void Api::State::end_choice(Exchange& exchange, Choice& choice, std::string reason) {
  KERN_ASSERT(choice.finish_reason.empty(), "choice {} of {} ends twice", choice.index,
              exchange.name);
  KERN_ASSERT(exchange.open > 0, "{} has no open choice", exchange.name);
  choice.finish_reason = std::move(reason);
  places.erase(choice.id.value());
  metrics.ended[static_cast<size_t>(ended_as(choice.finish_reason))]++;
  metrics.end_to_end.add(clock.now() - exchange.started);
  KERN_ASSERT(metrics.answers_open > 0, "an answer ends that was not open");
  --metrics.answers_open;
  if (choice.first_of_prompt) {
    const auto& prompt = exchange.prompts[choice.prompt];
    metrics.prompt_tokens += prompt.tokens.size();
    metrics.cached_tokens += static_cast<uint64_t>(prompt.cached);
  }
  if (exchange.stream) {
    const AnswerPrinter printer(exchange, backend.model(), tokenizer);
    exchange.responder->send(printer.finish_event(choice));
    choice.seen.clear();
  }
  if (--exchange.open == 0) complete(exchange);
}

/// The exchange is forgotten before its last bytes go out, so that nothing can find it half ended.
void Api::State::complete(Exchange& exchange) {
  KERN_ASSERT(exchange.open == 0, "{} answers of {} are open", exchange.open, exchange.name);
  KERN_ASSERT(exchange.begun == exchange.stream, "{} ends in another form", exchange.name);
  const AnswerPrinter printer(exchange, backend.model(), tokenizer);
  log.debug("request {} [{}]: ended after {} ms", exchange.name, exchange.client_id,
            (clock.now() - exchange.started) / kMillisecondNs);
  Responder& responder = *exchange.responder;
  if (exchange.stream) {
    std::string events = exchange.include_usage ? printer.usage_event() : std::string();
    events += sse_event("[DONE]");
    exchanges.erase(exchange.id);
    responder.send(events);
    responder.end_stream(false);
    return;
  }
  HttpResponse response{.status = 200, .headers = exchange.headers, .body = printer.whole()};
  count(exchange.chat ? "/v1/chat/completions" : "/v1/completions", 200);
  exchanges.erase(exchange.id);
  responder.reply(std::move(response));
}

void Api::State::fail_exchange(Exchange& exchange, const ApiError& error) {
  log.warn("request {} [{}]: fails with {}: {}", exchange.name, exchange.client_id, error.status,
           error.message);
  Responder& responder = *exchange.responder;
  if (exchange.begun) {
    responder.send(sse_event(error_json(error)));
    responder.end_stream(true);
  } else {
    HttpResponse response = error_reply(error, options.retry_after_s);
    response.headers.insert(response.headers.end(), exchange.headers.begin(),
                            exchange.headers.end());
    count(exchange.chat ? "/v1/chat/completions" : "/v1/completions", error.status);
    responder.reply(std::move(response));
  }
  drop(exchange, Ended::error);
}

/// Ids leave `places` before the backend hears of them: what it still says finds nobody.
void Api::State::drop(Exchange& exchange, Ended how) {
  std::vector<engine::RequestId> running;
  for (const auto& choice : exchange.choices)
    if (choice.finish_reason.empty()) running.push_back(choice.id);
  for (const auto id : running) places.erase(id.value());
  KERN_ASSERT(running.size() == exchange.open, "{} has {} open answers, {} counted", exchange.name,
              running.size(), exchange.open);
  KERN_ASSERT(metrics.answers_open >= running.size(), "more answers end than were open");
  metrics.ended[static_cast<size_t>(how)] += running.size();
  metrics.answers_open -= running.size();
  exchanges.erase(exchange.id);
  for (const auto id : running) backend.abort(id);
}

}  // namespace kern::serve
