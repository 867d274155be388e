#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "fixture.h"
#include "kern/base/prng.h"

using namespace kern::manifest;
using namespace kern_test;

namespace {

std::string said(std::string_view json) {
  const auto result = parse(json);
  REQUIRE_FALSE(result);
  return to_text(result.error());
}

}  // namespace

TEST_CASE("what is not JSON is refused with the line where it breaks", "[manifest][parse]") {
  CHECK(said("{\n  \"model\": \"a\"\n  \"vars\": {}\n}").find("(line 3)") != std::string::npos);
  CHECK(said("").find("not JSON") != std::string::npos);
  CHECK(said("{\"model\": \"a\"} x").find("not JSON") != std::string::npos);
  CHECK(said("[1, 2").find("not JSON") != std::string::npos);
  CHECK(said("{\n\"model\": 1e400}") ==
        "/: not JSON: Problem while parsing a number: `1e400` (line 2)\n");
  CHECK(said("{\"model\":\n\"\\ud800\"}") ==
        "/: not JSON: Problem while parsing a string: `\"\\ud800\"` (line 2)\n");
  CHECK(said("1e999" + std::string(50, '9')) ==
        "/: not JSON: Problem while parsing a number: `1e999" + std::string(35, '9') +
            "…` (line 1)\n");
}

TEST_CASE("an integer that no 64 bits hold is a number, in its place", "[manifest][parse]") {
  for (const char* value :
       {"18446744073709551616", "-9223372036854775809", "340282366920938463463374607431768211456"})
    CHECK_THAT(
        said(fmt::format("{{\"schema_version\": {}}}", value)),
        Catch::StartsWith("/schema_version: expected an integer from 0 to 4294967295, got "));
  CHECK(said("{\"schema_version\": 7, \"model\": 1" + std::string(30, '0') + "}")
            .starts_with("/model: expected a string, got a number (line 1)\n"));
  CHECK_THAT(said("[1" + std::string(400, '0') + "]"), Catch::Contains("not JSON"));  // no double
}

TEST_CASE("every part of a text is JSON or is refused as none, whoever walks by it",
          "[manifest][parse]") {
  static constexpr const char* kSound[] = {"0",
                                           "-0",
                                           "-1.5e-3",
                                           "1E5",
                                           "18446744073709551615",
                                           "100000000000000000000",
                                           "-18446744073709551616",
                                           "true",
                                           "false",
                                           "null",
                                           "\"\"",
                                           "[]",
                                           "{}",
                                           "[[], {}, [1 , 2]]",
                                           R"("\u00e9 \ud83d\ude00 \\ \" \/ \n")",
                                           "{\"a\": 1, \"a\": [2]}",
                                           "\t[\r\n1 ]"};
  static constexpr const char* kBroken[] = {"01",
                                            "1.",
                                            ".5",
                                            "+1",
                                            "-",
                                            "1e",
                                            "1e400",
                                            "0x1",
                                            "1 2",
                                            "12\"a\"",
                                            "tru",
                                            "truee",
                                            "True",
                                            "nul",
                                            "falsey",
                                            "NaN",
                                            "[1 2]",
                                            "[1,]",
                                            "[,1]",
                                            "[1",
                                            "1]",
                                            "[1}",
                                            "{\"a\" 1}",
                                            "{\"a\": }",
                                            "{\"a\": 1,}",
                                            "{a: 1}",
                                            "{1: 1}",
                                            "{\"a\": 1 \"b\": 2}",
                                            "{\"a\"}",
                                            "{,}",
                                            "\"a\"b",
                                            "\"a\"\"b\"",
                                            R"("\x")",
                                            R"("\u12")",
                                            R"("\ud800")",
                                            R"("\ud800\u0061")",
                                            "\"\x01\"",
                                            "\"\n\"",
                                            "\"\xff\"",
                                            "\"\xc3\"",
                                            "\"\xed\xa0\x80\"",
                                            "",
                                            "}",
                                            "]",
                                            ":",
                                            ",",
                                            "'a'",
                                            "// a"};
  // beside a key that is known, below one that is not, and where a value of another type is wanted
  for (const std::string around :
       {"{\"schema_version\": 7, \"zz\": @}", "{\"zz\": [{\"a\": [@]}], \"schema_version\": 7}",
        "{\"schema_version\": 7, \"vars\": @}", "{\"buffers\": {\"w\": {\"bind\": [@]}}}"}) {
    const size_t at = around.find('@');
    const auto with = [&](std::string_view value) {
      return said(std::string(around).replace(at, 1, value)).find("not JSON") == std::string::npos;
    };
    for (const char* value : kSound) {
      INFO(around << " with " << value);
      CHECK(with(value));
    }
    for (const char* value : kBroken) {
      if (*value == '\0' && around[at - 1] == '[') continue;  // an empty list is one
      INFO(around << " with " << value);
      CHECK_FALSE(with(value));
    }
  }
}

TEST_CASE("nesting beyond any use is refused, not followed", "[manifest][parse]") {
  std::string deep(100000, '[');
  CHECK(said(deep).find("not JSON") != std::string::npos);
  deep += std::string(100000, ']');
  CHECK(said(deep).find("not JSON") != std::string::npos);
}

TEST_CASE("a value that is no object is refused", "[manifest][parse]") {
  CHECK(said("[]") == "/: expected an object, got a list\n");
  CHECK(said("7") == "/: expected an object, got a number\n");
}

