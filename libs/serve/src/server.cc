#include "kern/serve/server.h"

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <set>
#include <utility>

#include "kern/base/assert.h"
#include "options.h"
#include "session.h"

namespace kern::serve {

namespace asio = boost::asio;
using tcp = asio::ip::tcp;
using boost::system::error_code;

namespace {

/// Bytes of pipelined requests that wait while one is answered.
constexpr size_t kPipelinedBytesMax = size_t{64} << 10;
constexpr int64_t kLingerMs = 2'000;
constexpr int64_t kTickMs = 250;
constexpr int64_t kAcceptRetryMs = 100;

}  // namespace

struct Server::State : std::enable_shared_from_this<Server::State> {
  State(asio::io_context& io_in, ServerOptions options_in, Backend& backend,
        const text::Tokenizer& tokenizer, const Clock& clock, const Log& log_in)
      : io(io_in),
        acceptor(io_in),
        accept_timer(io_in),
        ticker(io_in),
        options(std::move(options_in)),
        api(options.api, backend, tokenizer, clock, log_in),
        log(log_in) {}

  Result<void> listen();
  void accept();
  void take(tcp::socket socket);
  void tick();
  void remove(const std::shared_ptr<Session>& session);
  /// Calls the drain's end once nothing is left to answer.
  void check_drained();
  void stop();

