#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "harness.h"

using namespace kern_test;

namespace {

kern::serve::ServerOptions with_limits(const std::function<void(kern::serve::Limits&)>& change) {
  kern::serve::ServerOptions options;
  change(options.api.limits);
  return options;
}

}  // namespace

TEST_CASE("a bad field is refused with its name, what was expected and what came",
          "[serve][limits]") {
  Harness harness;
  const struct {
    const char* body;
    const char* param;
    const char* message;
  } cases[] = {
      {R"({"prompt": "x", "temperature": 2.5})", "temperature", "within [0, 2], got 2.5"},
      {R"({"prompt": "x", "temperature": -1})", "temperature", "within [0, 2], got -1"},
      {R"({"prompt": "x", "temperature": "hot"})", "temperature", "a number, got a string"},
      {R"({"prompt": "x", "top_p": 1.5})", "top_p", "within [0, 1], got 1.5"},
      {R"({"prompt": "x", "min_p": 2})", "min_p", "within [0, 1], got 2"},
      {R"({"prompt": "x", "top_k": 1.5})", "top_k", "an integer, got a number"},
      {R"({"prompt": "x", "n": 0})", "n", "within [1, 128], got 0"},
      {R"({"prompt": "x", "n": 129})", "n", "within [1, 128], got 129"},
      {R"({"prompt": "x", "n": 9000000000000000000})", "n", "within [1, 128]"},
      {R"({"prompt": "x", "max_tokens": 0})", "max_tokens", "within [1, "},
      {R"({"prompt": "x", "max_tokens": true})", "max_tokens", "an integer, got a boolean"},
      {R"({"prompt": "x", "stream": 1})", "stream", "a boolean, got an integer"},
      {R"({"prompt": "x", "stream_options": 1})", "stream_options", "an object, got an integer"},
      {R"({"prompt": "x", "stream_options": {"include_usage": 1}})", "stream_options.include_usage",
       "a boolean, got an integer"},
      {R"({"prompt": "x", "logprobs": 6})", "logprobs", "within [0, 5], got 6"},
      {R"({"prompt": "x", "logprobs": true})", "logprobs", "an integer, got a boolean"},
      {R"({"prompt": "x", "stop": 1})", "stop", "a list of strings, got an integer"},
      {R"({"prompt": "x", "stop": ["a", ""]})", "stop", "must not hold an empty string"},
      {R"({"prompt": "x", "stop_token_ids": [-1]})", "stop_token_ids", "token ids below"},
      {R"({"prompt": "x", "presence_penalty": 3})", "presence_penalty", "within [-2, 2], got 3"},
      {R"({"prompt": "x", "repetition_penalty": 1.1})", "repetition_penalty",
       "must be 1.0, got 1.1"},
      {R"({"prompt": "x", "logit_bias": {"5": 1}})", "logit_bias", "not supported"},
      {R"({"prompt": "x", "suffix": "y"})", "suffix", "not supported"},
      {R"({"prompt": "x", "best_of": 2})", "best_of", "must equal `n`, which is 1, got 2"},
      {R"({"prompt": "x", "seed": 1.5})", "seed", "an integer, got a number"},
      {R"({"prompt": "x", "model": 3})", "model", "a string, got an integer"},
      {R"({"prompt": "x", "timeout": -1})", "timeout", "within [0, "},
      {R"({})", "prompt", "`prompt` is missing"},
      {R"({"prompt": null})", "prompt", "`prompt` is missing"},
      {R"({"prompt": ""})", "prompt", "at least one token"},
      {R"({"prompt": []})", "prompt", "at least one token"},
      {R"({"prompt": {}})", "prompt", "got an object"},
      {R"({"prompt": ["a", [1]]})", "prompt", "strings alone or lists of ids alone"},
      {R"({"prompt": ["a", ""]})", "prompt", "at least one token"},
      {R"({"prompt": [1, "a"]})", "prompt", "must be a string"},
      {R"({"prompt": [1, 99999]})", "prompt", "token id 99999 is not within [0, 272)"},
      {R"({"prompt": [1, 4294967297]})", "prompt", "a token id is not within [0, 272)"},
      {R"({"prompt": [-1]})", "prompt", "token id -1"},
      {R"({"prompt": "x", "n": 1, "n": 2})", "n", "`n` stands twice in the body"},
  };
  for (const auto& each : cases) {
    INFO(each.body);
    const auto answer = harness.post("/v1/completions", each.body);
    CHECK(answer.status == 400);
    CHECK(at(answer.body, "/error/type") == "invalid_request_error");
    CHECK(at(answer.body, "/error/param") == each.param);
    CHECK_THAT(at(answer.body, "/error/message"), Catch::Contains(each.message));
  }
  harness.on([&] { CHECK(harness.backend().requests.empty()); });
}

