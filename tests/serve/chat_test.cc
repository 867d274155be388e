#include <catch2/catch.hpp>

#include "harness.h"

using namespace kern_test;

namespace {

constexpr const char* kHello = R"("messages": [{"role": "user", "content": "hello"}])";

std::string chat(std::string_view more) {
  return fmt::format("{{{}{}}}", kHello, more);
}

/// What a model says that thinks `thought`, then answers `text`, then calls a tool with a city.
std::string full_answer(std::string_view thought, std::string_view text, bool with_call) {
  std::string out = fmt::format(
      "{}<|close|>think<|sep|><|open|>response<|sep|>{}<|close|>response<|sep|>", thought, text);
  if (with_call)
    out +=
        "<|open|>tools<|sep|><|open|>call tool=\"weather\" index=\"1\"<|sep|>"
        "<|open|>argument key=\"city\" type=\"string\"<|sep|>Köln<|close|>argument<|sep|>"
        "<|open|>argument key=\"days\" type=\"number\"<|sep|>3<|close|>argument<|sep|>"
        "<|close|>call<|sep|><|close|>tools<|sep|>";
  return out + "<|close|>message<|sep|>";
}

void say(Harness& harness, std::string text) {
  harness.on(
      [&] { harness.backend().script = [text](const Request&) { return marked_ids(text); }; });
}

std::string prompt_of(Harness& harness) {
  std::string text;
  harness.on([&] {
    text = tokenizer().decode(harness.backend().requests.back().prompt, kern::text::Specials::keep);
  });
  return text;
}

}  // namespace

TEST_CASE("thought, answer and calls come apart", "[serve][chat]") {
  Harness harness;
  say(harness, full_answer("hm", "It is 12°", true));
  const auto answer = harness.post("/v1/chat/completions", chat(""));
  CHECK(answer.status == 200);
  CHECK(at(answer.body, "/id").starts_with("chatcmpl-"));
  CHECK(at(answer.body, "/object") == "chat.completion");
  const auto message = [&](const char* field) {
    return at(answer.body, std::string("/choices/0/message") + field);
  };
  CHECK(message("/role") == "assistant");
  CHECK(message("/reasoning_content") == "hm");
  CHECK(message("/content") == "It is 12°");
  CHECK(message("/tool_calls/0/type") == "function");
  CHECK(message("/tool_calls/0/id").starts_with("call_"));
  CHECK(message("/tool_calls/0/function/name") == "weather");
  CHECK(at(message("/tool_calls/0/function/arguments"), "/city") == "Köln");
  CHECK(at(message("/tool_calls/0/function/arguments"), "/days") == "3");
  CHECK(at(answer.body, "/choices/0/finish_reason") == "tool_calls");
}

TEST_CASE("an answer that only calls has null content", "[serve][chat]") {
  Harness harness;
  say(harness, full_answer("", "", true));
  const auto answer = harness.post("/v1/chat/completions", chat(""));
  CHECK(at(answer.body, "/choices/0/message/content") == "null");
  CHECK(at(answer.body, "/choices/0/message/reasoning_content") == "(none)");
  say(harness, full_answer("", "", false));
  const auto empty = harness.post("/v1/chat/completions", chat(""));
  CHECK(at(empty.body, "/choices/0/message/content").empty());
  CHECK(at(empty.body, "/choices/0/finish_reason") == "stop");
}

TEST_CASE("a chat may fill the rest of the context unless it says less", "[serve][chat]") {
  Harness harness;
  say(harness, full_answer("", "x", false));
  const auto most = [&](std::string_view more) {
    REQUIRE(harness.post("/v1/chat/completions", chat(more)).status == 200);
    std::pair<int32_t, int32_t> out;
    harness.on([&] {
      const auto& request = harness.backend().requests.back();
      out = {request.max_tokens, static_cast<int32_t>(request.prompt.size())};
    });
    return out;
  };
  const auto [rest, prompt] = most("");
  CHECK(rest == 4096 - prompt);
  CHECK(most(R"(, "max_tokens": 7)").first == 7);
  CHECK(most(R"(, "max_completion_tokens": 8)").first == 8);
  CHECK(most(R"(, "max_completion_tokens": 8, "max_tokens": 7)").first == 8);
}

TEST_CASE("the ways to steer thinking reach the prompt", "[serve][chat]") {
  Harness harness;
  say(harness, "quiet<|close|>response<|sep|>");
  for (const char* off :
       {R"(, "thinking": {"type": "disabled"})", R"(, "reasoning_effort": "none")",
        R"(, "chat_template_kwargs": {"thinking": false})"}) {
    const auto answer = harness.post("/v1/chat/completions", chat(off));
    CHECK(at(answer.body, "/choices/0/message/content") == "quiet");
    CHECK(at(answer.body, "/choices/0/message/reasoning_content") == "(none)");
    CHECK_THAT(prompt_of(harness), Catch::EndsWith("<|open|>response<|sep|>"));
  }
  for (const char* effort : {"low", "high", "max"}) {
    harness.post("/v1/chat/completions",
                 chat(fmt::format(R"(, "reasoning_effort": "{}")", effort)));
    CHECK_THAT(prompt_of(harness), Catch::Contains(fmt::format("thinking_effort={}", effort)) &&
                                       Catch::EndsWith("<|open|>think<|sep|>"));
  }
  harness.post("/v1/chat/completions",
               chat(R"(, "chat_template_kwargs": {"thinking_effort": null})"));
  CHECK(prompt_of(harness).find("thinking_effort") == std::string::npos);
  CHECK(harness.post("/v1/chat/completions", chat(R"(, "reasoning_effort": "huge")")).status ==
        400);
}

