#pragma once
/// Bytes of one connection in, HTTP/1 requests out. Requests may be pipelined: bytes behind a whole
/// request stay where they are until the next one is begun.
/// Thread safety: one thread each.
/// Does not: read sockets, or know time.

#include <cstdint>
#include <memory>
#include <string>

#include "kern/serve/api.h"

namespace kern::serve {

class RequestReader {
 public:
  enum class Step : uint8_t {
    more,   ///< bytes are missing
    head,   ///< the head is whole; read on for the body
    whole,  ///< the request is whole
    bad,    ///< no request: see refusal, then close
  };

  explicit RequestReader(const Limits& limits);
  ~RequestReader();

  /// Forgets the last request.
  void begin();
  /// Takes what it can from the front of `bytes`.
  Step read(std::string& bytes);

  /// Whether a byte of the current request was seen.
  bool started() const { return started_; }
  /// From `head` on: everything but the body.
  const HttpRequest& head() const { return request_; }
  /// After `whole`, once.
  HttpRequest take();
  bool keep_alive() const;
  /// Whether chunks may be sent; not to HTTP/1.0.
  bool may_chunk() const;
  /// Whether the client waits for a 100 before it sends the body.
  bool expects_continue() const;
  /// Whether body bytes are still to come.
  bool body_is_due() const;
  const HttpResponse& refusal() const { return refusal_; }

 private:
  struct Parser;

  Step head_done();
  Step refuse(int status, std::string_view message, std::string_view code);

  const Limits& limits_;
  std::unique_ptr<Parser> parser_;
  bool started_ = false;
  bool has_head_ = false;
  HttpRequest request_;
  HttpResponse refusal_;
};

/// The status line and headers of a whole answer, with its length.
std::string response_head(const HttpResponse& response, bool keep_alive);
/// The status line and headers of an event stream.
std::string stream_head(const std::vector<HttpHeader>& headers, bool chunked, bool keep_alive);
/// One chunk of a chunked body.
std::string chunk(std::string_view bytes);

}  // namespace kern::serve
