#include "harness.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <simdjson.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <future>
#include <thread>

namespace kern_test {

using kern::serve::Server;

namespace {

constexpr int kWaitMs = 10'000;

std::string base64(std::string_view bytes) {
  static constexpr char kLetters[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    const size_t count = std::min<size_t>(3, bytes.size() - i);
    for (size_t j = 0; j < 3; ++j)
      group = group << 8 | (j < count ? static_cast<unsigned char>(bytes[i + j]) : 0U);
    for (size_t j = 0; j < 4; ++j) out += j <= count ? kLetters[group >> (18 - 6 * j) & 63] : '=';
  }
  return out;
}

kern::text::Tokenizer make_tokenizer() {
  std::string model;
  int rank = 0;
  for (int byte = 0; byte < 256; ++byte)
    model += base64(std::string(1, static_cast<char>(byte))) + " " + std::to_string(rank++) + "\n";
  for (const char* merge : {"he", "ll", "hell", "hello", "st", "op", "wo", "rl"})
    model += base64(merge) + " " + std::to_string(rank++) + "\n";
  kern::text::TokenizerSpec spec{.pattern = R"([a-zA-Z]+|[^a-zA-Z])", .special_slots = 8};
  spec.specials = {{rank + 0, "[EOS]", true},
                   {rank + 1, "<|end_of_msg|>", true},
                   {rank + 2, "<|open|>", false},
                   {rank + 3, "<|close|>", false},
                   {rank + 4, "<|sep|>", false}};
  auto loaded = kern::text::Tokenizer::load(model, spec);
  if (!loaded) throw std::runtime_error(loaded.error().text());
  return std::move(*loaded);
}

}  // namespace

const kern::text::Tokenizer& tokenizer() {
  static const kern::text::Tokenizer made = make_tokenizer();
  return made;
}

std::vector<Token> ids(std::string_view text) {
  return tokenizer().encode(text);
}

std::vector<Token> marked_ids(std::string_view text) {
  const kern::text::Segment segment{std::string(text), true};
  return tokenizer().encode(std::span(&segment, 1));
}

Token end_token() {
  return *tokenizer().find_special("<|end_of_msg|>");
}

ScriptedBackend::ScriptedBackend() {
  info = {.name = "tiny",
          .aliases = {"tiny-alias"},
          .max_model_len = 4096,
          .created = 1700000000,
          .stop_tokens = {end_token()},
          .vocab = tokenizer().vocab_size(),
          .top_logprobs_max = 5};
  state = {
      .state = kern::serve::HealthState::ready, .reason = {}, .details_json = R"({"steps":1})"};
  script = [](const Request& request) { return request.prompt; };
}

void ScriptedBackend::submit(Request request) {
  requests.push_back(request);
  Running running{.tokens = script(request),
                  .max_tokens = request.max_tokens,
                  .prompt = static_cast<int32_t>(request.prompt.size()),
                  .logprobs = request.top_logprobs >= 0,
                  .top = request.top_logprobs};
  running_[request.id.value()] = std::move(running);
  wake();
}

void ScriptedBackend::abort(RequestId id) {
  aborted.push_back(id);
  const auto found = running_.find(id.value());
  if (found == running_.end()) return;
  running_.erase(found);
  if (silent_aborts) return;
  deliver({id, kern::engine::FinishedEvent{.reason = kern::engine::FinishReason::aborted,
                                           .cached_tokens = 3}});
}

std::vector<kern::serve::StatusTable> ScriptedBackend::status() const {
  return {{.title = "stages <all>", .columns = {"stage", "state"}, .rows = {{"0", "busy & well"}}}};
}

kern::engine::TokenEvent ScriptedBackend::event_of(const Running& running) const {
  kern::engine::TokenEvent event{.token = running.tokens[running.next], .logprob = {}, .top = {}};
  if (!running.logprobs) return event;
  event.logprob = -0.5F;
  for (int32_t i = 0; i < running.top; ++i)
    event.top.push_back({'a' + i, -0.25F * static_cast<float>(i + 1)});
  return event;
}

void ScriptedBackend::step() {
  for (const auto id : running()) {
    const auto found = running_.find(id.value());
    if (found == running_.end()) continue;
    Running& running = found->second;
    const bool full = running.next >= static_cast<size_t>(running.max_tokens);
    if (!full && running.next < running.tokens.size()) {
      const auto event = event_of(running);
      ++running.next;
      deliver({id, event});
      continue;
    }
    kern::engine::FinishedEvent event{
        .reason = full ? kern::engine::FinishReason::length : kern::engine::FinishReason::stop,
        .prompt_tokens = running.prompt,
        .cached_tokens = running.prompt / 2,
        .completion_tokens = static_cast<int32_t>(running.next) + (full ? 0 : 1)};
    running_.erase(found);
    deliver({id, event});
  }
}

void ScriptedBackend::fail(RequestId id, kern::engine::FailureKind kind, std::string message) {
  running_.erase(id.value());
  deliver({id, kern::engine::FailedEvent{kind, std::move(message)}});
}

std::vector<RequestId> ScriptedBackend::running() const {
  std::vector<RequestId> out;
  for (const auto& [id, running] : running_) out.emplace_back(id);
  return out;
}

std::string Response::header(std::string_view name) const {
  const auto lower = [](std::string text) {
    for (auto& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return text;
  };
  const std::string wanted = "\r\n" + lower(std::string(name)) + ": ";
  const size_t found = lower(head).find(wanted);
  if (found == std::string::npos) return "";
  const size_t begin = found + wanted.size();
  return head.substr(begin, head.find("\r\n", begin) - begin);
}

Client::Client(uint16_t port, int receive_bytes) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
  if (receive_bytes > 0)
    setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof(receive_bytes));
  const int on = 1;
  setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  const timeval wait{.tv_sec = kWaitMs / 1000, .tv_usec = 0};
  setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0)
    throw std::runtime_error("the server does not accept");
}

