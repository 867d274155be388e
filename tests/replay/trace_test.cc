#include "replay/trace.h"

#include <catch2/catch.hpp>
#include <string>

using namespace kern;
using namespace kern::replay;

namespace {

const std::string kGood = R"({"at_ms":5,"turns":[{"prompt":7,"answer":3}]})";

// What is said about a text that is no trace.
std::string refused(const std::string& text) {
  const auto trace = parse_trace(text);
  REQUIRE_FALSE(trace);
  CHECK(trace.error().kind == Kind::caller);
  return trace.error().text();
}

}  // namespace

TEST_CASE("a line is a session: when it begins, what it shares, its turns", "[replay][trace]") {
  const auto trace =
      parse_trace(R"({"at_ms":5,"shared":[{"name":"a \"b\"","tokens":64},{"name":"c","tokens":8}],)"
                  R"("turns":[{"prompt":7,"answer":3},{"think_ms":900,"prompt":1,"answer":2}]})"
                  "\n" +
                  kGood);
  REQUIRE(trace);
  REQUIRE(trace->size() == 2);
  CHECK((*trace)[0] == Session{5, {{"a \"b\"", 64}, {"c", 8}}, {{0, 7, 3}, {900, 1, 2}}});
  CHECK((*trace)[1] == Session{5, {}, {{0, 7, 3}}});
}

TEST_CASE("a session prints as a line that reads as the same session", "[replay][trace]") {
  const Session session{12, {{"quote \" back \\ tab \t", 3}, {"b", 4}}, {{0, 1, 2}, {5, 6, 7}}};
  const std::string line = print(session);
  CHECK(line ==
        "{\"at_ms\":12,\"shared\":[{\"name\":\"quote \\\" back \\\\ tab \\u0009\",\"tokens\":3},"
        "{\"name\":\"b\",\"tokens\":4}],\"turns\":[{\"think_ms\":0,\"prompt\":1,\"answer\":2},"
        "{\"think_ms\":5,\"prompt\":6,\"answer\":7}]}\n");
  const auto again = parse_trace(line);
  REQUIRE(again);
  CHECK(*again == Trace{session});
}

TEST_CASE("a malformed line is named with its number and what is wrong in it", "[replay][trace]") {
  const auto third = [](const std::string& line) {
    return refused(kGood + "\n" + kGood + "\n" + line + "\n");
  };
  CHECK(third("{").starts_with("line 3: expected one JSON object, got: "));
  CHECK(third("").starts_with("line 3: expected one JSON object, got: "));
  CHECK(third("[]") == "line 3: expected an object, got an array");
  CHECK(third(R"({"turns":[]})") == "line 3: `at_ms` is missing");
  CHECK(third(R"({"at_ms":0})") == "line 3: `turns` is missing");
  CHECK(third(R"({"at_ms":0,"turns":[]})") == "line 3: `turns`: expected at least one, got none");
  CHECK(third(R"({"at_ms":0,"at_ms":0,"turns":[]})") == "line 3: `at_ms` comes twice");
  CHECK(third(R"({"at_ms":0,"think":0,"turns":[]})") ==
        "line 3: unknown member `think`; known are at_ms, shared, turns");
  CHECK(third(R"({"at_ms":-1,"turns":[]})") ==
        "line 3: `at_ms`: expected a whole number from 0 to 10000000000, got -1");
  CHECK(third(R"({"at_ms":"0","turns":[]})") ==
        "line 3: `at_ms`: expected a whole number from 0 to 10000000000, got a string");
  CHECK(third(R"({"at_ms":0,"turns":{}})") == "line 3: `turns`: expected an array, got an object");
  CHECK(third(R"({"at_ms":0,"turns":[{"prompt":1,"answer":1},{"prompt":0,"answer":1}]})") ==
        "line 3: `turns`: item 2: `prompt`: expected a whole number from 1 to 16777216, got 0");
  CHECK(third(R"({"at_ms":0,"turns":[{"prompt":1}]})") ==
        "line 3: `turns`: item 1: `answer` is missing");
  CHECK(third(R"({"at_ms":0,"shared":[true],"turns":[]})") ==
        "line 3: `shared`: item 1: expected an object, got a boolean");
  CHECK(third(R"({"at_ms":0,"shared":[{"name":"","tokens":1}],"turns":[]})") ==
        "line 3: `shared`: item 1: `name`: expected a string that is not empty");
  CHECK(third(R"({"at_ms":0,"shared":[{"name":"a","tokens":null}],"turns":[]})") ==
        "line 3: `shared`: item 1: `tokens`: expected a whole number from 1 to 16777216, got null");
  CHECK(third(R"({"at_ms":0,"turns":[{"prompt":16777216,"answer":1}]})") ==
        "line 3: a session of 16777217 tokens, at most 16777216");
  CHECK(refused("") == "a trace has at least one line, got none");
}

TEST_CASE("a shared name stands for one length", "[replay][trace]") {
  const std::string a =
      R"({"at_ms":0,"shared":[{"name":"s","tokens":8}],"turns":[{"prompt":1,"answer":1}]})";
  const std::string b =
      R"({"at_ms":0,"shared":[{"name":"s","tokens":9}],"turns":[{"prompt":1,"answer":1}]})";
  CHECK(parse_trace(a + "\n" + a));
  CHECK(refused(a + "\n" + b) ==
        "line 2: `shared`: `s` has 9 tokens here and 8 in an earlier line");
}
