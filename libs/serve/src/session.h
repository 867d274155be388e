#pragma once
/// One connection of the server: requests in, answers out, time-outs, disconnects.
/// Thread safety: the thread of its io_context.
/// Lifetime: the server holds it until `close`; the calls it waits for hold it until they are over.

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <string>
#include <vector>

#include "kern/serve/server.h"
#include "request_reader.h"

namespace kern::serve {

/// A read that is nearly always outstanding, one request at a time, one write.
class Session final : public Responder, public std::enable_shared_from_this<Session> {
 public:
  Session(boost::asio::ip::tcp::socket socket, Server::State* server);

  void start();
  void close();
  bool is_idle() const { return phase_ == Phase::reading && !reader_.started() && bytes_.empty(); }

  void reply(HttpResponse response) override;
  void begin_stream(std::vector<HttpHeader> headers) override;
  void send(std::string_view events) override;
  void end_stream(bool broken) override;

 private:
  enum class Phase { reading, answering, lingering, closed };

  void read_more();
  void on_read(boost::system::error_code error, size_t count);
  void pump();
  bool step();
  void on_head();
  void on_request();
  void refuse(HttpResponse response);
  void finish(bool keep_alive);
  void write(std::string_view bytes);
  void write_more();
  void on_written(boost::system::error_code error, size_t count);
  void answer_flushed();
  void linger();
  void cut_slow_reader();
  void arm(boost::asio::steady_timer& timer, int64_t timeout_ms, void (Session::*due)());
  void set_deadline(int64_t timeout_ms);
  void on_write_deadline();
  void on_deadline();
  void peer_gone();
  Api& api();
  const Limits& limits() const;

  boost::asio::ip::tcp::socket socket_;
  Server::State* server_;  ///< outlives every session that is not closed
  bool loopback_;
  boost::asio::steady_timer deadline_;
  boost::asio::steady_timer write_deadline_;
  RequestReader reader_;
  Phase phase_ = Phase::reading;
  std::array<char, size_t{16} << 10> chunk_{};
  std::string bytes_;     ///< read and not yet parsed
  bool reading_ = false;  ///< a read is outstanding
  std::string out_;       ///< to be written after writing_
  std::string writing_;
  size_t written_ = 0;     ///< of writing_
  bool answered_ = false;  ///< the whole answer is in out_ or written
  bool keep_alive_ = false;
  bool chunked_ = false;
  bool head_only_ = false;
  bool cut_ = false;
  ExchangeId exchange_ = 0;
};

}  // namespace kern::serve