TEST_CASE("a body that is not one JSON object is refused", "[serve][limits]") {
  Harness harness;
  const std::string deep_ok =
      R"({"prompt": "x", "y": )" + std::string(62, '[') + "1" + std::string(62, ']') + "}";
  const std::string deep =
      R"({"prompt": "x", "y": )" + std::string(64, '[') + "1" + std::string(64, ']') + "}";
  CHECK(harness.post("/v1/completions", deep_ok).status == 200);
  const auto too_deep = harness.post("/v1/completions", deep);
  CHECK(too_deep.status == 400);
  CHECK_THAT(at(too_deep.body, "/error/message"), Catch::Contains("deeper than 64 levels"));
  for (const std::string& bad :
       {std::string(), std::string("{"), std::string("[]"), std::string("null"), std::string("3"),
        std::string(R"({"prompt": "x"} {})"), std::string(R"({"prompt": "x",})"),
        std::string("{\"prompt\": \"\xff\"}"), std::string(R"({"prompt": "\ud800"})"),
        std::string("{\"prompt\": \"a\nb\"}"), std::string(R"({"prompt": NaN})"),
        std::string(R"({"prompt": "x", "temperature": 1e999})"),
        std::string(R"({"prompt": "x", "n": 99999999999999999999})")}) {
    INFO(bad);
    const auto answer = harness.post("/v1/completions", bad);
    CHECK(answer.status == 400);
    CHECK(at(answer.body, "/error/type") == "invalid_request_error");
    CHECK(harness.post("/v1/chat/completions", bad).status == 400);
    CHECK(harness.post("/tokenize", bad).status == 400);
  }
}

TEST_CASE("a prompt that does not fit the context is refused and names the context",
          "[serve][limits]") {
  Harness harness;
  harness.on([&] { harness.backend().info.max_model_len = 8; });
  const auto refused = [&](const char* body) {
    const auto answer = harness.post("/v1/completions", body);
    CHECK(answer.status == 400);
    CHECK(at(answer.body, "/error/code") == "context_length_exceeded");
    CHECK_THAT(at(answer.body, "/error/message"),
               Catch::Contains("maximum context length is 8 tokens"));
  };
  refused(R"({"prompt": [1,2,3,4,5,6,7,8,9]})");
  refused(R"({"prompt": [1,2,3,4,5,6,7,8]})");
  refused(R"({"prompt": [1,2,3,4,5,6], "max_tokens": 3})");
  refused(R"({"prompt": [[1], [1,2,3,4,5,6,7,8]]})");
  CHECK(harness.post("/v1/completions", R"({"prompt": [1,2,3,4,5,6,7]})").status == 200);
  CHECK(harness.post("/v1/completions", R"({"prompt": [1,2,3,4,5,6], "max_tokens": 2})").status ==
        200);
  const auto chat = harness.post("/v1/chat/completions",
                                 R"({"messages": [{"role": "user", "content": "hello"}]})");
  CHECK(chat.status == 400);
  CHECK(at(chat.body, "/error/code") == "context_length_exceeded");
  harness.on([&] { CHECK(harness.backend().requests.size() == 2); });
}

TEST_CASE("an answer too long for the context is refused by the field that asks for it",
          "[serve][limits]") {
  Harness harness;
  const auto param = [&](const char* path, const char* body) {
    return at(harness.post(path, body).body, "/error/param");
  };
  CHECK(param("/v1/completions", R"({"prompt": [1,2], "max_tokens": 2000000000})") == "max_tokens");
  for (const std::string field : {"max_tokens", "max_completion_tokens"})
    CHECK(
        param("/v1/chat/completions", (R"({"messages": [{"role": "user", "content": "hello"}], ")" +
                                       field + R"(": 2000000000})")
                                          .c_str()) == field);
}

TEST_CASE("the counts of prompts, stop strings and answers are limited", "[serve][limits]") {
  Harness harness(with_limits([](auto& limits) {
    limits.prompts_max = 2;
    limits.stop_strings_max = 2;
    limits.stop_bytes_max = 4;
    limits.answers_max = 4;
  }));
  const auto message = [&](const char* body, int status) {
    const auto answer = harness.post("/v1/completions", body);
    CHECK(answer.status == status);
    return at(answer.body, "/error/message");
  };
  CHECK_THAT(message(R"({"prompt": ["a", "b", "c"]})", 400),
             Catch::Contains("at most 2 prompts, got 3"));
  CHECK_THAT(message(R"({"prompt": "a", "stop": ["a", "b", "c"]})", 400),
             Catch::Contains("at most 2 strings, got 3"));
  CHECK_THAT(message(R"({"prompt": "a", "stop": "abcde"})", 400),
             Catch::Contains("at most 4 bytes, got 5"));
  CHECK_THAT(message(R"({"prompt": "a", "n": 5})", 400), Catch::Contains("at most 4 fit"));
  harness.on([&] { harness.backend().paused = true; });
  Client client(harness.port());
  client.send(request_bytes("POST", "/v1/completions", R"({"prompt": "a", "n": 3})"));
  REQUIRE(harness.until([&] { return harness.backend().running().size() == 3; }));
  const auto full = harness.post("/v1/completions", R"({"prompt": "a", "n": 2})");
  CHECK(full.status == 429);
  CHECK(full.header("Retry-After") == "1");
  CHECK(at(full.body, "/error/type") == "rate_limit_error");
  CHECK(at(full.body, "/error/code") == "queue_full");
}

