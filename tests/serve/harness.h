#pragma once
/// A real server on a loopback port in front of a scripted model, run by one thread of its own, and
/// a small blocking HTTP client. Everything a test does to the backend goes through `Harness::on`.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kern/serve/server.h"
#include "kern/text/tokenizer.h"

namespace kern_test {

using kern::engine::Request;
using kern::engine::RequestEvent;
using kern::engine::RequestId;
using kern::engine::Token;

/// Every single byte, a few merges, and the markers of the chat format as specials.
const kern::text::Tokenizer& tokenizer();
/// The ids of ordinary text.
std::vector<Token> ids(std::string_view text);
/// The ids of text in which the chat markers are control tokens.
std::vector<Token> marked_ids(std::string_view text);
Token end_token();

/// Answers each request from a script, one token each turn of the server's thread.
class ScriptedBackend : public kern::serve::Backend {
 public:
  using Script = std::function<std::vector<Token>(const Request&)>;

  ScriptedBackend();
  void submit(Request request) override;
  void abort(RequestId id) override;
  const kern::serve::ModelInfo& model() const override { return info; }
  kern::serve::Health health() const override { return state; }
  std::string metrics_text() const override { return "kern_test_backend 1\n"; }
  std::vector<kern::serve::StatusTable> status() const override;
  uint64_t random_seed() override { return ++seeds; }

  /// Gives every running answer one more token.
  void step();
  bool busy() const { return !running_.empty(); }
  /// Ends a running request with a failure.
  void fail(RequestId id, kern::engine::FailureKind kind, std::string message);
  std::vector<RequestId> running() const;

  kern::serve::ModelInfo info;
  kern::serve::Health state;
  Script script;                  ///< what to say; by default the prompt again
  bool paused = false;            ///< answers wait for `step` calls of the test
  bool silent_aborts = false;     ///< an abort is not confirmed
  std::vector<Request> requests;  ///< all that came
  std::vector<RequestId> aborted;
  std::function<void(RequestEvent)> deliver;
  std::function<void()> wake;
  uint64_t seeds = 0;

 private:
  struct Running {
    std::vector<Token> tokens;
    size_t next = 0;
    int32_t max_tokens = 0;
    bool ends = true;
    int32_t prompt = 0;
    bool logprobs = false;
    int32_t top = 0;
  };
  kern::engine::TokenEvent event_of(const Running& running) const;
  std::map<uint64_t, Running> running_;
};

struct Response {
  int status = 0;
  std::string head;
  std::string body;
  /// A header's value, or "".
  std::string header(std::string_view name) const;
};

/// A blocking connection; every wait ends after ten seconds and fails the test.
class Client {
 public:
  explicit Client(uint16_t port, int receive_bytes = 0);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void send(std::string_view bytes);
  /// Sends what the peer takes; false once it closed.
  bool try_send(std::string_view bytes);
  void close();
  void close_sending();
  /// The head of an interim response.
  std::string receive_head();
  /// One response with its body, length-counted, chunked or until the end.
  Response receive();
  /// Some more bytes, "" at the end.
  std::string read_some();
  /// Reads until `text` was seen; all that came so far.
  std::string read_until(std::string_view text);
  /// Whether the peer closes now.
  bool at_end();

 private:
  int fd_;
  std::string bytes_;
};

/// A POST or GET as bytes.
std::string request_bytes(std::string_view method, std::string_view target, std::string_view body,
                          std::string_view headers = "");

/// The payloads of an event stream, "[DONE]" included.
std::vector<std::string> events(std::string_view body);
/// The value at a JSON pointer: strings as they are, others as JSON, "(none)" when there is none.
std::string at(std::string_view json, std::string_view pointer);

/// Why a server with these options does not start, or "".
std::string try_start(kern::serve::ServerOptions options);

class Harness {
 public:
  /// On any free port unless the options name one.
  explicit Harness(kern::serve::ServerOptions options = {});
  ~Harness();

  uint16_t port() const;
  ScriptedBackend& backend() { return *backend_; }
  /// Runs `call` on the server's thread and waits for it.
  void on(const std::function<void()>& call);
  /// Waits until `what` holds on the server's thread; false after ten seconds.
  bool until(const std::function<bool()>& what);
  kern::serve::Server& server();

  Response get(std::string_view target, std::string_view headers = "");
  Response post(std::string_view target, std::string_view body, std::string_view headers = "");

 private:
  struct Impl;
  std::unique_ptr<ScriptedBackend> backend_;
  std::unique_ptr<Impl> impl_;
};

/// What a stream of chat or completion events says, put together again.
struct Streamed {
  std::string content, reasoning, finish, usage, error;
  std::vector<std::string> calls;  ///< "name(arguments)"
  bool done = false;
  bool whole_characters = true;  ///< no event held a broken character
};
/// Of the choice with `index`.
Streamed put_together(std::string_view body, int index = 0);

}  // namespace kern_test
