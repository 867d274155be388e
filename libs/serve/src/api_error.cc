#include "api_error.h"

#include "json_writer.h"

namespace kern::serve {
namespace {

std::string_view type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    case 500:
      return "server_error";
    case 503:
      return "service_unavailable";
    default:
      return "invalid_request_error";
  }
}

void text_or_null(JsonWriter& json, std::string_view name, std::string_view text) {
  json.key(name);
  if (text.empty())
    json.null();
  else
    json.string(text);
}

}  // namespace

std::string error_json(const ApiError& error) {
  JsonWriter json;
  json.begin_object().key("error").begin_object();
  json.field("message", error.message).field("type", type_of(error.status));
  text_or_null(json, "param", error.param);
  text_or_null(json, "code", error.code);
  json.end_object().end_object();
  return json.take();
}

HttpResponse error_reply(const ApiError& error, int32_t retry_after_s) {
  HttpResponse response{.status = error.status, .headers = {}, .body = error_json(error)};
  if (error.status == 429 || error.status == 503)
    response.headers.emplace_back("Retry-After", fmt::format("{}", retry_after_s));
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

ApiError bad_request(const Error& error, std::string param) {
  return {.status = 400, .message = error.text(), .param = std::move(param), .code = {}};
}

}  // namespace kern::serve
