#include <catch2/catch.hpp>
#include <set>

#include "harness.h"

using namespace kern_test;

namespace {

Request last_request(Harness& harness) {
  Request request;
  harness.on([&] { request = harness.backend().requests.back(); });
  return request;
}

}  // namespace

TEST_CASE("a completion has the shape of OpenAI's", "[serve][completions]") {
  Harness harness;
  const auto answer =
      harness.post("/v1/completions", R"({"model": "tiny", "prompt": "hello you"})");
  CHECK(answer.status == 200);
  CHECK(at(answer.body, "/id").starts_with("cmpl-"));
  CHECK(at(answer.body, "/object") == "text_completion");
  CHECK(at(answer.body, "/model") == "tiny");
  CHECK(at(answer.body, "/choices/0/text") == "hello you");
  CHECK(at(answer.body, "/choices/0/index") == "0");
  CHECK(at(answer.body, "/choices/0/logprobs") == "null");
  CHECK(at(answer.body, "/choices/0/finish_reason") == "stop");
  const auto prompt = ids("hello you").size();
  CHECK(at(answer.body, "/usage/prompt_tokens") == std::to_string(prompt));
  CHECK(at(answer.body, "/usage/completion_tokens") == std::to_string(prompt + 1));
  CHECK(at(answer.body, "/usage/total_tokens") == std::to_string(2 * prompt + 1));
  CHECK(at(answer.body, "/usage/prompt_tokens_details/cached_tokens") ==
        std::to_string(prompt / 2));
}

TEST_CASE("defaults are OpenAI's when a field is absent", "[serve][completions]") {
  Harness harness;
  harness.post("/v1/completions", R"({"prompt": "hello"})");
  const auto request = last_request(harness);
  CHECK(request.sampling.temperature == 1.0F);
  CHECK(request.sampling.top_p == 1.0F);
  CHECK(request.sampling.top_k == 0);
  CHECK(request.sampling.min_p == 0.0F);
  CHECK(request.max_tokens == 16);
  CHECK(request.top_logprobs == -1);
  CHECK(request.deadline == 0);
  CHECK(request.stop_tokens == std::vector<Token>{end_token()});
  const auto seed = request.sampling.seed;
  harness.post("/v1/completions", R"({"prompt": "hello"})");
  CHECK(last_request(harness).sampling.seed != seed);
}

TEST_CASE("every sampling field reaches the engine", "[serve][completions]") {
  Harness harness;
  const auto answer = harness.post("/v1/completions", R"({"prompt": "hello", "temperature": 0.5,
    "top_p": 0.9, "top_k": 7, "min_p": 0.1, "seed": -3, "max_tokens": 5, "logprobs": 2,
    "priority": -4, "timeout": 100, "ignore_eos": true, "stop_token_ids": [65],
    "repetition_penalty": 1.0, "user": "me", "unknown_field": {"x": [1]}})");
  CHECK(answer.status == 200);
  const auto request = last_request(harness);
  CHECK(request.sampling.temperature == 0.5F);
  CHECK(request.sampling.top_p == 0.9F);
  CHECK(request.sampling.top_k == 7);
  CHECK(request.sampling.min_p == 0.1F);
  CHECK(request.sampling.seed == static_cast<uint64_t>(-3));
  CHECK(request.max_tokens == 5);
  CHECK(request.top_logprobs == 2);
  CHECK(request.priority == -4);
  CHECK(request.deadline > 0);
  CHECK(request.stop_tokens == std::vector<Token>{65});
  harness.post("/v1/completions", R"({"prompt": "hello", "top_p": 0, "top_k": -1})");
  CHECK(last_request(harness).sampling.temperature == 0.0F);
  CHECK(last_request(harness).sampling.top_k == 0);
}

TEST_CASE("fields that are accepted and have no effect are named in a header",
          "[serve][completions]") {
  Harness harness;
  const auto answer = harness.post("/v1/completions",
                                   R"({"prompt": "hello", "presence_penalty": 0.5, "logprobs": null,
      "frequency_penalty": 0, "stream_options": {"include_usage": false, "new": 1}})");
  CHECK(answer.status == 200);
  CHECK(answer.header("x-ignored-fields") == "presence_penalty");
}

TEST_CASE("a list of prompts gives its answers in order", "[serve][completions]") {
  Harness harness;
  const auto texts = harness.post("/v1/completions", R"({"prompt": ["a", "bc", "d"], "n": 2})");
  const char* wanted[] = {"a", "a", "bc", "bc", "d", "d"};
  for (int i = 0; i < 6; ++i) {
    CHECK(at(texts.body, fmt::format("/choices/{}/text", i)) == wanted[i]);
    CHECK(at(texts.body, fmt::format("/choices/{}/index", i)) == std::to_string(i));
  }
  CHECK(at(texts.body, "/choices/6") == "(none)");
  CHECK(at(texts.body, "/usage/prompt_tokens") == "4");
  CHECK(at(texts.body, "/usage/completion_tokens") == "14");
  const auto one = harness.post("/v1/completions", R"({"prompt": [104, 105]})");
  CHECK(at(one.body, "/choices/0/text") == "hi");
  const auto lists = harness.post("/v1/completions", R"({"prompt": [[104], [105, 106]]})");
  CHECK(at(lists.body, "/choices/0/text") == "h");
  CHECK(at(lists.body, "/choices/1/text") == "ij");
}