TEST_CASE("a problem names its line", "[manifest][parse]") {
  const auto result =
      parse(changed(fixture("base"), "\"seqs\": {\"max\": 4", "\"seqs\": {\"max\": -4"));
  REQUIRE_FALSE(result);
  REQUIRE(result.error().size() == 1);
  CHECK(result.error()[0].pointer == "/vars/seqs/max");
  CHECK(result.error()[0].sentence ==
        "expected an integer from 0 to 9223372036854775807, got -4 (line 9)");
}

TEST_CASE("a name that stands twice is reported at the second", "[manifest][parse]") {
  CHECK(said("{\"schema_version\": 7,\n\"model\": \"a\",\n\"model\": \"b\",\n\"buffers\": {}, "
             "\"modules\": {}, \"ops\": {}, \"programs\": {}}") ==
        "/model: `model` stands twice (line 3)\n");
}

TEST_CASE("a name with a slash or a tilde is escaped in the pointer", "[manifest][parse]") {
  const auto result = load(changed(fixture("base"), "\"step\": {\"bytes\": 8}",
                                   "\"step\": {\"bytes\": 8}, \"a/b~c\": {\"bytes\": 0}"));
  REQUIRE_FALSE(result);
  CHECK(result.error()[0].pointer == "/states/a~1b~0c");
}

TEST_CASE("a constant stands for its number wherever a number stands", "[manifest][parse]") {
  const Manifest m = parsed(changed(
      changed(
          changed(fixture("base"), "\"step\": {\"bytes\": 8}", "\"step\": {\"bytes\": \"WIDE\"}"),
          "{\"f32\": 0.25}", "{\"f32\": \"HALF\"}"),
      "\"domain\": {\"min\": 0, \"max\": 99}", "\"domain\": {\"min\": 0, \"max\": \"WIDE\"}"));
  CHECK(m.states[2].bytes == 32);
  CHECK((m.buffers[0].domain->max == Bound(int64_t{32})));
  CHECK((m.buffers[9].shape == std::vector<Dim>{Dim::of(100), Dim::of(32)}));
  const auto& literal = std::get<Literal>(m.programs[0].calls[6].args[7]);
  CHECK(literal.real == 0.5);
}

TEST_CASE("null leaves an optional key out", "[manifest][parse]") {
  const Manifest m = parsed(changed(fixture("base"), "\"step\": {\"bytes\": 8}",
                                    "\"step\": {\"bytes\": 8, \"shard\": null, \"host\": null}"));
  CHECK_FALSE(m.states[2].shard.has_value());
}

TEST_CASE("a tensormap of one dim needs no strides", "[manifest][parse]") {
  const std::string flat =
      changed(fixture("base"), "\"dims\": [32, 20], \"strides\": [64], \"box\": [32, 4]",
              "\"dims\": [32], \"box\": [32]");
  const std::string canonical = print(*verified(flat));
  CHECK(canonical.find("\"dims\": [32], \"strides\": [], \"box\": [32]") != std::string::npos);
  CHECK(print(*verified(canonical)) == canonical);
}

TEST_CASE("a launch without args takes the op's params in order", "[manifest][parse]") {
  const Manifest m = parsed(fixture("base"));
  CHECK_FALSE(m.ops[0].launches[0].args.has_value());
  CHECK(m.ops[0].launches[0].when->min == 2);
  CHECK_FALSE(m.ops[0].launches[0].when->max);
}

TEST_CASE("a parameter type is read and written in one form", "[manifest][parse]") {
  for (const char* text : {"i32", "i64", "f32", "u8", "in buffer<bf16>", "out buffer<fp8e8m0>",
                           "inout state", "bytes<128>"}) {
    const auto type = parse_param_type(text);
    INFO(text);
    REQUIRE(type);
    CHECK(to_string(*type) == text);
  }
  for (const char* text : {"", "i16", "buffer<bf16>", "in  buffer<bf16>", "in buffer<bf17>",
                           "in buffer<bf16", "bytes<0>", "bytes<08>", "bytes<-1>", "bytes<>",
                           "bytes<99999999999999999999>", "state", "in buffer<>"}) {
    INFO(text);
    CHECK_FALSE(parse_param_type(text));
  }
}

TEST_CASE("a damaged manifest is refused in words or read whole, never followed into a crash",
          "[manifest][parse][prop]") {
  static constexpr std::string_view kPieces[] = {
      "0",          "-1",  "\"\"", "[]", "{}", "null", "1e400", "9223372036854775807",
      "\"tokens\"", "0.5", ","};
  const std::string base = fixture("base");
  int refused = 0;
  for (uint64_t i = 0; i < 3000; ++i) {
    INFO("step " << i);
    kern::Prng random(i);
    std::string text = base;
    for (uint64_t n = 1 + random.below(2); n > 0; --n) {
      const size_t at = random.below(text.size());
      switch (random.below(4)) {
        case 0:
          text[at] = static_cast<char>(random.below(256));
          break;
        case 1:
          text.erase(at, 1 + random.below(20));
          break;
        case 2:
          text.insert(at, kPieces[random.below(std::size(kPieces))]);
          break;
        default: {
          // a whole value becomes another one
          const size_t from = text.find(": ", at);
          if (from == std::string::npos) break;
          const size_t to = text.find_first_of(",}]", from);
          text.replace(from + 2, to - from - 2, kPieces[random.below(std::size(kPieces))]);
        }
      }
    }
    const auto result = load(text);
    if (result) {
      CHECK(print(parsed(print(**result))) == print(**result));
      continue;
    }
    ++refused;
    REQUIRE_FALSE(result.error().empty());
    for (const Diagnostic& d : result.error()) CHECK_FALSE(d.sentence.empty());
  }
  CHECK(refused > 2000);
  CHECK(refused < 3000);
}
