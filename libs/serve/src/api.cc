#include "kern/serve/api.h"

#include <algorithm>
#include <utility>

#include "json_writer.h"
#include "kern/base/assert.h"
#include "kern/text/tokenizer.h"
#include "state.h"

namespace kern::serve {
namespace {

enum class Route {
  none,
  completions,
  chat,
  models,
  model,
  health,
  metrics,
  version,
  tokenize,
  detokenize,
  status
};

constexpr std::string_view kModelPrefix = "/v1/models/";

std::string path_of(const std::string& target) {
  return target.substr(0, target.find_first_of("?#"));
}

Route route_of(std::string_view path) {
  static constexpr std::pair<std::string_view, Route> kRoutes[] = {
      {"/v1/completions", Route::completions},
      {"/v1/chat/completions", Route::chat},
      {"/v1/models", Route::models},
      {"/health", Route::health},
      {"/metrics", Route::metrics},
      {"/version", Route::version},
      {"/tokenize", Route::tokenize},
      {"/detokenize", Route::detokenize},
      {"/", Route::status}};
  for (const auto& [name, route] : kRoutes)
    if (name == path) return route;
  return path.starts_with(kModelPrefix) ? Route::model : Route::none;
}

bool is_posted(Route route) {
  return route == Route::completions || route == Route::chat || route == Route::tokenize ||
         route == Route::detokenize;
}

ApiError no_route(const HttpRequest& request, const std::string& path) {
  return {.status = 404,
          .message = fmt::format("there is no route `{} {}`", request.method, path),
          .param = {},
          .code = "route_not_found"};
}

/// The label of a path in the metrics: paths that clients invent share one.
std::string route_label(Route route, const std::string& path) {
  if (route == Route::none) return "other";
  return route == Route::model ? "/v1/models" : path;
}

HttpResponse json_reply(JsonWriter& json) {
  return {.headers = {}, .body = json.take()};
}

void write_model(JsonWriter& json, const ModelInfo& model, const std::string& name) {
  json.begin_object().field("id", name).field("object", "model").field("created", model.created);
  json.field("owned_by", model.owned_by).field("root", model.name).key("parent").null();
  json.field("max_model_len", model.max_model_len).end_object();
}

std::vector<std::string> names_of(const ModelInfo& model) {
  std::vector<std::string> names = {model.name};
  names.insert(names.end(), model.aliases.begin(), model.aliases.end());
  return names;
}

}  // namespace

std::string_view to_string(HealthState state) {
  switch (state) {
    case HealthState::loading:
      return "loading";
    case HealthState::ready:
      return "ready";
    case HealthState::draining:
      return "draining";
    case HealthState::stuck:
      return "stuck";
  }
  return "stuck";
}

Api::State::State(ApiOptions options_in, Backend& backend_in, const text::Tokenizer& tokenizer_in,
                  const Clock& clock_in, const Log& log_in)
    : options(std::move(options_in)),
      backend(backend_in),
      tokenizer(tokenizer_in),
      clock(clock_in),
      log(log_in),
      nonce(fmt::format("{:016x}", backend_in.random_seed())) {
  for (const auto& key : options.api_keys) key_digests.push_back(sha256(as_bytes(key)));
}

Api::Api(ApiOptions options, Backend& backend, const text::Tokenizer& tokenizer, const Clock& clock,
         const Log& log)
    : state_(std::make_unique<State>(std::move(options), backend, tokenizer, clock, log)) {}
Api::~Api() = default;

void Api::start_draining() {
  state_->draining = true;
}
size_t Api::open_exchanges() const {
  return state_->exchanges.size();
}
Api::ConnectionCounts& Api::connections() {
  return state_->connections;
}

HttpResponse Api::error_response(int status, std::string_view message, std::string_view code) {
  return error_reply(
      {.status = status, .message = std::string(message), .param = {}, .code = std::string(code)},
      1);
}

std::optional<ApiError> Api::State::check_key(const HttpRequest& request,
                                              const std::string& path) const {
  if (key_digests.empty() || path == "/health" || (path == "/" && request.loopback))
    return std::nullopt;
  constexpr std::string_view kScheme = "Bearer ";
  std::string_view key = request.authorization;
  const bool is_bearer = key.size() >= kScheme.size() &&
                         std::equal(kScheme.begin(), kScheme.end(), key.begin(),
                                    [](char a, char b) { return (a | 0x20) == (b | 0x20); });
  // Digests of equal length are compared, all of them, in a time that tells nothing.
  const Digest digest = sha256(as_bytes(is_bearer ? key.substr(kScheme.size()) : ""));
  bool known = false;
  for (const auto& good : key_digests) known |= digests_equal(digest, good);
  if (is_bearer && known) return std::nullopt;
  return ApiError{.status = 401,
                  .message = key.empty() ? "no API key was given, expected `Authorization: Bearer`"
                                         : "the API key is not valid",
                  .param = {},
                  .code = "invalid_api_key"};
}

std::optional<HttpResponse> Api::refuse_early(const HttpRequest& head) {
  const std::string path = path_of(head.target);
  const Route route = route_of(path);
  const auto refuse = [&](const ApiError& error) {
    state_->count(route_label(route, path), error.status);
    HttpResponse response = error_reply(error, state_->options.retry_after_s);
    if (!head.request_id.empty()) response.headers.emplace_back("x-request-id", head.request_id);
    return response;
  };
  if (auto error = state_->check_key(head, path)) return refuse(*error);
  if (route == Route::none) return refuse(no_route(head, path));
  const std::string_view allowed = is_posted(route) ? "POST" : "GET";
  const bool fits = head.method == allowed || (head.method == "HEAD" && allowed == "GET");
  if (fits) return std::nullopt;
  auto response =
      refuse({.status = 405,
              .message = fmt::format("`{}` takes {}, got {}", path, allowed, head.method),
              .param = {},
              .code = "method_not_allowed"});
  response.headers.emplace_back("Allow", allowed);
  return response;
}

ExchangeId Api::handle(HttpRequest request, Responder& responder) {
  if (auto refused = refuse_early(request)) {
    responder.reply(std::move(*refused));
    return 0;
  }
  const std::string path = path_of(request.target);
  const Route route = route_of(path);
  HttpResponse response;
  if (route == Route::completions || route == Route::chat) {
    const auto begun = state_->generate(request, route == Route::chat, responder);
    if (begun) return *begun;
    response = error_reply(begun.error(), state_->options.retry_after_s);
  } else {
    response = state_->answer(request, path);
  }
  state_->count(route_label(route, path), response.status);
  if (!request.request_id.empty())
    response.headers.emplace_back("x-request-id", request.request_id);
  responder.reply(std::move(response));
  return 0;
}

HttpResponse Api::State::answer(const HttpRequest& request, const std::string& path) {
  switch (route_of(path)) {
    case Route::models:
    case Route::model:
      return models(path);
    case Route::health:
      return health_reply();
    case Route::metrics:
      return {.content_type = "text/plain; version=0.0.4; charset=utf-8",
              .headers = {},
              .body = metrics.print(backend.model().name, connections) + backend.metrics_text()};
    case Route::version: {
      JsonWriter json;
      json.begin_object().field("version", options.version).end_object();
      return json_reply(json);
    }
    case Route::tokenize:
      return tokenize(request);
    case Route::detokenize:
      return detokenize(request);
    case Route::status:
      return status_page();
    case Route::none:
    case Route::completions:
    case Route::chat:
      break;
  }
  KERN_ASSERT(false, "`{}` is not answered here", path);
}

HttpResponse Api::State::models(const std::string& path) const {
  const ModelInfo& model = backend.model();
  JsonWriter json;
  if (path.starts_with(kModelPrefix)) {
    const std::string wanted = path.substr(kModelPrefix.size());
    const auto names = names_of(model);
    if (std::find(names.begin(), names.end(), wanted) == names.end())
      return error_reply(
          {.status = 404,
           .message = fmt::format("the model `{}` does not exist, this server has `{}`", wanted,
                                  model.name),
           .param = "model",
           .code = "model_not_found"},
          options.retry_after_s);
    write_model(json, model, wanted);
    return json_reply(json);
  }
  json.begin_object().field("object", "list").key("data").begin_array();
  for (const auto& name : names_of(model)) write_model(json, model, name);
  json.end_array().end_object();
  return json_reply(json);
}

HttpResponse Api::State::health_reply() const {
  Health health = backend.health();
  if (draining && health.state == HealthState::ready)
    health = {.state = HealthState::draining,
              .reason = "answers in flight are ending",
              .details_json = health.details_json};
  const bool ready = health.state == HealthState::ready;
  HttpResponse response;
  if (!ready)
    response =
        error_reply({.status = 503, .message = {}, .param = {}, .code = {}}, options.retry_after_s);
  JsonWriter json;
  json.begin_object().field("status", to_string(health.state));
  json.field("reason", health.reason).key("details");
  json.raw(health.details_json.empty() ? "{}" : health.details_json);
  if (!ready)
    json.key("error")
        .begin_object()
        .field("message", fmt::format("the server is {}{}{}", to_string(health.state),
                                      health.reason.empty() ? "" : ": ", health.reason))
        .field("type", "service_unavailable")
        .key("param")
        .null()
        .field("code", "not_ready")
        .end_object();
  json.end_object();
  response.body = json.take();
  return response;
}

HttpResponse Api::State::status_page() const {
  auto tables = backend.status();
  double per_second = 0;
  if (rate.size() > 1) {
    const auto& [then, few] = rate.front();
    const auto& [now, many] = rate.back();
    if (now > then)
      per_second = static_cast<double>(many - few) * kSecondNs / static_cast<double>(now - then);
  }
  tables.insert(
      tables.begin(),
      StatusTable{
          .title = "HTTP",
          .columns = {"connections", "answers open", "tokens generated", "tokens a second"},
          .rows = {{fmt::format("{}", connections.open), fmt::format("{}", metrics.answers_open),
                    fmt::format("{}", metrics.generation_tokens),
                    fmt::format("{:.1f}", per_second)}}});
  return {.content_type = "text/html; charset=utf-8",
          .headers = {},
          .body = status_html(backend.model(), backend.health(), tables)};
}

}  // namespace kern::serve
