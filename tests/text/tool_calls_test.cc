#include "kern/text/tool_calls.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "kern/base/prng.h"
#include "kern/text/chat.h"
#include "kern/text/json_text.h"
#include "kern/text/utf8.h"
#include "small.h"

using namespace kern::text;
using kern_test::small_tokenizer;

namespace {

/// `text` with markers spelled out, as the ids a model would write.
std::vector<TokenId> ids_of(std::string_view text) {
  const std::vector<Segment> segments = {{std::string(text), true}};
  return small_tokenizer().encode(segments);
}

Output read(std::string_view text, OutputStart start = OutputStart::think) {
  return read_output(small_tokenizer(), ids_of(text), start);
}

/// Pieces of text and markers through the grammar alone, every text cut in two at `cut` where it
/// can be.
Output parse_cut(std::span<const TokenId> ids, size_t cut, OutputStart start) {
  OutputParser parser(start);
  std::vector<OutputEvent> events;
  constexpr std::string_view kMarkers[] = {"<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"};
  size_t place = 0;
  for (const TokenId id : ids) {
    const std::string_view bytes = small_tokenizer().token_bytes(id);
    const auto* found = std::ranges::find(kMarkers, bytes);
    if (small_tokenizer().is_special(id) && found != std::end(kMarkers)) {
      parser.marker(static_cast<Marker>(found - std::begin(kMarkers)), events);
      continue;
    }
    const size_t at = cut >= place ? std::min(cut - place, bytes.size()) : bytes.size();
    parser.text(bytes.substr(0, at), events);
    parser.text(bytes.substr(at), events);
    place += bytes.size();
  }
  parser.finish(events);
  Output out;
  for (const OutputEvent& event : events) out.add(event);
  return out;
}

const std::string kWhole =
    "I think \U0001F914.<|close|>think<|sep|><|open|>response<|sep|>Grüße!<|close|>response<|sep|>"
    "<|open|>tools<|sep|><|open|>call tool=\"a &amp;&quot;b\" index=\"1\"<|sep|>"
    "<|open|>argument key=\"city\" type=\"string\"<|sep|>K\"öln\n<|close|>argument<|sep|>"
    "<|open|>argument key=\"n\" "
    "type=\"number\"<|sep|>1e2<|close|>argument<|sep|><|close|>call<|sep|>"
    "<|open|>call tool=\"g\" index=\"2\"<|sep|><|open|>json type=\"object\"<|sep|>{\"x\": [1]}"
    "<|close|>json<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>"
    "<|end_of_msg|>";
const Output kWholeOutput = {
    "I think \U0001F914.",
    "Grüße!",
    {{0, "a &\"b", R"({"city": "K\"öln\n", "n": 1e2})"}, {1, "g", R"({"x": [1]})"}}};

std::string call_with(std::string_view body) {
  return "<|open|>tools<|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|>" + std::string(body) +
         "<|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>";
}

std::string argument(std::string_view key, std::string_view type, std::string_view text) {
  return fmt::format("<|open|>argument key=\"{}\" type=\"{}\"<|sep|>{}<|close|>argument<|sep|>",
                     key, type, text);
}

std::string arguments_of(std::string_view body) {
  const Output out = read(call_with(body), OutputStart::outside);
  return out.calls.size() == 1 ? out.calls[0].arguments : "no call";
}

}  // namespace

TEST_CASE("reasoning, content and calls come out of a whole answer", "[text][output]") {
  CHECK(read(kWhole) == kWholeOutput);
}

TEST_CASE("an answer cut into deltas anywhere gives the same output", "[text][output][prop]") {
  const std::vector<TokenId> ids = ids_of(kWhole);
  for (size_t cut = 0; cut <= kWhole.size(); ++cut)
    REQUIRE(parse_cut(ids, cut, OutputStart::think) == kWholeOutput);
}

TEST_CASE("an answer that ends anywhere leaks no marker and keeps what it said",
          "[text][output][prop]") {
  const std::vector<TokenId> ids = ids_of(kWhole);
  for (size_t count = 0; count <= ids.size(); ++count) {
    const Output out =
        read_output(small_tokenizer(), std::span(ids).first(count), OutputStart::think);
    INFO("first " << count << " ids");
    for (const std::string& text : {out.reasoning, out.content}) {
      CHECK(text.find("<|") == std::string::npos);
      CHECK(is_utf8(text));
    }
    const bool cut_character = out.reasoning.ends_with("\uFFFD") || out.content.ends_with("\uFFFD");
    if (!cut_character) {
      CHECK(kWholeOutput.reasoning.starts_with(out.reasoning));
      CHECK(kWholeOutput.content.starts_with(out.content));
    }
    REQUIRE(out.calls.size() <= 2);
    CHECK(std::ranges::equal(out.calls, std::span(kWholeOutput.calls).first(out.calls.size())));
  }
}

TEST_CASE("streamed events are the same as the whole answer for ids of any kind",
          "[text][output][prop]") {
  kern::Prng prng(11);
  const std::vector<TokenId> pool = ids_of(kWhole);
  for (int round = 0; round < 400; ++round) {
    std::vector<TokenId> ids;
    for (size_t i = prng.below(60); i > 0; --i) {
      const bool known = prng.below(4) != 0;
      ids.push_back(known ? pool[prng.below(pool.size())]
                          : static_cast<TokenId>(prng.below(kern_test::kSmallBase + 258)));
    }
    for (const OutputStart start :
         {OutputStart::think, OutputStart::response, OutputStart::outside}) {
      OutputReader reader(small_tokenizer(), start);
      Output streamed;
      for (const TokenId id : ids) {
        for (const OutputEvent& event : reader.push(id)) streamed.add(event);
      }
      for (const OutputEvent& event : reader.finish()) streamed.add(event);
      REQUIRE(streamed == read_output(small_tokenizer(), ids, start));
      CHECK(reader.done());
      CHECK(is_utf8(streamed.reasoning));
      CHECK(is_utf8(streamed.content));
      for (const CalledTool& call : streamed.calls) CHECK_FALSE(call.name.empty());
    }
  }
}

TEST_CASE("a thought that is not closed ends at the next channel", "[text][output]") {
  CHECK(read("hmm<|open|>response<|sep|>yes<|close|>response<|sep|>") == Output{"hmm", "yes", {}});
  const Output called = read("hmm" + call_with(argument("k", "string", "v")));
  CHECK(called == Output{"hmm", "", {{0, "f", R"({"k": "v"})"}}});
}

TEST_CASE("a marker that lost its separator still counts", "[text][output]") {
  CHECK(read("a<|close|>think<|open|>response<|sep|>b<|close|>response") == Output{"a", "b", {}});
  CHECK(read("a<|close|>think<|sep|><|open|>response b<|close|>response<|sep|>") ==
        Output{"a", " b", {}});
  CHECK(read("a<|close|>think") == Output{"a", "", {}});
  CHECK(read("a<|close|>") == Output{"a", "", {}});
  CHECK(read("a<|close|>thi") == Output{"a", "", {}});
}

TEST_CASE("the closing of a message never leaks, and nothing behind the end is read",
          "[text][output]") {
  CHECK(read("yes<|close|>response<|sep|><|close|>message<|sep|>", OutputStart::response) ==
        Output{"", "yes", {}});
  CHECK(read("yes<|close|>message<|sep|>more<|end_of_msg|>and more", OutputStart::response) ==
        Output{"", "yes", {}});
  CHECK(read("yes<|end_of_msg|><|open|>response<|sep|>no", OutputStart::response) ==
        Output{"", "yes", {}});
}

TEST_CASE("an answer without a channel is content", "[text][output]") {
  CHECK(read(" \n yes ", OutputStart::outside) == Output{"", "yes ", {}});
  CHECK(read("a<|close|>think<|sep|>\n\nyes") == Output{"a", "yes", {}});
  CHECK(read("<|open|>think<|sep|>a<|close|>think<|sep|><|open|>response<|sep|>b",
             OutputStart::outside) == Output{"a", "b", {}});
}

TEST_CASE("values become json, and what is no json becomes a string", "[text][output]") {
  CHECK(arguments_of("") == "{}");
  CHECK(arguments_of(argument("a", "string", "12")) == R"({"a": "12"})");
  CHECK(arguments_of(argument("a", "number", "12") + argument("b", "boolean", "true") +
                     argument("c", "null", "null")) == R"({"a": 12, "b": true, "c": null})");
  CHECK(arguments_of(argument("a", "object", R"({"k":[1,{"z":0}]})")) ==
        R"({"a": {"k":[1,{"z":0}]}})");
  CHECK(arguments_of(argument("a", "number", "twelve")) == R"({"a": "twelve"})");
  CHECK(arguments_of(argument("a", "string", "")) == R"({"a": ""})");
  CHECK(arguments_of(argument("a", "number", "1") + argument("b", "number", "2") +
                     argument("a", "number", "3")) == R"({"a": 3, "b": 2})");
  CHECK(is_json(arguments_of(argument("q\"&quot;\\", "string", "\x01\n\""))));
  CHECK(arguments_of("<|open|>json type=\"object\"<|sep|>{broken<|close|>json<|sep|>") ==
        "{broken");
}

TEST_CASE("attributes are unescaped quote first", "[text][output]") {
  CHECK(arguments_of(argument("&amp;quot; &quot;", "string", "&amp;")) ==
        R"({"&quot; \"": "&amp;"})");
}