  asio::io_context& io;
  tcp::acceptor acceptor;
  asio::steady_timer accept_timer;
  asio::steady_timer ticker;
  ServerOptions options;
  Api api;
  const Log& log;
  std::set<std::shared_ptr<Session>> sessions;
  uint16_t port = 0;
  bool draining = false;
  bool stopped = false;
  std::function<void()> drained;
};

Session::Session(tcp::socket socket, Server::State* server)
    : socket_(std::move(socket)),
      server_(server),
      deadline_(socket_.get_executor()),
      write_deadline_(socket_.get_executor()),
      reader_(server->options.api.limits) {
  error_code ignored;
  socket_.set_option(tcp::no_delay(true), ignored);
  socket_.set_option(asio::socket_base::keep_alive(true), ignored);
  const auto peer = socket_.remote_endpoint(ignored).address();
  loopback_ =
      !ignored && (peer.is_loopback() ||
                   (peer.is_v6() && peer.to_v6().is_v4_mapped() &&
                    asio::ip::make_address_v4(asio::ip::v4_mapped, peer.to_v6()).is_loopback()));
}

Api& Session::api() {
  return server_->api;
}
const Limits& Session::limits() const {
  return server_->options.api.limits;
}

void Session::start() {
  set_deadline(limits().header_timeout_ms);
  read_more();
}

/// Never called from inside the Api: it cancels the exchange there.
void Session::close() {
  if (phase_ == Phase::closed) return;
  phase_ = Phase::closed;
  const auto self = shared_from_this();
  deadline_.cancel();
  write_deadline_.cancel();
  error_code ignored;
  socket_.close(ignored);
  if (const auto exchange = std::exchange(exchange_, 0)) api().cancel(exchange);
  server_->remove(self);
}

/// Calls `due` after the time-out unless the timer is set again or cancelled before.
void Session::arm(asio::steady_timer& timer, int64_t timeout_ms, void (Session::*due)()) {
  timer.expires_after(std::chrono::milliseconds(timeout_ms));
  timer.async_wait([self = shared_from_this(), &timer, due](error_code error) {
    // A timer that was set again while this call was queued is not due.
    const bool is_due = timer.expiry() <= std::chrono::steady_clock::now();
    if (!error && is_due && self->phase_ != Phase::closed) (self.get()->*due)();
  });
}

void Session::set_deadline(int64_t timeout_ms) {
  arm(deadline_, timeout_ms, &Session::on_deadline);
}

void Session::on_deadline() {
  if (phase_ == Phase::answering) return;
  if (phase_ == Phase::lingering || is_idle()) return close();
  ++api().connections().timeouts;
  refuse(Api::error_response(408, "the request did not arrive in time", "request_timeout"));
}

void Session::on_write_deadline() {
  ++api().connections().timeouts;
  close();
}

/// Reads also while an answer is on its way: that is how a client that went away is noticed.
void Session::read_more() {
  if (reading_ || phase_ == Phase::closed) return;
  if (phase_ == Phase::answering && bytes_.size() >= kPipelinedBytesMax) return;
  reading_ = true;
  socket_.async_read_some(asio::buffer(chunk_),
                          [self = shared_from_this()](error_code error, size_t count) {
                            self->reading_ = false;
                            if (self->phase_ != Phase::closed) self->on_read(error, count);
                          });
}

void Session::on_read(error_code error, size_t count) {
  if (error == asio::error::eof && phase_ == Phase::answering && answered_) {
    // The peer has said all; what is left of the answer still goes out.
    keep_alive_ = false;
    return;
  }
  if (error) return peer_gone();
  if (phase_ != Phase::lingering) {
    const bool was_idle = is_idle();
    bytes_.append(chunk_.data(), count);
    if (was_idle) set_deadline(limits().header_timeout_ms);
    pump();
  }
  read_more();
}

void Session::peer_gone() {
  if (phase_ == Phase::answering && !answered_) ++api().connections().disconnects;
  close();
}

void Session::pump() {
  while (phase_ == Phase::reading && step()) {
  }
}

/// Reads on in the current request; false when bytes are missing or it was answered.
bool Session::step() {
  switch (reader_.read(bytes_)) {
    case RequestReader::Step::more:
      return false;
    case RequestReader::Step::head:
      on_head();
      if (phase_ == Phase::reading && !reader_.body_is_due()) on_request();
      return true;
    case RequestReader::Step::whole:
      return on_request(), true;
    case RequestReader::Step::bad:
      ++api().connections().malformed;
      refuse(reader_.refusal());
      return false;
  }
  return false;
}

void Session::on_head() {
  HttpRequest head = reader_.head();
  head.loopback = loopback_;
  head_only_ = head.method == "HEAD";
  if (auto refused = api().refuse_early(head)) {
    if (reader_.body_is_due()) return refuse(std::move(*refused));
    phase_ = Phase::answering;
    keep_alive_ = reader_.keep_alive() && !server_->draining;
    return reply(std::move(*refused));
  }
  set_deadline(limits().body_timeout_ms);
  if (reader_.expects_continue()) write("HTTP/1.1 100 Continue\r\n\r\n");
}

void Session::on_request() {
  KERN_ASSERT(phase_ == Phase::reading, "a request while another is answered");
  KERN_ASSERT(exchange_ == 0, "exchange {} is open", exchange_);
  phase_ = Phase::answering;
  answered_ = false;
  deadline_.cancel();
  keep_alive_ = reader_.keep_alive() && !server_->draining;
  chunked_ = reader_.may_chunk();
  HttpRequest request = reader_.take();
  request.loopback = loopback_;
  exchange_ = api().handle(std::move(request), *this);
}

/// Answers without having read the whole request, and closes.
void Session::refuse(HttpResponse response) {
  phase_ = Phase::answering;
  deadline_.cancel();
  keep_alive_ = false;
  reply(std::move(response));
}

void Session::reply(HttpResponse response) {
  KERN_ASSERT(phase_ == Phase::answering || phase_ == Phase::closed, "an answer to no request");
  std::string bytes = response_head(response, keep_alive_);
  if (!head_only_) bytes += response.body;
  finish(keep_alive_);
  write(bytes);
}

void Session::begin_stream(std::vector<HttpHeader> headers) {
  KERN_ASSERT(phase_ == Phase::answering, "a stream to no request");
  if (!chunked_) keep_alive_ = false;
  write(stream_head(headers, chunked_, keep_alive_));
}

void Session::send(std::string_view events) {
  if (cut_) return;
  write(chunked_ ? chunk(events) : std::string(events));
  const size_t unread = out_.size() + writing_.size() - written_;
  if (unread <= static_cast<size_t>(limits().stream_bytes_max)) return;
  cut_ = true;
  // The Api is in the middle of this exchange; it is cancelled once that is over.
  asio::post(socket_.get_executor(), [self = shared_from_this()] { self->cut_slow_reader(); });
}

void Session::cut_slow_reader() {
  if (phase_ == Phase::closed) return;
  ++api().connections().slow_readers_cut;
  close();
}

void Session::end_stream(bool broken) {
  finish(keep_alive_ && !broken);
  if (cut_) return;
  if (chunked_)
    write("0\r\n\r\n");
  else
    write("");
}

void Session::finish(bool keep_alive) {
  KERN_ASSERT(!answered_, "an answer ends twice");
  keep_alive_ = keep_alive;
  answered_ = true;
  exchange_ = 0;
}

void Session::write(std::string_view bytes) {
  if (phase_ == Phase::closed) return;
  out_ += bytes;
  if (writing_.empty()) write_more();
}

/// One write is outstanding; what comes meanwhile is gathered and goes out as one.
void Session::write_more() {
  if (writing_.empty()) {
    writing_.swap(out_);
    written_ = 0;
  }
  arm(write_deadline_, limits().write_timeout_ms, &Session::on_write_deadline);
  socket_.async_write_some(asio::buffer(writing_.data() + written_, writing_.size() - written_),
                           [self = shared_from_this()](error_code error, size_t count) {
                             if (self->phase_ != Phase::closed) self->on_written(error, count);
                           });
}

void Session::on_written(error_code error, size_t count) {
  write_deadline_.cancel();
  if (error) return peer_gone();
  written_ += count;
  KERN_ASSERT(written_ <= writing_.size(), "{} of {} bytes are written", written_, writing_.size());
  if (written_ == writing_.size()) {
    writing_.clear();
    written_ = 0;
  }
  if (!writing_.empty() || !out_.empty()) return write_more();
  if (phase_ == Phase::answering && answered_) answer_flushed();
}

/// The connection is free for the next request, which may be here already.
void Session::answer_flushed() {
  KERN_ASSERT(exchange_ == 0, "exchange {} is open behind its answer", exchange_);
  if (!keep_alive_ || server_->draining) return linger();
  phase_ = Phase::reading;
  answered_ = false;
  head_only_ = false;
  reader_.begin();
  set_deadline(bytes_.empty() ? limits().idle_timeout_ms : limits().header_timeout_ms);
  pump();
  read_more();
  server_->check_drained();
}

/// Lets the peer read the answer before the connection is gone, discarding what it still sends.
void Session::linger() {
  phase_ = Phase::lingering;
  bytes_.clear();
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  set_deadline(kLingerMs);
  read_more();
}

Result<void> Server::State::listen() {
  error_code error;
  const std::string host = options.host == "localhost" ? "127.0.0.1" : options.host;
  const auto address = asio::ip::make_address(host, error);
  if (error) return fail(Kind::caller, "`{}` is not an IP address to listen on", options.host);
  const tcp::endpoint endpoint(address, options.port);
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(asio::socket_base::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error)
    return fail(Kind::io, "cannot listen on `{}:{}`: {}", options.host, options.port,
                error.message());
  port = acceptor.local_endpoint(error).port();
  return {};
}

void Server::State::accept() {
  acceptor.async_accept([self = shared_from_this()](error_code error, tcp::socket socket) {
    if (self->stopped || self->draining) return;
    if (!error) {
      self->take(std::move(socket));
      return self->accept();
    }
    // Out of descriptors, most likely: wait for connections to end.
    self->accept_timer.expires_after(std::chrono::milliseconds(kAcceptRetryMs));
    self->accept_timer.async_wait([self](error_code cancelled) {
      if (!cancelled && !self->stopped && !self->draining) self->accept();
    });
  });
}

void Server::State::take(tcp::socket socket) {
  auto& counts = api.connections();
  error_code ignored;
  if (sessions.size() >= static_cast<size_t>(options.api.limits.connections_max)) {
    ++counts.refused;
    const auto response =
        Api::error_response(503, "too many connections are open", "too_many_connections");
    const std::string bytes = response_head(response, false) + response.body;
    socket.non_blocking(true, ignored);
    socket.write_some(asio::buffer(bytes), ignored);
    socket.shutdown(tcp::socket::shutdown_send, ignored);
    return;
  }
  ++counts.accepted;
  const auto session = std::make_shared<Session>(std::move(socket), this);
  sessions.insert(session);
  counts.open = sessions.size();
  session->start();
}

void Server::State::tick() {
  ticker.expires_after(std::chrono::milliseconds(kTickMs));
  ticker.async_wait([self = shared_from_this()](error_code cancelled) {
    if (cancelled || self->stopped) return;
    self->api.tick();
    self->tick();
  });
}

void Server::State::remove(const std::shared_ptr<Session>& session) {
  sessions.erase(session);
  api.connections().open = sessions.size();
  check_drained();
}

void Server::State::check_drained() {
  if (!draining || !drained || api.open_exchanges() > 0) return;
  for (const auto& session : sessions)
    if (!session->is_idle()) return;
  asio::post(io, std::exchange(drained, nullptr));
}

void Server::State::stop() {
  if (std::exchange(stopped, true)) return;
  error_code ignored;
  acceptor.close(ignored);
  accept_timer.cancel();
  ticker.cancel();
  drained = nullptr;
  const auto open = sessions;
  for (const auto& session : open) session->close();
  KERN_ASSERT(api.open_exchanges() == 0, "{} exchanges outlive their connections",
              api.open_exchanges());
}

Result<std::unique_ptr<Server>> Server::start(asio::io_context& io, ServerOptions options,
                                              Backend& backend, const text::Tokenizer& tokenizer,
                                              const Clock& clock, const Log& log) {
  KERN_TRY_VOID(check_limits(options.api.limits));
  KERN_TRY(keys, read_keys(options.api_key_file));
  options.api.api_keys.insert(options.api.api_keys.end(), keys.begin(), keys.end());
  auto state = std::make_shared<State>(io, std::move(options), backend, tokenizer, clock, log);
  KERN_TRY_VOID(state->listen());
  state->accept();
  state->tick();
  return std::make_unique<Server>(std::move(state));
}

Server::Server(std::shared_ptr<State> state) : state_(std::move(state)) {}
Server::~Server() {
  state_->stop();
}

uint16_t Server::port() const {
  return state_->port;
}

void Server::deliver(engine::RequestEvent event) {
  state_->api.deliver(std::move(event));
}

void Server::drain(std::function<void()> done) {
  KERN_ASSERT(!state_->draining, "a server drains once");
  state_->draining = true;
  state_->drained = std::move(done);
  state_->api.start_draining();
  error_code ignored;
  state_->acceptor.close(ignored);
  state_->accept_timer.cancel();
  state_->check_drained();
}

void Server::stop() {
  state_->stop();
}

}  // namespace kern::serve