TEST_CASE("a deadline comes from the body or a header", "[serve][limits]") {
  Harness harness;
  kern::SystemClock clock;
  const auto seconds = [&](const char* body, const char* header) {
    const auto before = clock.now();
    REQUIRE(harness.post("/v1/completions", body, header).status == 200);
    kern::TimeNs deadline = 0;
    harness.on([&] { deadline = harness.backend().requests.back().deadline; });
    return static_cast<double>(deadline - before) / 1e9;
  };
  CHECK(seconds(R"({"prompt": "a"})", "x-request-timeout: 20\r\n") == Approx(20).margin(5));
  CHECK(seconds(R"({"prompt": "a", "timeout": 60})", "") == Approx(60).margin(5));
  CHECK(seconds(R"({"prompt": "a", "timeout": 60})", "x-request-timeout: 20.5\r\n") ==
        Approx(20.5).margin(5));
  for (const char* bad : {"x", "-1", "0", "1e99", "nan", "5s"})
    CHECK(harness
              .post("/v1/completions", R"({"prompt": "a"})",
                    fmt::format("x-request-timeout: {}\r\n", bad))
              .status == 400);
}

TEST_CASE("a body over its limit is refused before it is read", "[serve][limits]") {
  Harness harness(with_limits([](auto& limits) { limits.body_bytes_max = 1000; }));
  Client announced(harness.port());
  announced.send("POST /v1/completions HTTP/1.1\r\nContent-Length: 100000000\r\n\r\n{");
  const auto refused = announced.receive();
  CHECK(refused.status == 413);
  CHECK(at(refused.body, "/error/code") == "body_too_large");
  CHECK(refused.header("Connection") == "close");
  Client chunked(harness.port());
  chunked.send("POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 3; ++i) chunked.try_send("190\r\n" + std::string(400, ' ') + "\r\n");
  CHECK(chunked.receive().status == 413);
  Client whole(harness.port());
  whole.send(request_bytes("POST", "/v1/completions", std::string(5000, ' ')));
  CHECK(whole.receive().status == 413);
  CHECK(harness.post("/v1/completions", R"({"prompt": "a"})").status == 200);
}

TEST_CASE("a head over its limit is refused", "[serve][limits]") {
  Harness harness(with_limits([](auto& limits) { limits.header_bytes_max = 2000; }));
  CHECK(harness.get("/health", "x-long: " + std::string(1000, 'x') + "\r\n").status == 200);
  Client client(harness.port());
  client.try_send("GET /health HTTP/1.1\r\nx-long: " + std::string(5000, 'x') + "\r\n\r\n");
  CHECK(client.receive().status == 431);
  Client endless(harness.port());
  for (int i = 0; i < 300; ++i)
    if (!endless.try_send("x-more: yes\r\n")) break;
  CHECK(endless.receive().status >= 400);
}

TEST_CASE("open connections are limited", "[serve][limits]") {
  Harness harness(with_limits([](auto& limits) { limits.connections_max = 2; }));
  Client first(harness.port());
  first.send(request_bytes("GET", "/health", ""));
  CHECK(first.receive().status == 200);
  Client second(harness.port());
  second.send(request_bytes("GET", "/health", ""));
  CHECK(second.receive().status == 200);
  Client third(harness.port());
  const auto refused = third.receive();
  CHECK(refused.status == 503);
  CHECK(refused.header("Retry-After") == "1");
  CHECK(at(refused.body, "/error/code") == "too_many_connections");
  second.close();
  bool served = false;
  for (int i = 0; i < 100 && !served; ++i) {
    Client again(harness.port());
    again.try_send(request_bytes("GET", "/health", ""));
    served = again.receive().status == 200;
  }
  CHECK(served);
}

TEST_CASE("a slow head and a slow body run into their time-outs", "[serve][limits]") {
  Harness harness(with_limits([](auto& limits) {
    limits.header_timeout_ms = 100;
    limits.body_timeout_ms = 200;
    limits.idle_timeout_ms = 300;
  }));
  Client head(harness.port());
  head.send("GET /health HT");
  CHECK(head.receive().status == 408);
  Client body(harness.port());
  body.send("POST /v1/completions HTTP/1.1\r\nContent-Length: 100\r\n\r\n{");
  CHECK(body.receive().status == 408);
  Client silent(harness.port());
  CHECK(silent.at_end());
  Client idle(harness.port());
  idle.send(request_bytes("GET", "/health", ""));
  CHECK(idle.receive().status == 200);
  CHECK(idle.at_end());
  // An answer that takes longer than any of them is not cut.
  harness.on([&] { harness.backend().paused = true; });
  Client patient(harness.port());
  patient.send(request_bytes("POST", "/v1/completions", R"({"prompt": "a"})"));
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  harness.on([&] {
    harness.backend().paused = false;
    harness.backend().wake();
  });
  CHECK(patient.receive().status == 200);
}