TEST_CASE("tags inside a value are the value's text", "[text][output]") {
  CHECK(
      arguments_of(argument("a", "string", "x<|open|>response<|sep|>y<|close|>response<|sep|>z")) ==
      R"({"a": "x<|open|>response<|sep|>y<|close|>response<|sep|>z"})");
  CHECK(arguments_of(argument("a", "string", "1<|sep|>2")) == R"({"a": "1<|sep|>2"})");
}

TEST_CASE("a call without its end or its name is dropped", "[text][output]") {
  const std::string open = "<|open|>tools<|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|>";
  CHECK(read(open + argument("a", "string", "x"), OutputStart::outside).calls.empty());
  CHECK(read(open + "<|end_of_msg|>", OutputStart::outside).calls.empty());
  CHECK(read("<|open|>tools<|sep|><|open|>call index=\"1\"<|sep|><|close|>call<|sep|>",
             OutputStart::outside)
            .calls.empty());
  CHECK(read(open + "<|open|>argument key=\"a\" type=\"string\"<|sep|>x<|close|>call<|sep|>",
             OutputStart::outside)
            .calls == std::vector<CalledTool>{{0, "f", R"({"a": "x"})"}});
}

TEST_CASE("only the first section of tools counts", "[text][output]") {
  const std::string twice = call_with("") + call_with("");
  CHECK(read(twice, OutputStart::outside).calls == std::vector<CalledTool>{{0, "f", "{}"}});
}

TEST_CASE("markers spelled in ordinary tokens are text", "[text][output]") {
  const std::vector<TokenId> ids = small_tokenizer().encode("<|close|>think<|sep|>");
  CHECK(read_output(small_tokenizer(), ids, OutputStart::think) ==
        Output{"<|close|>think<|sep|>", "", {}});
}

TEST_CASE("what the renderer writes for a past answer reads back", "[text][output][chat]") {
  const auto request = parse_chat_json(
      R"({"messages": [{"role": "assistant", "reasoning_content": "why", "content": "so",
          "tool_calls": [{"function": {"name": "f & \"g\"",
                                       "arguments": {"a": "x", "b": [1, 2.50]}}},
                         {"function": {"name": "h", "arguments": "{oops"}}]}],
          "add_generation_prompt": false, "thinking_effort": null})",
      k3::chat_style());
  REQUIRE(request);
  const auto segments = render_chat(*request, k3::chat_style());
  REQUIRE(segments);
  const Output out =
      read_output(small_tokenizer(), small_tokenizer().encode(*segments), OutputStart::outside);
  CHECK(out == Output{"why",
                      "so",
                      {{0, "f & \"g\"", R"({"a": "x", "b": [1, 2.50]})"}, {1, "h", "{oops"}}});
}
