#include <algorithm>
#include <catch2/catch.hpp>

#include "harness.h"

using namespace kern_test;

namespace {

/// One token a byte.
std::vector<Token> bytes_of(std::string_view text) {
  std::vector<Token> out;
  for (const char byte : text) out.push_back(static_cast<unsigned char>(byte));
  return out;
}

bool is_ascii(std::string_view text) {
  return std::none_of(text.begin(), text.end(), [](char byte) { return byte < 0; });
}

std::string completion(std::string_view more, bool stream) {
  return fmt::format(R"({{"prompt": "x", "max_tokens": 200{}{}}})", more,
                     stream ? R"(, "stream": true)" : "");
}

}  // namespace

TEST_CASE("a chat stream has role, text, finish, usage and an end in this order",
          "[serve][streaming]") {
  Harness harness;
  harness.on([&] { harness.backend().script = [](const Request&) { return ids("hi"); }; });
  const auto answer = harness.post("/v1/chat/completions", R"({"stream": true,
    "thinking": {"type": "disabled"}, "messages": [{"role": "user", "content": "hello"}],
    "stream_options": {"include_usage": true}})");
  CHECK(answer.status == 200);
  CHECK(answer.header("Content-Type").starts_with("text/event-stream"));
  const auto list = events(answer.body);
  REQUIRE(list.size() == 6);
  CHECK(at(list[0], "/object") == "chat.completion.chunk");
  CHECK(at(list[0], "/choices/0/delta") == R"({"role":"assistant","content":""})");
  CHECK(at(list[0], "/usage") == "null");
  CHECK(at(list[1], "/choices/0/delta") == R"({"content":"h"})");
  CHECK(at(list[1], "/choices/0/finish_reason") == "null");
  CHECK(at(list[2], "/choices/0/delta") == R"({"content":"i"})");
  CHECK(at(list[3], "/choices/0/delta") == "{}");
  CHECK(at(list[3], "/choices/0/finish_reason") == "stop");
  CHECK(at(list[4], "/choices") == "[]");
  CHECK(at(list[4], "/usage/completion_tokens") == "3");
  CHECK(list[5] == "[DONE]");
  for (const auto& event : list)
    if (event != "[DONE]") CHECK(at(event, "/id") == at(list[0], "/id"));
}

TEST_CASE("without include_usage no event speaks of usage", "[serve][streaming]") {
  Harness harness;
  const auto answer = harness.post("/v1/completions", completion("", true));
  CHECK(answer.body.find("usage") == std::string::npos);
  CHECK(put_together(answer.body).done);
}

TEST_CASE("half a character never leaves, however tokens cut it", "[serve][streaming]") {
  Harness harness;
  const std::string text = "aü→😀é漢字";
  harness.on([&] { harness.backend().script = [&](const Request&) { return bytes_of(text); }; });
  const auto streamed = put_together(harness.post("/v1/completions", completion("", true)).body);
  CHECK(streamed.content == text);
  CHECK(streamed.whole_characters);
}

TEST_CASE("a character cut by max_tokens comes out replaced, streamed or not",
          "[serve][streaming]") {
  Harness harness;
  harness.on([&] { harness.backend().script = [](const Request&) { return bytes_of("a😀"); }; });
  for (int most = 1; most <= 5; ++most) {
    const auto more = fmt::format(R"(, "max_tokens": {})", most);
    const auto body = fmt::format(R"({{"prompt": "x"{}}})", more);
    const auto stream = fmt::format(R"({{"prompt": "x", "stream": true{}}})", more);
    const auto whole = at(harness.post("/v1/completions", body).body, "/choices/0/text");
    CHECK(put_together(harness.post("/v1/completions", stream).body).content == whole);
    CHECK(whole == (most == 1 ? "a" : most == 5 ? "a😀" : "a\xEF\xBF\xBD"));
  }
}