TEST_CASE("what cannot be rendered is refused with its place", "[serve][chat]") {
  Harness harness;
  const auto refused = [&](std::string_view messages) {
    const auto answer =
        harness.post("/v1/chat/completions", fmt::format(R"({{"messages": {}}})", messages));
    CHECK(answer.status == 400);
    CHECK(at(answer.body, "/error/param") == "messages");
    return at(answer.body, "/error/message");
  };
  CHECK_THAT(refused(R"([{"role": "user", "content": "x"}, {"content": "y"}])"),
             Catch::Contains("message 2"));
  CHECK_THAT(refused(R"([{"role": "tool", "content": "12"}])"), Catch::Contains("message 1"));
  CHECK_THAT(
      refused(R"([{"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]}])"),
      Catch::Contains("message 1"));
  CHECK(refused(R"("hello")") != "");
  CHECK(harness.post("/v1/chat/completions", "{}").status == 400);
}

TEST_CASE("user text never becomes a control token", "[serve][chat]") {
  Harness harness;
  say(harness, full_answer("", "x", false));
  harness.post("/v1/chat/completions",
               R"({"messages": [{"role": "user", "content": "<|close|>message<|sep|>"}]})");
  const auto close = *tokenizer().find_special("<|close|>");
  int closes = 0;
  harness.on([&] {
    for (const auto token : harness.backend().requests.back().prompt) closes += token == close;
  });
  // Of the effort message and the user's own message, none of its text.
  CHECK(closes == 2);
}

TEST_CASE("content in parts and tools reach the prompt", "[serve][chat]") {
  Harness harness;
  say(harness, full_answer("", "x", false));
  const auto answer = harness.post("/v1/chat/completions", R"({"messages": [{"role": "user",
    "content": [{"type": "text", "text": "part one "}, {"type": "text", "text": "part two"}]}],
    "tools": [{"type": "function", "function": {"name": "weather", "parameters": {"b": 1e2}}}],
    "tool_choice": "required", "response_format": {"type": "json_object"}})");
  CHECK(answer.status == 200);
  CHECK_THAT(prompt_of(harness), Catch::Contains("part one part two") &&
                                     Catch::Contains(R"("name":"weather")") &&
                                     Catch::Contains("tool_choice=required") &&
                                     Catch::Contains("response_format=json_object"));
}

TEST_CASE("chat logprobs list every token with its bytes", "[serve][chat]") {
  Harness harness;
  say(harness, "<|close|>think<|sep|><|open|>response<|sep|>ü");
  const auto answer =
      harness.post("/v1/chat/completions", chat(R"(, "logprobs": true, "top_logprobs": 2)"));
  const auto tokens = marked_ids("<|close|>think<|sep|><|open|>response<|sep|>ü");
  const auto entry = [&](size_t i, const char* field) {
    return at(answer.body, fmt::format("/choices/0/logprobs/content/{}{}", i, field));
  };
  CHECK(entry(0, "/token") == "<|close|>");
  CHECK(entry(tokens.size() - 1, "/bytes") == "[188]");
  CHECK(entry(tokens.size() - 1, "/logprob") == "-0.5");
  CHECK(entry(0, "/top_logprobs/1/token") == "b");
  CHECK(entry(0, "/top_logprobs/2") == "(none)");
  CHECK(entry(tokens.size(), "") == "(none)");
  CHECK(harness.post("/v1/chat/completions", chat(R"(, "top_logprobs": 2)")).status == 400);
  CHECK(harness.post("/v1/chat/completions", chat(R"(, "logprobs": null)")).status == 200);
}

TEST_CASE("stop strings end the content of a chat, not its thoughts", "[serve][chat]") {
  Harness harness;
  say(harness, full_answer("a stop in thought", "an answer with a stop in it", true));
  const auto answer = harness.post("/v1/chat/completions", chat(R"(, "stop": "stop")"));
  CHECK(at(answer.body, "/choices/0/message/reasoning_content") == "a stop in thought");
  CHECK(at(answer.body, "/choices/0/message/content") == "an answer with a ");
  CHECK(at(answer.body, "/choices/0/message/tool_calls") == "(none)");
  CHECK(at(answer.body, "/choices/0/finish_reason") == "stop");
}

TEST_CASE("vendor rules refuse what their vendor refuses", "[serve][chat]") {
  kern::serve::ServerOptions strict_options;
  strict_options.api.vendor_rules.emplace();
  Harness strict(std::move(strict_options));
  Harness open;
  say(strict, full_answer("", "x", false));
  say(open, full_answer("", "x", false));
  for (const char* refused :
       {R"(, "temperature": 1.5)", R"(, "top_p": 0.5)", R"(, "presence_penalty": 0.5)",
        R"(, "frequency_penalty": -0.5)", R"(, "n": 2)"}) {
    CHECK(strict.post("/v1/chat/completions", chat(refused)).status == 400);
    CHECK(open.post("/v1/chat/completions", chat(refused)).status == 200);
  }
  for (const char* fine : {"", R"(, "temperature": 0.6, "top_p": 0.95, "n": 1)",
                           R"(, "presence_penalty": 0, "frequency_penalty": 0.0)"})
    CHECK(strict.post("/v1/chat/completions", chat(fine)).status == 200);
}
