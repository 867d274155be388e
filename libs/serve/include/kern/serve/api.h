#pragma once
/// The OpenAI-style API without sockets: a whole HTTP request in, an answer or a stream of events
/// out through a Responder. It parses and checks, renders and tokenizes, gives out RequestIds,
/// turns tokens back into text, thoughts and tool calls, and ends answers at stop strings. Thread
/// safety: one thread. Ownership / lifetime: Backend, Tokenizer and Clock outlive the Api; a
/// Responder outlives its exchange, which ends at reply, at end_stream or at cancel. Does not: read
/// sockets, hold connections, know how tokens are made.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kern/base/clock.h"
#include "kern/base/log.h"
#include "kern/engine/request.h"
#include "kern/serve/backend.h"
#include "kern/serve/limits.h"
#include "kern/text/chat.h"

namespace kern::serve {

/// Refusals some vendors put on sampling parameters; absent: the usual OpenAI ranges.
struct VendorRules {
  double temperature_max = 1.0;  ///< within [0, this]
  double top_p = 0.95;           ///< this or absent
};

struct ApiOptions {
  Limits limits;
  std::optional<VendorRules> vendor_rules;
  std::vector<std::string> api_keys;  ///< empty: no key asked for
  std::string version = "0";          ///< answer of GET /version
  text::ChatStyle style;              ///< how chats are rendered
  int32_t retry_after_s = 1;          ///< the header of 429 and 503
  int64_t abort_wait_ms = 1000;       ///< how long an ended answer waits for the engine's last word
};

struct HttpRequest {
  std::string method;         ///< "GET", "POST", …
  std::string target;         ///< path and query, as sent
  std::string authorization;  ///< header value or empty
  std::string request_id;     ///< x-request-id or empty
  std::string timeout;        ///< x-request-timeout in seconds, or empty
  bool loopback = false;      ///< whether the peer is this machine
  std::string body;
};

using HttpHeader = std::pair<std::string, std::string>;

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<HttpHeader> headers;
  std::string body;
};

/// Where an answer goes. Calls come from inside handle, deliver and tick; an implementation must
/// not call back into the Api from them.
class Responder {
 public:
  virtual ~Responder() = default;
  /// The whole answer.
  virtual void reply(HttpResponse response) = 0;
  /// 200 with content type text/event-stream; events follow.
  virtual void begin_stream(std::vector<HttpHeader> headers) = 0;
  /// Whole server-sent events.
  virtual void send(std::string_view events) = 0;
  /// `broken`: after an error event; the connection is to be closed.
  virtual void end_stream(bool broken) = 0;
};

/// Names an exchange that is not over yet; 0 names none.
using ExchangeId = uint64_t;

class Api {
 public:
  Api(ApiOptions options, Backend& backend, const text::Tokenizer& tokenizer, const Clock& clock,
      const Log& log);
  ~Api();
  Api(const Api&) = delete;
  Api& operator=(const Api&) = delete;

  /// What can be refused before the body is read: key, route and method.
  std::optional<HttpResponse> refuse_early(const HttpRequest& head);
  /// Answers at once and returns 0, or returns the exchange that will be answered by deliver.
  ExchangeId handle(HttpRequest request, Responder& responder);
  /// The client went away: every answer of the exchange is aborted, its Responder never used again.
  void cancel(ExchangeId exchange);
  /// What the engine says. Events of unknown or ended requests are dropped.
  void deliver(engine::RequestEvent event);
  /// Called now and then: ends answers whose abort was not confirmed in time.
  void tick();
  /// From now on new generation requests get 503; running ones go on.
  void start_draining();
  /// Exchanges not over yet.
  size_t open_exchanges() const;

  /// An error body in the API's shape, for refusals that happen below it.
  static HttpResponse error_response(int status, std::string_view message, std::string_view code);

  /// Counters of the connections, shown in /metrics.
  struct ConnectionCounts {
    uint64_t accepted = 0, refused = 0, open = 0, disconnects = 0, slow_readers_cut = 0,
             timeouts = 0, malformed = 0;
  };
  ConnectionCounts& connections();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kern::serve
