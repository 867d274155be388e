#pragma once
/// What the parts of the Api share: the options, the open exchanges and the counters.
/// api.cc routes and answers at once, generate.cc begins exchanges, deliver.cc ends them.
/// Thread safety: one thread.
/// Re-entry: the backend may call deliver from inside submit and abort, so nothing here touches an
/// exchange after calling either.

#include <deque>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "api_error.h"
#include "exchange.h"
#include "kern/base/sha256.h"
#include "metrics.h"
#include "params.h"

namespace kern::serve {

struct Api::State {
  State(ApiOptions options_in, Backend& backend_in, const text::Tokenizer& tokenizer_in,
        const Clock& clock_in, const Log& log_in);

  // api.cc
  HttpResponse answer(const HttpRequest& request, const std::string& path);
  HttpResponse models(const std::string& path) const;
  HttpResponse health_reply() const;
  HttpResponse tokenize(const HttpRequest& request) const;
  HttpResponse detokenize(const HttpRequest& request) const;
  HttpResponse status_page() const;
  std::optional<ApiError> check_key(const HttpRequest& request, const std::string& path) const;

  // generate.cc
  /// Begins an exchange or says why not.
  Outcome<ExchangeId> generate(const HttpRequest& request, bool chat, Responder& responder);
  Outcome<Exchange> read_completion_exchange(Fields& fields, GenerationParams& params);
  Outcome<Exchange> read_chat_exchange(const HttpRequest& request, Fields& fields,
                                       GenerationParams& params);
  Outcome<void> check_ready() const;
  Outcome<void> check_queue(size_t wanted) const;
  Outcome<TimeNs> deadline_of(const HttpRequest& request, const GenerationParams& params) const;
  Outcome<std::vector<engine::Request>> make_requests(Exchange& exchange,
                                                      const GenerationParams& params,
                                                      TimeNs deadline);
  void fill(Exchange& exchange, const HttpRequest& request, const GenerationParams& params);
  /// Ends every choice of an exchange that asks for no token.
  void end_unasked(Exchange& exchange);

  // deliver.cc
  void begin_stream(Exchange& exchange);
  void emit(Exchange& exchange, Choice& choice, Delta delta);
  void on_token(Exchange& exchange, Choice& choice, const engine::TokenEvent& event);
  void on_finished(Exchange& exchange, Choice& choice, const engine::FinishedEvent& event);
  void on_failed(Exchange& exchange, Choice& choice, const engine::FailedEvent& event);
  void end_choice(Exchange& exchange, Choice& choice, std::string reason);
  void complete(Exchange& exchange);
  void fail_exchange(Exchange& exchange, const ApiError& error);
  /// Forgets the exchange and aborts what of it runs.
  void drop(Exchange& exchange, Ended how);
  void count(std::string route, int status) { ++metrics.requests[{std::move(route), status}]; }

  ApiOptions options;
  Backend& backend;
  const text::Tokenizer& tokenizer;
  const Clock& clock;
  const Log& log;

  std::vector<Digest> key_digests;
  std::string nonce;  ///< tells the answers of one process from those of another
  bool draining = false;
  uint64_t next_request = 1;
  ExchangeId next_exchange = 1;
  std::map<ExchangeId, Exchange> exchanges;
  struct Place {
    ExchangeId exchange = 0;
    size_t choice = 0;
  };
  std::unordered_map<uint64_t, Place> places;                 ///< of requests that have not ended
  std::deque<std::pair<TimeNs, engine::RequestId>> stopping;  ///< until when to wait, in order
  HttpMetrics metrics;
  ConnectionCounts connections;
  std::deque<std::pair<TimeNs, uint64_t>> rate;  ///< generated tokens, now and then
};

/// The tables of the status page as one HTML document.
std::string status_html(const ModelInfo& model, const Health& health,
                        const std::vector<StatusTable>& tables);

}  // namespace kern::serve
