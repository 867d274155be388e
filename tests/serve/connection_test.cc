#include <catch2/catch.hpp>

#include "harness.h"
#include "kern/base/prng.h"

using namespace kern_test;

namespace {

std::string stream_body(std::string_view prompt) {
  return fmt::format(R"({{"prompt": "{}", "stream": true, "max_tokens": 1000}})", prompt);
}

/// Flips, cuts, doubles or inserts bytes in up to four places.
std::string mutated(std::string text, kern::Prng& prng) {
  for (uint64_t i = 0, count = 1 + prng.below(4); i < count && !text.empty(); ++i) {
    const size_t at = prng.below(text.size());
    const size_t length = 1 + prng.below(std::min<size_t>(8, text.size() - at));
    const uint64_t kind = prng.below(4);
    if (kind == 0) text[at] = static_cast<char>(prng.next());
    if (kind == 1) text.erase(at, length);
    if (kind == 2) text.insert(at, text.substr(at, length));
    if (kind == 3) text.insert(at, std::string(length, "{}[]\",:\0e9"[prng.below(10)]));
  }
  return text;
}

}  // namespace

TEST_CASE("one connection carries many requests", "[serve][connection]") {
  Harness harness;
  Client client(harness.port());
  for (int i = 0; i < 5; ++i) {
    client.send(request_bytes("POST", "/v1/completions", R"({"prompt": "hello"})"));
    const auto answer = client.receive();
    CHECK(at(answer.body, "/choices/0/text") == "hello");
    CHECK(answer.header("Connection") == "keep-alive");
    client.send(request_bytes("POST", "/v1/completions", stream_body("abc")));
    CHECK(put_together(client.receive().body).content == "abc");
  }
}

TEST_CASE("pipelined requests are answered in order, however their bytes arrive",
          "[serve][connection]") {
  Harness harness;
  std::string bytes;
  for (int i = 0; i < 8; ++i) {
    bytes += request_bytes("POST", "/v1/completions",
                           i % 2 == 0 ? fmt::format(R"({{"prompt": "number {}"}})", i)
                                      : stream_body(fmt::format("number {}", i)));
    bytes += request_bytes("GET", i % 3 == 0 ? "/nothing" : "/version", "");
  }
  for (const size_t piece : {bytes.size(), size_t{1}, size_t{7}, size_t{100}}) {
    Client client(harness.port());
    for (size_t at = 0; at < bytes.size(); at += piece) client.send(bytes.substr(at, piece));
    for (int i = 0; i < 8; ++i) {
      const auto answer = client.receive();
      const auto text =
          i % 2 == 0 ? at(answer.body, "/choices/0/text") : put_together(answer.body).content;
      CHECK(text == fmt::format("number {}", i));
      CHECK(client.receive().status == (i % 3 == 0 ? 404 : 200));
    }
  }
}

TEST_CASE("answers of one id given twice do not cross", "[serve][connection]") {
  Harness harness;
  Client first(harness.port()), second(harness.port());
  const char* same = "x-request-id: same\r\n";
  first.send(request_bytes("POST", "/v1/completions", stream_body("first first"), same));
  second.send(request_bytes("POST", "/v1/completions", stream_body("second second"), same));
  const auto a = first.receive(), b = second.receive();
  CHECK(put_together(a.body).content == "first first");
  CHECK(put_together(b.body).content == "second second");
  CHECK(a.header("x-request-id") == "same");
  CHECK(b.header("x-request-id") == "same");
  CHECK(at(events(a.body)[0], "/id") != at(events(b.body)[0], "/id"));
}

TEST_CASE("what is not HTTP is refused and the connection closed", "[serve][connection]") {
  Harness harness;
  for (const char* bad :
       {"nonsense\r\n\r\n", "GET /health HTTP/9.9\r\n\r\n", "GET /hea lth HTTP/1.1\r\n\r\n",
        "GET /health HTTP/1.1\r\nbad header\r\n\r\n",
        "POST /tokenize HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n{}",
        "POST /tokenize HTTP/1.1\r\nContent-Length: -1\r\n\r\n{}",
        "POST /tokenize HTTP/1.1\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
        "POST /tokenize HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n{}",
        "POST /tokenize HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n"}) {
    INFO(bad);
    Client client(harness.port());
    client.send(bad);
    const auto answer = client.receive();
    CHECK(answer.status == 400);
    CHECK(at(answer.body, "/error/code") == "malformed_request");
    CHECK(answer.header("Connection") == "close");
    CHECK(client.at_end());
  }
  CHECK(harness.get("/health").status == 200);
}

