#include <catch2/catch.hpp>
#include <fstream>

#include "harness.h"

using namespace kern_test;
using kern::serve::HealthState;

TEST_CASE("the model list names the model, its aliases and its context", "[serve][routes]") {
  Harness harness;
  const auto list = harness.get("/v1/models");
  CHECK(list.status == 200);
  CHECK(list.header("Content-Type") == "application/json");
  CHECK(at(list.body, "/object") == "list");
  CHECK(at(list.body, "/data/0/id") == "tiny");
  CHECK(at(list.body, "/data/0/max_model_len") == "4096");
  CHECK(at(list.body, "/data/0/created") == "1700000000");
  CHECK(at(list.body, "/data/1/id") == "tiny-alias");
  CHECK(at(harness.get("/v1/models/tiny").body, "/object") == "model");
  const auto unknown = harness.get("/v1/models/huge");
  CHECK(unknown.status == 404);
  CHECK(at(unknown.body, "/error/code") == "model_not_found");
}

TEST_CASE("health is 200 only while the backend is ready", "[serve][routes]") {
  Harness harness;
  const auto good = harness.get("/health");
  CHECK(good.status == 200);
  CHECK(at(good.body, "/status") == "ready");
  CHECK(at(good.body, "/details/steps") == "1");
  for (const auto state : {HealthState::loading, HealthState::draining, HealthState::stuck}) {
    harness.on([&] { harness.backend().state = {state, "stage 2 is silent", ""}; });
    const auto bad = harness.get("/health");
    CHECK(bad.status == 503);
    CHECK(bad.header("Retry-After") == "1");
    CHECK(at(bad.body, "/status") == std::string(kern::serve::to_string(state)));
    CHECK(at(bad.body, "/reason") == "stage 2 is silent");
    CHECK(at(bad.body, "/error/code") == "not_ready");
    const auto refused = harness.post("/v1/completions", R"({"prompt": "hello"})");
    CHECK(refused.status == 503);
    CHECK(refused.header("Retry-After") == "1");
    CHECK(at(refused.body, "/error/message").find("stage 2 is silent") != std::string::npos);
  }
}

TEST_CASE("version, metrics and the status page answer", "[serve][routes]") {
  kern::serve::ServerOptions options;
  options.api.version = "1.2.3";
  Harness harness(std::move(options));
  CHECK(at(harness.get("/version").body, "/version") == "1.2.3");
  CHECK(harness.post("/v1/completions", R"({"prompt": "hello", "max_tokens": 3})").status == 200);
  const auto metrics = harness.get("/metrics");
  CHECK(metrics.header("Content-Type").starts_with("text/plain"));
  for (const char* line :
       {"kern_test_backend 1\n",
        "kern_http_requests_total{route=\"/v1/completions\",status=\"200\"} 1\n",
        "vllm:generation_tokens_total{model_name=\"tiny\"} 2\n",
        "vllm:prompt_tokens_total{model_name=\"tiny\"} 1\n",
        "vllm:request_success_total{model_name=\"tiny\",finished_reason=\"stop\"} 1\n",
        "kern_time_to_first_token_seconds_count{model_name=\"tiny\"} 1\n",
        "vllm:e2e_request_latency_seconds_bucket{model_name=\"tiny\",le=\"+Inf\"} 1\n",
        "kern_http_answers_open 0\n"})
    CHECK_THAT(metrics.body, Catch::Contains(line));
  const auto page = harness.get("/");
  CHECK(page.status == 200);
  CHECK(page.header("Content-Type").starts_with("text/html"));
  CHECK_THAT(page.body,
             Catch::Contains("stages &lt;all&gt;") && Catch::Contains("busy &amp; well"));
}

TEST_CASE("tokenize and detokenize undo each other", "[serve][routes]") {
  Harness harness;
  const auto tokens = harness.post("/tokenize", R"({"prompt": "hello <|open|> ü"})");
  CHECK(tokens.status == 200);
  CHECK(at(tokens.body, "/max_model_len") == "4096");
  CHECK(at(tokens.body, "/token_strs") == "null");
  CHECK(at(tokens.body, "/count") == std::to_string(ids("hello <|open|> ü").size()));
  const auto text = harness.post("/detokenize", "{\"tokens\": " + at(tokens.body, "/tokens") + "}");
  CHECK(at(text.body, "/prompt") == "hello <|open|> ü");
  const auto named = harness.post("/tokenize", R"({"prompt": "hello", "return_token_strs": true})");
  CHECK(at(named.body, "/token_strs/0") == "hello");
  for (const char* bad :
       {R"({"tokens": [99999]})", R"({"tokens": "x"})", R"({})", R"({"tokens": [1.5]})"})
    CHECK(harness.post("/detokenize", bad).status == 400);
  CHECK(harness.post("/tokenize", R"({})").status == 400);
}