TEST_CASE("streamed answers equal whole ones for every stop string and every split",
          "[serve][streaming]") {
  Harness harness;
  const std::string text = "ab→stop st→sto stopping ab→";
  size_t cut = 0, width = 1;
  // Bytes one by one, but for a piece in merged tokens where the vocabulary has them.
  harness.on([&] {
    harness.backend().script = [&](const Request&) {
      auto tokens = bytes_of(text.substr(0, cut));
      const auto piece = text.substr(cut, width);
      for (const auto token : is_ascii(piece) ? ids(piece) : bytes_of(piece))
        tokens.push_back(token);
      for (const auto token : bytes_of(text.substr(std::min(cut + width, text.size()))))
        tokens.push_back(token);
      return tokens;
    };
  });
  for (const char* stop : {"stop", "→s", "st→sto s", "p", "ab→\", \"stopp", "none", "b→stop st"}) {
    const auto more = fmt::format(R"(, "stop": ["{}"])", stop);
    std::string first;
    for (cut = 0; cut + 2 < text.size(); cut += 2) {
      for (width = 1; width <= 4; width += 3) {
        const auto whole = harness.post("/v1/completions", completion(more, false)).body;
        const auto streamed =
            put_together(harness.post("/v1/completions", completion(more, true)).body);
        const auto content = at(whole, "/choices/0/text");
        CHECK(streamed.content == content);
        CHECK(streamed.finish == at(whole, "/choices/0/finish_reason"));
        CHECK(streamed.whole_characters);
        if (first.empty()) first = content + "|";
        CHECK(content + "|" == first);
      }
    }
  }
}

TEST_CASE("thoughts, text and calls of a stream join to those of a whole answer",
          "[serve][streaming]") {
  Harness harness;
  const std::string said =
      "think ü<|close|>think<|sep|><|open|>response<|sep|>It ☀ is<|close|>response<|sep|>"
      "<|open|>tools<|sep|><|open|>call tool=\"w\" index=\"1\"<|sep|>"
      "<|open|>argument key=\"c\" type=\"string\"<|sep|>K\\\"ö<|close|>argument<|sep|>"
      "<|close|>call<|sep|><|open|>call tool=\"v\" index=\"2\"<|sep|><|close|>call<|sep|>"
      "<|close|>tools<|sep|><|close|>message<|sep|>";
  const auto all = marked_ids(said).size();
  harness.on([&] { harness.backend().script = [&](const Request&) { return marked_ids(said); }; });
  for (size_t most = 1; most <= all + 1; most += most < 40 ? 1 : 7) {
    const auto body = fmt::format(
        R"({{"messages": [{{"role": "user", "content": "q"}}], "max_tokens": {})", most);
    const auto whole = harness.post("/v1/chat/completions", body + "}").body;
    const auto streamed =
        put_together(harness.post("/v1/chat/completions", body + R"(, "stream": true})").body);
    const auto message = [&](const std::string& field) {
      const auto text = at(whole, "/choices/0/message/" + field);
      return text == "(none)" || text == "null" ? std::string() : text;
    };
    CHECK(streamed.content == message("content"));
    CHECK(streamed.reasoning == message("reasoning_content"));
    CHECK(streamed.finish == at(whole, "/choices/0/finish_reason"));
    std::vector<std::string> calls;
    for (int i = 0; !message(fmt::format("tool_calls/{}", i)).empty(); ++i)
      calls.push_back(message(fmt::format("tool_calls/{}/function/name", i)) + "(" +
                      message(fmt::format("tool_calls/{}/function/arguments", i)) + ")");
    CHECK(streamed.calls == calls);
    if (most == all + 1) CHECK(calls.size() == 2);
  }
}

TEST_CASE("the choices of a stream keep apart", "[serve][streaming]") {
  Harness harness;
  const auto answer =
      harness.post("/v1/completions",
                   R"({"prompt": ["abc", "hello wo"], "n": 2, "stream": true, "echo": true})");
  for (int i = 0; i < 4; ++i) {
    const auto streamed = put_together(answer.body, i);
    CHECK(streamed.content == (i < 2 ? "abcabc" : "hello wohello wo"));
    CHECK(streamed.finish == "stop");
  }
}

