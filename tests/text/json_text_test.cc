#include "kern/text/json_text.h"

#include <catch2/catch.hpp>

using namespace kern::text;

TEST_CASE("canonical json sorts keys, drops blanks and keeps literals", "[text][json]") {
  CHECK(*canonical_json(
            R"( {"b" : [1.0, 2E+5, -0], "a": {"z": null, "y": true}, "ä": "\u00e9\n"} )") ==
        R"({"a":{"y":true,"z":null},"b":[1.0,2E+5,-0],"ä":"é\n"})");
  CHECK(*canonical_json(R"({"a": 1, "b": 2, "a": 3})") == R"({"a":3,"b":2})");
  CHECK(*canonical_json("12345678901234567890123") == "12345678901234567890123");
  CHECK(*canonical_json("\"\\u0001\\\"\\/\"") == "\"\\u0001\\\"/\"");
}

TEST_CASE("what is not one json value is refused", "[text][json]") {
  for (const char* bad :
       {"",           " ",        "{",    "]",       "[1 2]",      "[1,]", "{\"a\" 1}",
        "{\"a\":1,}", "{a:1}",    "01",   "1.",      "-",          "nul",  "nulll",
        "truee",      "1 2",      "[1]]", "[1] [2]", "{\"a\":1}}", "\"a",  "'a'",
        "\"\\x\"",    "NaN",      "+1",   ".5",      "1e",         "[1}",  "{\"a\":1]",
        "\"\n\"",     "\"\xFF\"", "1,2",  "],["}) {
    INFO(bad);
    CHECK_FALSE(is_json(bad));
  }
  for (const char* good :
       {"1", "-0.5e-3", "null", " true ", "\"\"", "[]", "{}", "[[[]],{}]", "[1,2]"}) {
    INFO(good);
    CHECK(is_json(good));
  }
}

TEST_CASE("json deeper than the limit is refused", "[text][json]") {
  CHECK(is_json(std::string(kJsonDepthMax, '[') + std::string(kJsonDepthMax, ']')));
  CHECK_FALSE(is_json(std::string(kJsonDepthMax + 1, '[') + std::string(kJsonDepthMax + 1, ']')));
  CHECK_FALSE(is_json(std::string(1'000'000, '[')));
}

TEST_CASE("a quoted string is json again, broken bytes replaced", "[text][json]") {
  CHECK(quote_json("a\"b\\c\n\t\x01é") == "\"a\\\"b\\\\c\\n\\t\\u0001é\"");
  CHECK(quote_json("\xFFx") == "\"\xEF\xBF\xBDx\"");
  CHECK(is_json(quote_json(std::string("\0\x1f\x7f", 3))));
}