TEST_CASE("a conversation is tokenized as the chat route renders it", "[serve][routes]") {
  Harness harness;
  const std::string messages = R"("messages": [{"role": "user", "content": "hello"}])";
  const auto tokens = harness.post("/tokenize", "{" + messages + "}");
  CHECK(tokens.status == 200);
  CHECK(harness.post("/v1/chat/completions", "{" + messages + "}").status == 200);
  std::string prompt = "[";
  harness.on([&] {
    for (const auto token : harness.backend().requests[0].prompt)
      prompt += (prompt.size() > 1 ? "," : "") + std::to_string(token);
  });
  CHECK(at(tokens.body, "/tokens") == prompt + "]");
  const auto quiet = harness.post(
      "/tokenize", "{" + messages + R"(, "chat_template_kwargs": {"thinking": false}})");
  CHECK(at(quiet.body, "/count") != at(tokens.body, "/count"));
  const auto text = harness.post("/detokenize", "{\"tokens\": " + at(tokens.body, "/tokens") + "}");
  CHECK_THAT(at(text.body, "/prompt"),
             Catch::Contains("<|open|>message") && Catch::Contains("hello"));
}

TEST_CASE("unknown routes and wrong methods are refused in the API's shape", "[serve][routes]") {
  Harness harness;
  const auto missing = harness.get("/v2/nothing?x=1");
  CHECK(missing.status == 404);
  CHECK(at(missing.body, "/error/type") == "not_found_error");
  CHECK(at(missing.body, "/error/param") == "null");
  CHECK(at(missing.body, "/error/message") == "there is no route `GET /v2/nothing`");
  const auto wrong = harness.get("/v1/completions");
  CHECK(wrong.status == 405);
  CHECK(wrong.header("Allow") == "POST");
  CHECK(harness.post("/health", "{}").status == 405);
  const auto model = harness.post("/v1/completions", R"({"model": "huge", "prompt": "hello"})");
  CHECK(model.status == 404);
  CHECK(at(model.body, "/error/param") == "model");
  CHECK(at(model.body, "/error/code") == "model_not_found");
  CHECK(harness.post("/v1/completions", R"({"model": "tiny-alias", "prompt": "a"})").status == 200);
}

TEST_CASE("a HEAD request has the headers of a GET and no body", "[serve][routes]") {
  Harness harness;
  Client client(harness.port());
  client.send("HEAD /health HTTP/1.1\r\nHost: here\r\n\r\n");
  const std::string head = client.read_until("\r\n\r\n");
  CHECK(head.starts_with("HTTP/1.1 200 OK\r\n"));
  CHECK(head.ends_with("\r\n\r\n"));
  CHECK(head.find("Content-Length: 0") == std::string::npos);
}

TEST_CASE("with a key file every route but health asks for a key", "[serve][routes]") {
  const std::string path = std::string(KERN_BUILD_DIR) + "/serve-test-keys";
  std::ofstream(path) << "# team\nfirst-key\n\nsecond-key\r\n";
  kern::serve::ServerOptions options;
  options.api_key_file = path;
  Harness harness(std::move(options));
  CHECK(harness.get("/health").status == 200);
  CHECK(harness.get("/").status == 200);
  const auto refused = harness.get("/v1/models");
  CHECK(refused.status == 401);
  CHECK(refused.header("WWW-Authenticate") == "Bearer");
  CHECK(at(refused.body, "/error/code") == "invalid_api_key");
  CHECK(at(refused.body, "/error/type") == "authentication_error");
  for (const char* route : {"/metrics", "/version", "/nothing"})
    CHECK(harness.get(route).status == 401);
  CHECK(harness.post("/v1/completions", R"({"prompt": "hello"})").status == 401);
  CHECK(harness.get("/v1/models", "Authorization: Bearer first-key\r\n").status == 200);
  CHECK(harness.get("/v1/models", "Authorization: bearer second-key\r\n").status == 200);
  for (const char* bad : {"Bearer first", "Bearer ", "Basic first-key", "first-key",
                          "Bearer # team", "Bearer first-key2"})
    CHECK(harness.get("/v1/models", fmt::format("Authorization: {}\r\n", bad)).status == 401);
}

TEST_CASE("a server that cannot start says why", "[serve][routes]") {
  Harness harness;
  const auto refused = [](const std::function<void(kern::serve::ServerOptions&)>& change) {
    kern::serve::ServerOptions options;
    change(options);
    return try_start(std::move(options));
  };
  CHECK(refused([](auto& options) { options.api_key_file = "/nowhere/keys"; }) != "");
  CHECK_THAT(refused([&](auto& options) { options.port = harness.port(); }),
             Catch::Contains("cannot listen on `127.0.0.1:"));
  CHECK_THAT(refused([](auto& options) { options.host = "not an address"; }),
             Catch::Contains("`not an address` is not an IP address"));
  CHECK_THAT(refused([](auto& options) { options.api.limits.n_max = 0; }),
             Catch::Contains("limit `max-n` must lie within [1, 1000000], got 0"));
}

TEST_CASE("a request id comes back, an unusable one is replaced", "[serve][routes]") {
  Harness harness;
  CHECK(harness.get("/version", "x-request-id: abc-1\r\n").header("x-request-id") == "abc-1");
  CHECK(harness.get("/nothing", "x-request-id: abc-1\r\n").header("x-request-id") == "abc-1");
  const auto answer = harness.post("/v1/completions", R"({"prompt": "hello"})");
  CHECK(answer.header("x-request-id") == at(answer.body, "/id"));
  const auto long_id = "x-request-id: " + std::string(200, 'x') + "\r\n";
  const auto replaced = harness.post("/v1/completions", R"({"prompt": "hello"})", long_id);
  CHECK(replaced.header("x-request-id") == at(replaced.body, "/id"));
}
