#include <catch2/catch.hpp>

#include "fixture.h"
#include "kern_test/golden.h"

using namespace kern::manifest;
using namespace kern_test;

namespace {

using Lines = std::vector<std::string>;

Lines said(std::string_view json) {
  const auto result = load(json);
  REQUIRE_FALSE(result);
  return lines_of(result.error());
}

std::optional<Axis> axis(const Manifest& m, std::string_view name) {
  for (const Var& var : m.vars)
    if (var.name == name) return var.axis;
  FAIL("no var " << name);
  return {};
}

}  // namespace

TEST_CASE("a version 5 manifest reads as its version 7 form", "[manifest][upgrade][golden]") {
  const std::string once = print(*verified(fixture("five")));
  expect_golden(KERN_TEST_DIR, "five.upgraded.json", once);
  CHECK(print(*verified(once)) == once);
}

TEST_CASE("a version 5 manifest's vars are told apart by what runs over them",
          "[manifest][upgrade]") {
  const Manifest m = parsed(fixture("five"));
  CHECK(m.schema_version == 7);
  CHECK(axis(m, "mine") == Axis::rows);
  CHECK(axis(m, "people") == Axis::groups);
  CHECK(axis(m, "everyone") == Axis::ranks);
  CHECK_FALSE(axis(m, "longest"));
}

TEST_CASE("a line table alone names the var of the group's rows", "[manifest][upgrade]") {
  const std::string mine = changed(fixture("five"), "\"shape\": [\"everyone\"], \"kind\"",
                                   "\"shape\": [\"mine\"], \"kind\"");
  CHECK(axis(parsed(mine), "everyone") == Axis::ranks);
  const std::string columns = changed(mine, "[3, \"everyone\"]", "[3, \"people\"]");
  CHECK_FALSE(axis(parsed(columns), "everyone"));
}

TEST_CASE("a version 5 manifest without slots or lengths names no axis", "[manifest][upgrade]") {
  for (const char* fill : {", \"fill\": \"slot\"", ", \"fill\": \"seq_len\""}) {
    INFO(fill);
    const Manifest m = parsed(changed(fixture("five"), fill, ""));
    for (const Var& var : m.vars) CHECK_FALSE(var.axis);
  }
}

TEST_CASE("vars of a version 5 manifest that cannot be told apart are refused",
          "[manifest][upgrade]") {
  const std::string base = fixture("five");
  CHECK(said(changed(base, "\"shape\": [\"mine\"]", "\"shape\": [\"people\"]")) ==
        Lines{"/vars/people: the inputs `slot` and `seq_len` both run over it; in schema_version 5 "
              "they tell rows from sequences"});
  CHECK(said(changed(base, "[3, \"everyone\"]", "[3, \"longest\"]")) ==
        Lines{"/vars/longest: `lines` runs over it, others over `everyone`; schema_version 5 has "
              "one var besides rows and sequences"});
}

TEST_CASE("version 5's spans are read, and refused with what version 7 lacks",
          "[manifest][upgrade]") {
  const std::string base = fixture("five");
  CHECK(said(changed(base, "\"groups\": 16, \"rows\": 1,",
                     "\"groups\": 16, \"rows\": 1, \"span\": \"everyone\",")) ==
        Lines{"/programs/decode/batch/span: schema_version 7 has no call in which one sequence has "
              "a run of rows and the others one each; take the program out"});
  CHECK(said(changed(base, "\"fill\": \"blocks\"", "\"fill\": \"span_at\"")) ==
        Lines{"/buffers/parts/fill: schema_version 7 has no spans, and nothing else would fill an "
              "input of `span_at`; take it out of the ops that look at it"});
  const std::string none =
      changed(base, "\"groups\": 16, \"rows\": 1,", "\"groups\": 16, \"rows\": 1, \"span\": null,");
  CHECK(print(*verified(none)) == print(*verified(base)));
  CHECK(said(changed(none, "\"schema_version\": 5", "\"schema_version\": 7")) ==
        Lines{"/programs/decode/batch/span: unknown key `span`; expected one of `groups`, `rows`, "
              "`context`"});
}

TEST_CASE("what version 7 brought is refused in version 5, and only there", "[manifest][upgrade]") {
  struct New {
    const char *from, *to, *pointer, *word;
  };
  static constexpr New kNew[] = {
      {"\"mine\": {\"max\": 16}", "\"mine\": {\"max\": 16, \"axis\": \"rows\"}", "/vars/mine/axis",
       "axis"},
      {"{\"bytes_per_seq\": 96}",
       "{\"bytes_per_seq\": 96, \"shard\": {\"group\": \"tp\", \"by\": \"heads\", \"segments\": "
       "[[3, 128]]}}",
       "/states/memory/shard", "shard"},
      {"{\"bytes_per_token\": 128}",
       "{\"host\": {\"dtype\": \"u8\", \"shape\": [0, 16, 128], \"strides\": [2048, 128, 1]}}",
       "/states/cache/host", "host"},
      {"\"pdl\": true", "\"when\": {\"var\": \"mine\", \"min\": 2}",
       "/ops/attend/impl/launches/0/when", "when"},
      {"\"graph\": true", "\"derive\": false", "/programs/decode/derive", "derive"},
      {"\"kind\": \"workspace\", \"export\": true", "\"kind\": \"inout\"", "/buffers/wide/kind",
       "inout"},
      {"\"kind\": \"weight\"", "\"kind\": \"source\"", "/buffers/embed/kind", "source"},
      {"\"model\": \"five\"",
       "\"model\": \"five\", \"cut\": {\"id\": \"a\", \"stage\": 0, \"stages\": 2}", "/cut", "cut"},
      {"\"model\": \"five\"", "\"model\": \"five\", \"uses\": [\"host\"]", "/uses", "uses"},
      {"\"model\": \"five\"", "\"model\": \"five\", \"device\": \"host\"", "/device", "device"},
      {"\"model\": \"five\"", "\"model\": \"five\", \"meta\": {}", "/meta", "meta"},
  };
  for (const New& one : kNew) {
    INFO(one.word);
    const std::string text = changed(fixture("five"), one.from, one.to);
    const Lines expected = {fmt::format("{}: `{}` came with schema_version 7; this manifest has 5",
                                        one.pointer, one.word)};
    CHECK(said(text) == expected);
    CHECK(parse(changed(text, "\"schema_version\": 5", "\"schema_version\": 7")));
  }
}