Client::~Client() {
  close();
}

void Client::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void Client::close_sending() {
  shutdown(fd_, SHUT_WR);
}

bool Client::try_send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

void Client::send(std::string_view bytes) {
  if (!try_send(bytes)) throw std::runtime_error("the server closed while a request was sent");
}

std::string Client::read_some() {
  pollfd wait{.fd = fd_, .events = POLLIN, .revents = 0};
  if (poll(&wait, 1, kWaitMs) != 1) throw std::runtime_error("the server sends nothing");
  char buffer[16384];
  const ssize_t count = recv(fd_, buffer, sizeof(buffer), 0);
  return count > 0 ? std::string(buffer, static_cast<size_t>(count)) : std::string();
}

std::string Client::read_until(std::string_view text) {
  while (bytes_.find(text) == std::string::npos) {
    const std::string more = read_some();
    if (more.empty()) throw std::runtime_error("the server closed early: " + bytes_);
    bytes_ += more;
  }
  return bytes_;
}

std::string Client::receive_head() {
  const size_t end = read_until("\r\n\r\n").find("\r\n\r\n") + 4;
  std::string head = bytes_.substr(0, end);
  bytes_.erase(0, end);
  return head;
}

bool Client::at_end() {
  return bytes_.empty() && read_some().empty();
}

Response Client::receive() {
  read_until("\r\n\r\n");
  Response response;
  const size_t end = bytes_.find("\r\n\r\n") + 4;
  response.head = bytes_.substr(0, end);
  bytes_.erase(0, end);
  response.status = std::stoi(response.head.substr(9, 3));
  if (response.header("Transfer-Encoding") == "chunked") {
    while (true) {
      read_until("\r\n");
      const size_t line = bytes_.find("\r\n");
      const size_t size = std::stoul(bytes_.substr(0, line), nullptr, 16);
      while (bytes_.size() < line + 4 + size) {
        const std::string more = read_some();
        if (more.empty()) throw std::runtime_error("a chunk is cut off");
        bytes_ += more;
      }
      response.body += bytes_.substr(line + 2, size);
      bytes_.erase(0, line + 4 + size);
      if (size == 0) return response;
    }
  }
  const std::string length = response.header("Content-Length");
  const size_t wanted = length.empty() ? std::string::npos : std::stoul(length);
  while (bytes_.size() < wanted) {
    const std::string more = read_some();
    if (more.empty() && wanted != std::string::npos) throw std::runtime_error("a body is cut off");
    if (more.empty()) break;
    bytes_ += more;
  }
  response.body = bytes_.substr(0, wanted);
  bytes_.erase(0, response.body.size());
  return response;
}

std::string request_bytes(std::string_view method, std::string_view target, std::string_view body,
                          std::string_view headers) {
  return fmt::format("{} {} HTTP/1.1\r\nHost: here\r\n{}Content-Length: {}\r\n\r\n{}", method,
                     target, headers, body.size(), body);
}

std::vector<std::string> events(std::string_view body) {
  std::vector<std::string> out;
  while (!body.empty()) {
    const size_t end = body.find("\n\n");
    if (end == std::string_view::npos || !body.starts_with("data: ")) {
      out.push_back("(malformed) " + std::string(body));
      break;
    }
    out.emplace_back(body.substr(6, end - 6));
    body.remove_prefix(end + 2);
  }
  return out;
}