TEST_CASE("chunked bodies, a 100-continue and HTTP/1.0 work", "[serve][connection]") {
  Harness harness;
  Client chunked(harness.port());
  chunked.send(
      "POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
      "5\r\n{\"pro\r\nf\r\nmpt\": \"chunky\"}\r\n0\r\n\r\n");
  CHECK(at(chunked.receive().body, "/choices/0/text") == "chunky");
  Client waiting(harness.port());
  const std::string body = R"({"prompt": "waited"})";
  waiting.send(
      fmt::format("POST /v1/completions HTTP/1.1\r\nExpect: 100-continue\r\n"
                  "Content-Length: {}\r\n\r\n",
                  body.size()));
  CHECK(waiting.receive_head() == "HTTP/1.1 100 Continue\r\n\r\n");
  waiting.send(body);
  CHECK(at(waiting.receive().body, "/choices/0/text") == "waited");
  Client old(harness.port());
  const auto stream = stream_body("old times");
  old.send(fmt::format("POST /v1/completions HTTP/1.0\r\nContent-Length: {}\r\n\r\n{}",
                       stream.size(), stream));
  const auto answer = old.receive();
  CHECK(answer.header("Transfer-Encoding").empty());
  CHECK(put_together(answer.body).content == "old times");
}

TEST_CASE("a client that goes away aborts its answers at once", "[serve][connection]") {
  Harness harness;
  harness.on([&] { harness.backend().paused = true; });
  const std::string bodies[] = {stream_body("abc"), R"({"prompt": "abc", "n": 3})"};
  for (const auto& body : bodies)
    for (const bool begun : {false, true}) {
      auto client = std::make_unique<Client>(harness.port());
      harness.on([&] { harness.backend().aborted.clear(); });
      client->send(request_bytes("POST", "/v1/completions", body));
      REQUIRE(harness.until([&] { return harness.backend().busy(); }));
      size_t running = 0;
      harness.on([&] {
        running = harness.backend().running().size();
        if (begun) harness.backend().step();
      });
      client.reset();
      // No event of the backend is needed to notice.
      CHECK(harness.until([&] { return harness.backend().aborted.size() == running; }));
      harness.on([&] { CHECK_FALSE(harness.backend().busy()); });
    }
  CHECK_THAT(harness.get("/metrics").body,
             Catch::Contains("kern_http_disconnects_total 4\n") &&
                 Catch::Contains("kern_http_answers_open 0\n") &&
                 Catch::Contains("vllm:request_success_total{model_name=\"tiny\","
                                 "finished_reason=\"abort\"} 8\n"));
}

TEST_CASE("a disconnect is noticed behind pipelined bytes", "[serve][connection]") {
  Harness harness;
  harness.on([&] { harness.backend().paused = true; });
  auto client = std::make_unique<Client>(harness.port());
  client->send(request_bytes("POST", "/v1/completions", stream_body("abc")) +
               request_bytes("GET", "/version", ""));
  REQUIRE(harness.until([&] { return harness.backend().busy(); }));
  client.reset();
  CHECK(harness.until([&] { return harness.backend().aborted.size() == 1; }));
}

