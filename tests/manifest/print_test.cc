#include <catch2/catch.hpp>

#include "fixture.h"
#include "kern_test/golden.h"

using namespace kern::manifest;
using namespace kern_test;

TEST_CASE("printing what was parsed is canonical", "[manifest][print][golden]") {
  expect_golden(KERN_TEST_DIR, "base.canonical.json", print(parsed(fixture("base"))));
}

TEST_CASE("parsing what was printed gives the same manifest again", "[manifest][print]") {
  for (const char* name : {"base", "pipe", "series"}) {
    const std::string once = print(parsed(fixture(name)));
    const std::string twice = print(parsed(once));
    CHECK(once == twice);
    CHECK(load(once));
  }
}

TEST_CASE("numbers, quotes and control characters survive printing", "[manifest][print]") {
  Manifest m = parsed(fixture("base"));
  m.model = "a \"b\" \\ \n\t\x01 é";
  m.constants = {{"TENTH", 0.1}, {"BIG", 1e300}, {"NEGATIVE", -3}, {"WHOLE", 1048576}};
  m.buffers[0].domain->min = Bound(int64_t{-7});
  m.buffers[6].domain->max = Bound(2.0);
  const Manifest again = parsed(print(m));
  CHECK(again.model == m.model);
  REQUIRE(again.constants.size() == 4);
  CHECK(again.constants[0].value == 0.1);
  CHECK(again.constants[1].value == 1e300);
  CHECK(again.constants[2].value == -3);
  CHECK((again.buffers[0].domain->min == Bound(int64_t{-7})));
  CHECK((again.buffers[6].domain->max == Bound(2.0)));
}

TEST_CASE("a manifest built by hand prints and verifies", "[manifest][print]") {
  Manifest m;
  m.model = "by hand";
  m.vars = {{"n", 8, Axis::rows}};
  m.buffers = {{"in", Dtype::i32, {Dim::of_var("n")}, BufferKind::input, Fill::token},
               {"out", Dtype::i32, {Dim::of_var("n")}, BufferKind::output}};
  m.modules = {{"m", "m.cubin", std::string(64, 'a')}};
  Launch launch;
  launch.module = "m";
  launch.entry = "copy";
  launch.block = {32, 1, 1};
  launch.grid = {Expr::ceil_div(Expr::add(Expr::of_var("n"), Expr::constant(3)), 4),
                 Expr::constant(1), Expr::constant(1)};
  m.ops = {{"copy",
            {ParamType::buffer(Direction::in, Dtype::i32),
             ParamType::buffer(Direction::out, Dtype::i32)},
            {},
            {launch}}};
  m.programs = {{"run", {{"copy", {BufferArg{"in"}, BufferArg{"out"}}, ""}}, {}}};
  const std::string text = print(m);
  CHECK(print(parsed(text)) == text);
  CHECK(load(text));
}