std::string at(std::string_view json, std::string_view pointer) {
  simdjson::dom::parser parser;
  simdjson::dom::element root, element;
  if (parser.parse(json.data(), json.size()).get(root)) return "(no JSON)";
  if (root.at_pointer(pointer).get(element)) return "(none)";
  std::string_view text;
  return element.get(text) ? simdjson::to_string(element) : std::string(text);
}

struct Harness::Impl {
  explicit Impl(kern::serve::ServerOptions options, ScriptedBackend& backend)
      : work(boost::asio::make_work_guard(io)), log("test", kern::Level::off) {
    if (options.port == kern::serve::ServerOptions().port) options.port = 0;
    options.api.style.family = "Tiny";
    backend.wake = [this, &backend] { turn(backend); };
    backend.deliver = [this](RequestEvent event) { server->deliver(std::move(event)); };
    auto started = Server::start(io, std::move(options), backend, tokenizer(), clock, log);
    if (!started) throw std::runtime_error(started.error().text());
    server = std::move(*started);
    thread = std::thread([this] { io.run(); });
  }
  /// Steps the model as long as it has something to say.
  void turn(ScriptedBackend& backend) {
    if (turning) return;
    turning = true;
    boost::asio::post(io, [this, &backend] {
      turning = false;
      if (backend.paused || !backend.busy()) return;
      backend.step();
      turn(backend);
    });
  }

  boost::asio::io_context io;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work;
  kern::SystemClock clock;
  kern::Log log;
  std::unique_ptr<Server> server;
  bool turning = false;
  std::thread thread;
};

std::string try_start(kern::serve::ServerOptions options) {
  ScriptedBackend backend;
  boost::asio::io_context io;
  kern::SystemClock clock;
  kern::Log log("test", kern::Level::off);
  const auto started = Server::start(io, std::move(options), backend, tokenizer(), clock, log);
  return started ? std::string() : started.error().text();
}

Harness::Harness(kern::serve::ServerOptions options)
    : backend_(std::make_unique<ScriptedBackend>()),
      impl_(std::make_unique<Impl>(std::move(options), *backend_)) {}

Harness::~Harness() {
  on([this] {
    impl_->server->stop();
    impl_->server.reset();
  });
  impl_->io.stop();
  impl_->thread.join();
}

uint16_t Harness::port() const {
  return impl_->server->port();
}
Server& Harness::server() {
  return *impl_->server;
}

void Harness::on(const std::function<void()>& call) {
  std::promise<void> done;
  boost::asio::post(impl_->io, [&] {
    call();
    done.set_value();
  });
  done.get_future().wait();
}

bool Harness::until(const std::function<bool()>& what) {
  for (int i = 0; i < kWaitMs / 5; ++i) {
    bool holds = false;
    on([&] { holds = what(); });
    if (holds) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

Response Harness::get(std::string_view target, std::string_view headers) {
  Client client(port());
  client.send(request_bytes("GET", target, "", headers));
  return client.receive();
}

Response Harness::post(std::string_view target, std::string_view body, std::string_view headers) {
  Client client(port());
  client.send(request_bytes("POST", target, body, headers));
  return client.receive();
}

Streamed put_together(std::string_view body, int index) {
  Streamed out;
  for (const auto& event : events(body)) {
    if (event == "[DONE]") {
      out.done = true;
      continue;
    }
    const auto take = [&](const char* pointer) {
      const std::string text = at(event, pointer);
      return text == "(none)" || text == "null" ? std::string() : text;
    };
    if (at(event, "/choices").empty() || event.find("\xEF\xBF\xBD") != std::string::npos)
      out.whole_characters = false;
    if (at(event, "/error/message") != "(none)") out.error = at(event, "/error/message");
    if (at(event, "/usage/total_tokens") != "(none)") out.usage = at(event, "/usage");
    if (at(event, "/choices/0/index") != std::to_string(index)) continue;
    out.content += take("/choices/0/text") + take("/choices/0/delta/content");
    out.reasoning += take("/choices/0/delta/reasoning_content");
    out.finish += take("/choices/0/finish_reason");
    for (int i = 0; at(event, "/choices/0/delta/tool_calls/" + std::to_string(i)) != "(none)";
         ++i) {
      const std::string call = "/choices/0/delta/tool_calls/" + std::to_string(i) + "/function/";
      out.calls.push_back(at(event, call + "name") + "(" + at(event, call + "arguments") + ")");
    }
  }
  return out;
}

}  // namespace kern_test
