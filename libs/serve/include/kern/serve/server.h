#pragma once
/// The HTTP/1.1 server in front of an Api: connections, time-outs, keep-alive, pipelining, slow
/// readers, disconnects and the drain at the end.
/// Thread safety: one thread, the one that runs the io_context.
/// Ownership / lifetime: the io_context, Backend, Tokenizer, Clock and Log outlive the Server; the
/// io_context must not run handlers after the Server is gone except to discard them.
/// Does not: start threads, speak TLS or HTTP/2, write prompt text to a log.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "kern/base/result.h"
#include "kern/serve/api.h"

namespace boost::asio {
class io_context;
}

namespace kern::serve {

struct ServerOptions {
  std::string host = "127.0.0.1";  ///< address to listen on
  uint16_t port = 8000;            ///< 0: any free one, see Server::port
  std::string api_key_file;        ///< one key a line; empty: no key asked for
  ApiOptions api;
};

class Server {
 public:
  /// Listens and starts to accept. Kind io when the port cannot be bound or the key file not read,
  /// caller when an option is out of its range.
  static Result<std::unique_ptr<Server>> start(boost::asio::io_context& io, ServerOptions options,
                                               Backend& backend, const text::Tokenizer& tokenizer,
                                               const Clock& clock, const Log& log);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// The port listened on.
  uint16_t port() const;
  /// What the engine says about a request it was given.
  void deliver(engine::RequestEvent event);
  /// Stops accepting, refuses new requests with 503, lets answers end, then calls `done` once.
  void drain(std::function<void()> done);
  /// Closes every connection and aborts every answer now; the destructor does the same. A backend
  /// that answers an abort through a pointer to this Server wants stop before that pointer goes.
  void stop();

  struct State;  ///< the source's own
  explicit Server(std::shared_ptr<State> state);

 private:
  std::shared_ptr<State> state_;
};

}  // namespace kern::serve