TEST_CASE("logprobs of a stream join to those of a whole answer", "[serve][streaming]") {
  Harness harness;
  harness.on(
      [&] { harness.backend().script = [](const Request&) { return ids("hello stü st"); }; });
  const std::string more = R"(, "logprobs": 1, "stop": ["stop"])";
  const auto whole = harness.post("/v1/completions", completion(more, false)).body;
  std::string tokens, offsets;
  for (const auto& event : events(harness.post("/v1/completions", completion(more, true)).body))
    for (int i = 0; at(event, fmt::format("/choices/0/logprobs/tokens/{}", i)) != "(none)" &&
                    event != "[DONE]";
         ++i) {
      const auto token = at(event, fmt::format("/choices/0/logprobs/tokens/{}", i));
      if (token == "(no JSON)") break;
      tokens += token + ",";
      offsets += at(event, fmt::format("/choices/0/logprobs/text_offset/{}", i)) + ",";
    }
  std::string wanted_tokens, wanted_offsets;
  for (int i = 0; at(whole, fmt::format("/choices/0/logprobs/tokens/{}", i)) != "(none)"; ++i) {
    wanted_tokens += at(whole, fmt::format("/choices/0/logprobs/tokens/{}", i)) + ",";
    wanted_offsets += at(whole, fmt::format("/choices/0/logprobs/text_offset/{}", i)) + ",";
  }
  CHECK(tokens == wanted_tokens);
  CHECK(offsets == wanted_offsets);
  CHECK(wanted_tokens.starts_with("hello, ,"));
}

TEST_CASE("a failure before the stream began has its own status, later it is an event",
          "[serve][streaming]") {
  using kern::engine::FailureKind;
  Harness harness;
  harness.on([&] { harness.backend().paused = true; });
  const auto running = [&] {
    REQUIRE(harness.until([&] { return harness.backend().running().size() == 1; }));
    RequestId id;
    harness.on([&] { id = harness.backend().running()[0]; });
    return id;
  };
  const std::pair<FailureKind, int> kinds[] = {{FailureKind::too_long, 400},
                                               {FailureKind::queue_full, 429},
                                               {FailureKind::unavailable, 503},
                                               {FailureKind::deadline, 503},
                                               {FailureKind::internal, 500}};
  for (const auto& [kind, status] : kinds) {
    const std::string said =
        kind == FailureKind::too_long ? "maximum context length is 96 tokens" : "row 3 went wrong";
    Client client(harness.port());
    client.send(request_bytes("POST", "/v1/completions", completion("", true)));
    const auto id = running();
    harness.on([&] { harness.backend().fail(id, kind, said); });
    const auto answer = client.receive();
    CHECK(answer.status == status);
    CHECK_THAT(at(answer.body, "/error/message"), Catch::Contains(said));
    CHECK(answer.header("Retry-After") == (status == 429 || status == 503 ? "1" : ""));
    CHECK(answer.header("Content-Type") == "application/json");
    if (kind == FailureKind::too_long) CHECK(at(answer.body, "/error/message") == "the " + said);
  }
  Client client(harness.port());
  client.send(request_bytes("POST", "/v1/completions", completion("", true)));
  const auto id = running();
  harness.on([&] { harness.backend().step(); });
  client.read_until("\"text\":\"x\"");
  harness.on([&] { harness.backend().fail(id, FailureKind::unavailable, "group 1 was lost"); });
  const auto list = events(client.receive().body);
  CHECK(at(list.back(), "/error/message") == "group 1 was lost");
  CHECK(at(list.back(), "/error/type") == "service_unavailable");
  CHECK(client.at_end());
}

TEST_CASE("one failing answer ends its whole request and aborts the others", "[serve][streaming]") {
  Harness harness;
  harness.on([&] { harness.backend().paused = true; });
  Client client(harness.port());
  client.send(request_bytes("POST", "/v1/completions", R"({"prompt": "x", "n": 3})"));
  REQUIRE(harness.until([&] { return harness.backend().running().size() == 3; }));
  harness.on([&] {
    harness.backend().fail(harness.backend().running()[1], kern::engine::FailureKind::internal,
                           "NaN");
  });
  CHECK(client.receive().status == 500);
  harness.on([&] {
    CHECK(harness.backend().aborted.size() == 3);
    CHECK_FALSE(harness.backend().busy());
  });
}