TEST_CASE("a reader that does not read is cut after the cap", "[serve][connection]") {
  kern::serve::ServerOptions options;
  options.api.limits.stream_bytes_max = 20'000;
  Harness harness(std::move(options));
  harness.on([&] {
    harness.backend().info.max_model_len = 1'000'000;
    harness.backend().script = [](const Request&) { return std::vector<Token>(900'000, 'a'); };
  });
  Client client(harness.port(), 4096);
  client.send(request_bytes("POST", "/v1/completions",
                            R"({"prompt": "x", "stream": true, "max_tokens": 900000})"));
  REQUIRE(harness.until([&] { return harness.backend().aborted.size() == 1; }));
  harness.on([&] { CHECK_FALSE(harness.backend().busy()); });
  CHECK_THAT(harness.get("/metrics").body, Catch::Contains("kern_http_slow_readers_cut_total 1\n"));
}

TEST_CASE("a drain lets answers end, refuses new ones and then calls back", "[serve][connection]") {
  Harness harness;
  harness.on([&] { harness.backend().paused = true; });
  Client idle(harness.port()), busy(harness.port());
  idle.send(request_bytes("GET", "/health", ""));
  CHECK(idle.receive().status == 200);
  busy.send(request_bytes("POST", "/v1/completions", stream_body("last words")));
  REQUIRE(harness.until([&] { return harness.backend().busy(); }));
  bool done = false;
  const auto port = harness.port();
  harness.on([&] { harness.server().drain([&] { done = true; }); });
  CHECK_THROWS(Client(port));
  idle.send(request_bytes("POST", "/v1/completions", R"({"prompt": "x"})"));
  const auto refused = idle.receive();
  CHECK(refused.status == 503);
  CHECK(refused.header("Retry-After") == "1");
  CHECK(at(refused.body, "/error/code") == "not_ready");
  CHECK(refused.header("Connection") == "close");
  harness.on([&] {
    CHECK_FALSE(done);
    harness.backend().paused = false;
    harness.backend().wake();
  });
  CHECK(put_together(busy.receive().body).content == "last words");
  busy.close();
  idle.close();
  CHECK(harness.until([&] { return done; }));
}

TEST_CASE("a drain with nothing to do ends at once", "[serve][connection]") {
  Harness harness;
  Client idle(harness.port());
  idle.send(request_bytes("GET", "/health", ""));
  CHECK(idle.receive().status == 200);
  bool done = false;
  harness.on([&] { harness.server().drain([&] { done = true; }); });
  CHECK(harness.until([&] { return done; }));
}

TEST_CASE("stopping closes connections and aborts answers", "[serve][connection]") {
  Harness harness;
  harness.on([&] { harness.backend().paused = true; });
  Client client(harness.port());
  client.send(request_bytes("POST", "/v1/completions", stream_body("abc")));
  REQUIRE(harness.until([&] { return harness.backend().busy(); }));
  harness.on([&] { harness.server().stop(); });
  CHECK(client.at_end());
  harness.on([&] { CHECK(harness.backend().aborted.size() == 1); });
}

TEST_CASE("a port is free again as soon as its server is gone", "[serve][connection]") {
  uint16_t port = 0;
  for (int i = 0; i < 3; ++i) {
    kern::serve::ServerOptions options;
    options.port = port;
    Harness harness(std::move(options));
    port = harness.port();
    Client client(port);
    client.send(request_bytes("GET", "/health", ""));
    CHECK(client.receive().status == 200);
  }
}

TEST_CASE("altered bodies are answered or refused, never with a fault of ours",
          "[serve][connection][prop]") {
  Harness harness;
  Client client(harness.port());
  const std::string bodies[] = {
      R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "ü"}]},
          {"role": "assistant", "content": "x", "tool_calls": [{"id": "c", "type": "function",
          "function": {"name": "f", "arguments": "{\"a\": [1, 2.5e3]}"}}]},
          {"role": "tool", "tool_call_id": "c", "content": "12"}], "tools": [{"type": "function",
          "function": {"name": "f", "parameters": {"type": "object"}}}], "max_tokens": 8,
          "stop": ["a", "b"], "logprobs": true, "top_logprobs": 1, "reasoning_effort": "low"})",
      R"({"prompt": [[1, 2], [3]], "n": 2, "temperature": 0.5, "max_tokens": 4, "echo": true,
          "logprobs": 1, "stream_options": {"include_usage": true}, "seed": -9})"};
  const uint64_t seed = 20261129;
  kern::Prng prng(seed);
  int refused = 0;
  for (int i = 0; i < 1000; ++i) {
    const auto body = mutated(bodies[i % 2], prng);
    INFO("seed " << seed << ", round " << i << ": " << body);
    client.send(
        request_bytes("POST", i % 2 == 0 ? "/v1/chat/completions" : "/v1/completions", body));
    const auto answer = client.receive();
    CHECK((answer.status == 200 || answer.status == 400));
    CHECK(at(answer.body, "/id") != "(no JSON)");
    refused += answer.status == 400;
  }
  CHECK(refused > 300);
  CHECK(refused < 1000);
  harness.on([&] { CHECK_FALSE(harness.backend().busy()); });
}

TEST_CASE("altered requests leave the server well", "[serve][connection][prop]") {
  Harness harness;
  const std::string good =
      request_bytes("POST", "/v1/completions", R"({"prompt": "hello"})", "x-request-id: a\r\n") +
      "POST /tokenize HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n10\r\n{\"prompt\": "
      "\"abc\"\r\n1\r\n}\r\n0\r\n\r\n" +
      request_bytes("GET", "/v1/models", "");
  const uint64_t seed = 4711;
  kern::Prng prng(seed);
  for (int i = 0; i < 500; ++i) {
    INFO("seed " << seed << ", round " << i);
    Client client(harness.port());
    client.try_send(mutated(good, prng));
    client.close_sending();
    // Whatever was sent, the connection ends.
    while (!client.read_some().empty()) {
    }
  }
  CHECK(harness.get("/health").status == 200);
  CHECK(harness.until([&] { return !harness.backend().busy(); }));
}