TEST_CASE("answers of one prompt draw from unlike seeds, the first from the client's own",
          "[serve][completions]") {
  Harness harness;
  harness.post("/v1/completions", R"({"prompt": ["a", "b"], "n": 3, "seed": 9})");
  std::vector<uint64_t> seeds;
  harness.on([&] {
    for (const auto& request : harness.backend().requests) seeds.push_back(request.sampling.seed);
  });
  REQUIRE(seeds.size() == 6);
  CHECK(seeds[0] == 9);
  CHECK(std::set<uint64_t>(seeds.begin(), seeds.begin() + 3).size() == 3);
  CHECK(std::vector<uint64_t>(seeds.begin(), seeds.begin() + 3) ==
        std::vector<uint64_t>(seeds.begin() + 3, seeds.end()));
}

TEST_CASE("echo puts the prompt before the answer, also with no answer", "[serve][completions]") {
  Harness harness;
  const auto echo = harness.post("/v1/completions", R"({"prompt": "hello", "echo": true})");
  CHECK(at(echo.body, "/choices/0/text") == "hellohello");
  const auto alone =
      harness.post("/v1/completions", R"({"prompt": "hello", "echo": true, "max_tokens": 0})");
  CHECK(at(alone.body, "/choices/0/text") == "hello");
  CHECK(at(alone.body, "/choices/0/finish_reason") == "length");
  CHECK(at(alone.body, "/usage/completion_tokens") == "0");
  CHECK(harness.post("/v1/completions", R"({"prompt": "hello", "max_tokens": 0})").status == 400);
  const auto streamed = harness.post(
      "/v1/completions", R"({"prompt": "hello", "echo": true, "max_tokens": 0, "stream": true})");
  CHECK(put_together(streamed.body).content == "hello");
  CHECK(put_together(streamed.body).finish == "length");
}

TEST_CASE("logprobs of a completion stand beside its tokens", "[serve][completions]") {
  Harness harness;
  harness.on([&] { harness.backend().script = [](const Request&) { return ids("hello ü"); }; });
  const auto answer = harness.post("/v1/completions", R"({"prompt": "ab", "logprobs": 2,
    "echo": true})");
  const auto logprobs = [&](const char* pointer) {
    return at(answer.body, std::string("/choices/0/logprobs") + pointer);
  };
  CHECK(logprobs("/tokens") == R"(["a","b","hello"," ","bytes:\\xc3","bytes:\\xbc"])");
  CHECK(logprobs("/token_logprobs") == "[null,null,-0.5,-0.5,-0.5,-0.5]");
  CHECK(logprobs("/text_offset") == "[0,1,2,7,8,8]");
  CHECK(logprobs("/top_logprobs/0") == "null");
  CHECK(logprobs("/top_logprobs/2") == R"({"a":-0.25,"b":-0.5,"hello":-0.5})");
  CHECK(at(answer.body, "/choices/0/text") == "abhello ü");
}

TEST_CASE("a stop string ends the answer and the generation", "[serve][completions]") {
  Harness harness;
  harness.on([&] {
    harness.backend().script = [](const Request&) { return ids("one two stop three four five"); };
  });
  const auto answer = harness.post("/v1/completions",
                                   R"({"prompt": "x", "max_tokens": 64, "stop": ["stop", "zzz"]})");
  CHECK(at(answer.body, "/choices/0/text") == "one two ");
  CHECK(at(answer.body, "/choices/0/finish_reason") == "stop");
  CHECK(at(answer.body, "/usage/prompt_tokens_details/cached_tokens") == "3");
  CHECK(at(answer.body, "/usage/completion_tokens") == std::to_string(ids("one two stop").size()));
  std::vector<RequestId> aborted;
  harness.on([&] { aborted = harness.backend().aborted; });
  REQUIRE(aborted.size() == 1);
  CHECK(aborted[0] == last_request(harness).id);
  const auto one = harness.post("/v1/completions", R"({"prompt": "x", "stop": " t"})");
  CHECK(at(one.body, "/choices/0/text") == "one");
}

TEST_CASE("an abort that nobody confirms ends the answer all the same", "[serve][completions]") {
  kern::serve::ServerOptions options;
  options.api.abort_wait_ms = 50;
  Harness harness(std::move(options));
  harness.on([&] {
    harness.backend().silent_aborts = true;
    harness.backend().script = [](const Request&) { return ids("one two three"); };
  });
  const auto answer = harness.post("/v1/completions", R"({"prompt": "x", "stop": "two"})");
  CHECK(answer.status == 200);
  CHECK(at(answer.body, "/choices/0/text") == "one ");
}

TEST_CASE("an answer cut by max_tokens ends with length", "[serve][completions]") {
  Harness harness;
  const auto answer = harness.post("/v1/completions", R"({"prompt": "abcdef", "max_tokens": 3})");
  CHECK(at(answer.body, "/choices/0/text") == "abc");
  CHECK(at(answer.body, "/choices/0/finish_reason") == "length");
  CHECK(at(answer.body, "/usage/completion_tokens") == "3");
}

TEST_CASE("special tokens are left out unless a client wants them", "[serve][completions]") {
  Harness harness;
  harness.on([&] {
    harness.backend().script = [](const Request&) {
      auto tokens = ids("a");
      tokens.push_back(*tokenizer().find_special("[EOS]"));
      tokens.push_back('b');
      return tokens;
    };
  });
  CHECK(at(harness.post("/v1/completions", R"({"prompt": "x"})").body, "/choices/0/text") == "ab");
  CHECK(at(harness.post("/v1/completions", R"({"prompt": "x", "skip_special_tokens": false})").body,
           "/choices/0/text") == "a[EOS]b");
}
