#include "request_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <utility>

#include "kern/base/assert.h"

namespace kern::serve {

namespace http = boost::beast::http;

namespace {

constexpr size_t kRequestIdBytesMax = 128;
// "0\r\n\r\n": a chunked body that is not over has at least as many bytes to come, and the parser
// asserts that it is not given fewer of its last chunk.
constexpr size_t kLastChunkBytes = 5;

std::string text(boost::beast::string_view view) {
  return {view.data(), view.size()};
}

/// A request id that may stand in a header and a log line; another counts as absent.
std::string usable_id(std::string id) {
  const bool good = id.size() <= kRequestIdBytesMax &&
                    std::all_of(id.begin(), id.end(), [](char c) { return c > 0x20 && c < 0x7F; });
  return good ? id : std::string();
}

std::string_view reason_of(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Payload Too Large";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 503:
      return "Service Unavailable";
    default:
      return "Unknown";
  }
}

void add_headers(std::string& out, const std::vector<HttpHeader>& headers) {
  for (const auto& [name, value] : headers) out += fmt::format("{}: {}\r\n", name, value);
}

}  // namespace

struct RequestReader::Parser : http::request_parser<http::string_body> {};

RequestReader::RequestReader(const Limits& limits) : limits_(limits) {
  begin();
}
RequestReader::~RequestReader() = default;

void RequestReader::begin() {
  parser_ = std::make_unique<Parser>();
  parser_->header_limit(static_cast<uint32_t>(limits_.header_bytes_max));
  parser_->body_limit(static_cast<uint64_t>(limits_.body_bytes_max));
  started_ = false;
  has_head_ = false;
  request_ = {};
}

RequestReader::Step RequestReader::read(std::string& bytes) {
  // Empty lines before a request are skipped.
  if (!started_) bytes.erase(0, std::min(bytes.find_first_not_of("\r\n"), bytes.size()));
  if (bytes.empty()) return Step::more;
  started_ = true;
  if (has_head_ && parser_->chunked() && !parser_->is_done() && bytes.size() < kLastChunkBytes)
    return Step::more;
  size_t used = 0;
  boost::system::error_code error;
  while (used < bytes.size() && !error && !parser_->is_done()) {
    used += parser_->put({bytes.data() + used, bytes.size() - used}, error);
    if (parser_->is_header_done() && !has_head_) break;
  }
  bytes.erase(0, used);
  if (error == http::error::need_more) error = {};
  if (error == http::error::body_limit)
    return refuse(413, fmt::format("the body has more than {} bytes", limits_.body_bytes_max),
                  "body_too_large");
  if (error == http::error::header_limit)
    return refuse(431, fmt::format("the head has more than {} bytes", limits_.header_bytes_max),
                  "head_too_large");
  if (error)
    return refuse(400, fmt::format("the request is not HTTP/1: {}", error.message()),
                  "malformed_request");
  if (parser_->is_header_done() && !has_head_) return head_done();
  return parser_->is_done() ? Step::whole : Step::more;
}

RequestReader::Step RequestReader::head_done() {
  KERN_ASSERT(!has_head_, "a request has two heads");
  has_head_ = true;
  // The parser stopped behind the head, so that it can be looked at before the body is read.
  parser_->eager(true);
  const auto& message = parser_->get();
  request_ = {.method = text(message.method_string()),
              .target = text(message.target()),
              .authorization = text(message[http::field::authorization]),
              .request_id = usable_id(text(message["x-request-id"])),
              .timeout = text(message["x-request-timeout"]),
              .loopback = false,
              .body = {}};
  // A body in another coding would be taken for the next request.
  const bool coded = message.find(http::field::transfer_encoding) != message.end();
  if (coded && !parser_->chunked())
    return refuse(400, "the body's transfer coding is not `chunked`", "malformed_request");
  return Step::head;
}

RequestReader::Step RequestReader::refuse(int status, std::string_view message,
                                          std::string_view code) {
  refusal_ = Api::error_response(status, message, code);
  if (!request_.request_id.empty())
    refusal_.headers.emplace_back("x-request-id", request_.request_id);
  return Step::bad;
}

HttpRequest RequestReader::take() {
  KERN_ASSERT(has_head_ && parser_->is_done(), "a request is taken before it is whole");
  request_.body = std::move(parser_->get().body());
  return std::move(request_);
}

bool RequestReader::keep_alive() const {
  return has_head_ && parser_->keep_alive();
}
bool RequestReader::may_chunk() const {
  return has_head_ && parser_->get().version() >= 11;
}
bool RequestReader::body_is_due() const {
  return !parser_->is_done();
}

bool RequestReader::expects_continue() const {
  const auto value = parser_->get()[http::field::expect];
  return body_is_due() && boost::beast::iequals(value, "100-continue");
}

std::string response_head(const HttpResponse& response, bool keep_alive) {
  std::string out =
      fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n", response.status,
                  reason_of(response.status), response.content_type, response.body.size());
  add_headers(out, response.headers);
  return out + (keep_alive ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n");
}

std::string stream_head(const std::vector<HttpHeader>& headers, bool chunked, bool keep_alive) {
  std::string out =
      "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
      "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n";
  if (chunked) out += "Transfer-Encoding: chunked\r\n";
  add_headers(out, headers);
  return out + (keep_alive ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n");
}

std::string chunk(std::string_view bytes) {
  return fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes);
}

}  // namespace kern::serve
