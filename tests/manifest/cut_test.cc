#include "kern/manifest/cut.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "fixture.h"

using namespace kern::manifest;
using namespace kern_test;

namespace {

using Lines = std::vector<std::string>;

std::vector<Verified> stages_of(std::string_view json, const Lines& labels) {
  auto stages = cut(verified(json), labels);
  if (!stages) FAIL(to_text(stages.error()));
  std::vector<Verified> out;
  for (Manifest& stage : *stages) out.push_back(verified(std::move(stage)));
  return out;
}

Lines said(std::string_view json, const Lines& labels) {
  const auto stages = cut(verified(json), labels);
  REQUIRE_FALSE(stages);
  return lines_of(stages.error());
}

Lines said_of(const std::vector<Verified>& stages) {
  std::vector<const Verified*> pointers;
  for (const Verified& stage : stages) pointers.push_back(&stage);
  return lines_of(check_cut(pointers));
}

std::string pipe_with(std::string_view from, std::string_view to) {
  return changed(fixture("pipe"), from, to);
}

const Lines kLabels = {"layer.2", "layer.3"};

template <class T>
Lines names(const std::vector<T>& list) {
  Lines out;
  for (const T& one : list) out.push_back(one.name);
  return out;
}

}  // namespace

TEST_CASE("what is produced before a cut and read after it crosses", "[manifest][cut]") {
  const auto stages = stages_of(fixture("pipe"), kLabels);
  REQUIRE(stages.size() == 3);
  const Lines crossing = {"hidden", "bank.0", "bank.1"};
  CHECK(received_buffers(*stages[0]).empty());
  CHECK(sent_buffers(*stages[0]) == crossing);
  CHECK(received_buffers(*stages[1]) == crossing);
  CHECK(sent_buffers(*stages[1]) == crossing);
  CHECK(received_buffers(*stages[2]) == crossing);
  CHECK(sent_buffers(*stages[2]).empty());
  CHECK(said_of(stages).empty());
}

TEST_CASE("a stage that receives and hands on has an inout, the others an output and an input",
          "[manifest][cut]") {
  const auto stages = stages_of(fixture("pipe"), kLabels);
  CHECK(stages[0].buffer("bank.1")->kind == BufferKind::output);
  CHECK(stages[1].buffer("bank.1")->kind == BufferKind::inout);
  CHECK(stages[2].buffer("bank.1")->kind == BufferKind::input);
  CHECK(stages[2].buffer("hidden")->kind == BufferKind::inout);
  CHECK(stages[1].buffer("part")->kind == BufferKind::workspace);
}

TEST_CASE("states, weights and modules go where they are used", "[manifest][cut]") {
  const auto stages = stages_of(fixture("pipe"), kLabels);
  CHECK(names(stages[0]->states) == Lines{"rec.0", "kv.1"});
  CHECK(names(stages[1]->states) == Lines{"rec.2"});
  CHECK(names(stages[2]->states) == Lines{"rec.3", "kv.4"});
  CHECK(stages[0].buffer("table") != nullptr);
  CHECK(stages[1].buffer("table") == nullptr);
  CHECK(names(stages[1]->modules) == Lines{"main"});
  CHECK(names(stages[2]->modules) == Lines{"main", "head"});
  CHECK(names(stages[1]->ops) == Lines{"rec", "close", "cook"});
}

TEST_CASE("what runs at load is sliced by what a stage needs of it", "[manifest][cut]") {
  const auto stages = stages_of(fixture("pipe"), kLabels);
  CHECK(stages[0].program("load")->calls.size() == 1);
  CHECK(stages[0].buffer("head.raw") == nullptr);
  CHECK(stages[2].program("load")->calls.size() == 2);
}

TEST_CASE("a table whose state stays behind is aimed at the first of its kind in the stage",
          "[manifest][cut]") {
  const auto stages = stages_of(fixture("pipe"), kLabels);
  CHECK(stages[0].buffer("lines")->domain->index_into == "rec.0");
  CHECK(stages[1].buffer("lines")->domain->index_into == "rec.2");
  CHECK(stages[2].buffer("lines")->domain->index_into == "rec.3");
  CHECK(stages[1].buffer("pages") == nullptr);
  CHECK(stages[2].buffer("pages")->domain->index_into == "kv.4");
  CHECK(stages[2].buffer("pages")->domain->stride == 4);
}

TEST_CASE("inputs with a fill go to every stage that reads them", "[manifest][cut]") {
  const auto stages = stages_of(fixture("pipe"), kLabels);
  for (const Verified& stage : stages) {
    CHECK(stage.buffer("snap")->fill == Fill::snapshot);
    CHECK(stage.buffer("bounds")->fill == Fill::cu_seqlens);
    CHECK(stage->uses_extension("snapshot"));
  }
  CHECK(stages[1].buffer("ids") == nullptr);
  CHECK(stages[2].buffer("out")->fill == Fill::tokens);
  CHECK(stages[0].buffer("out") == nullptr);
}

TEST_CASE("an extension goes where it is used", "[manifest][cut]") {
  const auto stages = stages_of(fixture("pipe"), {"out"});
  CHECK(stages[0]->uses == Lines{"snapshot"});
  CHECK(stages[1]->uses.empty());
}

TEST_CASE("a stage that hands on what it does not use says so", "[manifest][cut]") {
  const auto stages = stages_of(fixture("pipe"), kLabels);
  CHECK(stages[0]->uses == Lines{"snapshot"});
  CHECK(stages[1]->uses == Lines{"snapshot", "hand_on"});
  CHECK(stages[2]->uses == Lines{"snapshot"});
}

TEST_CASE("a buffer that is dead at the cut does not cross, one that is not does",
          "[manifest][cut]") {
  const auto before = stages_of(fixture("pipe"), {"layer.2"});
  CHECK(sent_buffers(*before[0]) == Lines{"hidden", "bank.0", "bank.1"});
  const auto inside = stages_of(fixture("pipe"), {"layer.2.close"});
  CHECK(sent_buffers(*inside[0]) == Lines{"hidden", "bank.0", "bank.1", "part"});
}

TEST_CASE("a received buffer that is reused and not handed on gets a twin", "[manifest][cut]") {
  const auto stages = stages_of(fixture("pipe"), {"layer.2.close", "layer.4"});
  CHECK(stages[1].buffer("part")->kind == BufferKind::input);
  REQUIRE(stages[1].buffer("part.own") != nullptr);
  CHECK(stages[1].buffer("part.own")->kind == BufferKind::workspace);
  CHECK(said_of(stages).empty());
}

TEST_CASE("a cut is named by the manifest and its labels", "[manifest][cut]") {
  const auto a = stages_of(fixture("pipe"), kLabels), b = stages_of(fixture("pipe"), kLabels);
  const auto c = stages_of(fixture("pipe"), {"layer.1", "layer.3"});
  const auto d = stages_of(pipe_with("\"model\": \"pipe\"", "\"model\": \"pipes\""), kLabels);
  CHECK(a[0]->cut->id == b[2]->cut->id);
  CHECK(print(*a[1]) == print(*b[1]));
  CHECK(a[0]->cut->id != c[0]->cut->id);
  CHECK(a[0]->cut->id != d[0]->cut->id);
  CHECK(a[2]->cut->stage == 2);
  CHECK(a[2]->cut->stages == 3);
}

TEST_CASE("a label names one call, after the one before it", "[manifest][cut]") {
  CHECK(said(fixture("pipe"), {}) == Lines{"/: no label to cut at; expected at least one"});
  CHECK(said(fixture("pipe"), {"layer.1", ""}) == Lines{"/: label 2 of 2 is empty"});
  CHECK(said(fixture("pipe"), {"layer.9"}) ==
        Lines{"/programs/prefill: 0 calls are labelled `layer.9`; expected one"});
  CHECK(said(fixture("pipe"), {"layer.3", "layer.2"}) ==
        Lines{"/programs/prefill: label `layer.2` does not come after the one before it"});
  CHECK(said(pipe_with("\"label\": \"layer.1\"", "\"label\": \"layer.0\""), {"layer.0"}) ==
        Lines{"/programs/prefill: 2 calls are labelled `layer.0`; expected one"});
  CHECK(said(pipe_with("{\"buf\": \"hidden\"}, {\"buf\": \"bank.0\"}]}",
                       "{\"buf\": \"hidden\"}, {\"buf\": \"bank.0\"}], \"label\": \"start\"}"),
             {"start"}) ==
        Lines{"/programs/prefill: label `start` is the first call: nothing is before it"});
}

TEST_CASE("a program that lacks a label keeps the manifest whole", "[manifest][cut]") {
  Manifest m = parsed(fixture("pipe"));
  m.programs.push_back(m.programs[1]);
  m.programs.back().name = "decode";
  m.programs.back().calls[7].label = "other";
  CHECK(said(print(m), kLabels) ==
        Lines{"/programs/decode: 0 calls are labelled `layer.3`; expected one"});
}

TEST_CASE("a state that two stages touch is refused", "[manifest][cut]") {
  CHECK(said(changed(pipe_with("    \"rec.3\": {\"bytes_per_seq\": 32},\n", ""),
                     "{\"state\": \"rec.3\"}", "{\"state\": \"rec.2\"}"),
             kLabels) ==
        Lines{"/states/rec.2: stages 1 and 2 both touch this state; a state does not cross"});
}

TEST_CASE("a carry that a step writes does not cross", "[manifest][cut]") {
  CHECK(said(pipe_with("\"bank.1\": {\"dtype\": \"bf16\", \"shape\": [\"tokens\", 4], \"kind\": "
                       "\"workspace\"}",
                       "\"bank.1\": {\"dtype\": \"bf16\", \"shape\": [\"tokens\", 4], \"kind\": "
                       "\"carry\"}"),
             kLabels) ==
        Lines{"/buffers/bank.1: stages 0 and 2 both touch this carry, which a step writes"});
}

TEST_CASE("an output without a fill that a stage writes early comes over the edges",
          "[manifest][cut]") {
  const auto stages =
      stages_of(pipe_with("\"bank.1\": {\"dtype\": \"bf16\", \"shape\": [\"tokens\", 4], \"kind\": "
                          "\"workspace\"}",
                          "\"bank.1\": {\"dtype\": \"bf16\", \"shape\": [\"tokens\", 4], \"kind\": "
                          "\"output\"}"),
                kLabels);
  CHECK(stages[0].buffer("bank.1")->kind == BufferKind::output);
  CHECK(stages[1].buffer("bank.1")->kind == BufferKind::inout);
  CHECK(stages[2].buffer("bank.1")->kind == BufferKind::inout);
  CHECK(said_of(stages).empty());
}

TEST_CASE("an output that the last stage writes anew is a workspace of the others",
          "[manifest][cut]") {
  Manifest m = parsed(fixture("pipe"));
  Program& program = m.programs[1];
  program.calls.insert(program.calls.begin() + 7, program.calls.back());
  program.calls[7].label.clear();
  const auto stages = stages_of(print(m), {"layer.3"});
  CHECK(stages[0].buffer("out")->kind == BufferKind::workspace);
  CHECK_FALSE(stages[0].buffer("out")->fill.has_value());
  CHECK(stages[1].buffer("out")->fill == Fill::tokens);
  CHECK(said_of(stages).empty());
}

TEST_CASE("an output with a fill does not cross", "[manifest][cut]") {
  Manifest m = parsed(fixture("pipe"));
  Program& program = m.programs[1];
  std::rotate(program.calls.begin() + 7, program.calls.end() - 1, program.calls.end());
  CHECK(said(print(m), {program.calls[8].label}) ==
        Lines{"/buffers/out: stage 0 writes this output, which the last stage keeps; what crosses "
              "has no fill"});
}

TEST_CASE("an input that only the first stage can be given comes over the edges",
          "[manifest][cut]") {
  const auto stages = stages_of(
      pipe_with("\"kind\": \"input\", \"fill\": \"cu_seqlens\"", "\"kind\": \"input\""), kLabels);
  CHECK(stages[0].buffer("bounds")->kind == BufferKind::inout);
  CHECK(stages[1].buffer("bounds")->kind == BufferKind::inout);
  CHECK(stages[2].buffer("bounds")->kind == BufferKind::input);
  CHECK(said_of(stages).empty());
}

TEST_CASE("what is no whole manifest is not cut", "[manifest][cut]") {
  Manifest m = parsed(fixture("pipe"));
  m.cut = Cut{"a", 0, 2};
  CHECK(said(print(m), kLabels) == Lines{"/cut: already a stage of a cut"});
  m = parsed(fixture("pipe"));
  m.buffers[11].kind = BufferKind::inout;
  CHECK(said(print(m), kLabels) == Lines{"/buffers/bank.0: an uncut manifest has no inout buffer"});
  m = parsed(fixture("pipe"));
  m.programs[1].batch.reset();
  m.programs[1].once = true;
  m.vars.clear();
  for (Buffer& buffer : m.buffers)
    for (Dim& dim : buffer.shape) dim = dim.is_var() ? Dim::of(4) : dim;
  for (Op& op : m.ops)
    for (Expr& e : op.launches[0].grid) e = Expr::constant(1);
  CHECK(said(print(m), kLabels) == Lines{"/programs: no program to cut: all of them run at load"});
}

TEST_CASE("a buffer changed in place and looked at no more is dropped by the next stage",
          "[manifest][cut]") {
  Manifest m = parsed(fixture("pipe"));
  // layer 3 starts from a fresh hidden stream, so nobody looks at stage 1's
  m.programs[1].calls.insert(m.programs[1].calls.begin() + 7, m.programs[1].calls[0]);
  m.programs[1].calls[7].label = "again";
  const auto stages = stages_of(print(m), {"layer.2", "again"});
  CHECK(stages[1].buffer("hidden")->kind == BufferKind::inout);
  CHECK(received_buffers(*stages[2]) == Lines{"hidden", "bank.1"});
  CHECK(said_of(stages).empty());
}

TEST_CASE("a table that a stage reads without a state of its kind is refused", "[manifest][cut]") {
  Manifest m = parsed(fixture("pipe"));
  std::get<BufferArg>(m.programs[1].calls[5].args[4]).buffer = "pages";
  CHECK(said(print(m), kLabels) ==
        Lines{"/buffers/pages: stage 1 reads this table, and has no state like `kv.1`, which it "
              "indexes"});
  m = parsed(fixture("pipe"));
  m.buffers[4].domain->index_into = "table";
  m.buffers[4].domain->stride.reset();
  CHECK(said(print(m), {"layer.2"}) ==
        Lines{"/buffers/lines: stage 1 reads this table, and `table`, which it indexes, stays "
              "behind"});
}

TEST_CASE("a filled input that indexes a buffer of another stage loses that domain",
          "[manifest][cut]") {
  Manifest m = parsed(fixture("pipe"));
  std::get<BufferArg>(m.programs[1].calls[5].args[4]).buffer = "ids";
  const auto stages = stages_of(print(m), {"layer.2"});
  CHECK(stages[0].buffer("ids")->domain->index_into == "table");
  CHECK_FALSE(stages[1].buffer("ids")->domain.has_value());
}

TEST_CASE("a filled input that indexes a state is aimed with the tables, or loses that domain",
          "[manifest][cut]") {
  Manifest m = parsed(fixture("pipe"));
  m.buffers[2].domain = Domain{{}, {}, "rec.0", 32, false};
  m.buffers[1].domain = Domain{{}, {}, "kv.1", {}, false};
  const auto stages = stages_of(print(m), kLabels);
  CHECK(stages[1].buffer("snap")->domain->index_into == "rec.2");
  CHECK_FALSE(stages[1].buffer("bounds")->domain.has_value());
  CHECK(stages[2].buffer("bounds")->domain->index_into == "kv.4");
}

TEST_CASE("a manifest of several programs is cut when all carry the labels", "[manifest][cut]") {
  Manifest m = parsed(fixture("pipe"));
  m.programs.push_back(m.programs[1]);
  m.programs.back().name = "decode";
  m.programs.back().batch->rows = int64_t{1};
  const auto stages = stages_of(print(m), kLabels);
  CHECK(names(stages[1]->programs) == Lines{"load", "prefill", "decode"});
  CHECK(said_of(stages).empty());
}

TEST_CASE("stages of different cuts refuse each other", "[manifest][cut]") {
  const auto a = stages_of(fixture("pipe"), kLabels);
  const auto b = stages_of(fixture("pipe"), {"layer.1", "layer.3"});
  const std::string id_a = a[0]->cut->id, id_b = b[0]->cut->id;
  CHECK(
      lines_of(check_edge(a[0], b[1])) ==
      Lines{fmt::format("/1/cut: stages of different cuts: `{}` of 3 and `{}` of 3", id_a, id_b)});
  CHECK(lines_of(check_edge(a[0], a[2])) == Lines{"/2/cut: stage 2 does not come after stage 0"});
  CHECK(lines_of(check_edge(verified(fixture("pipe")), a[1])) ==
        Lines{"/1: a stage has a `cut` record, one of these two does not"});
}

TEST_CASE("stages are checked in order and in number", "[manifest][cut]") {
  auto stages = stages_of(fixture("pipe"), kLabels);
  std::swap(stages[0], stages[1]);
  CHECK(said_of(stages) == Lines{"/0/cut: is stage 1 of 3; expected stage 0 of 3",
                                 "/1/cut: is stage 0 of 3; expected stage 1 of 3"});
  std::vector<Verified> whole;
  whole.push_back(verified(fixture("pipe")));
  CHECK(said_of(whole) == Lines{"/0: has no `cut` record"});
}

TEST_CASE("buffers, vars and programs agree across an edge", "[manifest][cut]") {
  const auto stages = stages_of(fixture("pipe"), kLabels);
  Manifest m = *stages[1];
  for (Buffer& buffer : m.buffers)
    if (buffer.name == "bank.0") buffer.shape[1] = Dim::of(5);
  CHECK(lines_of(check_edge(stages[0], verified(m))) ==
        Lines{"/1/buffers/bank.0: expected bf16[tokens, 5], stage 0 sends bf16[tokens, 4]"});
  m = *stages[1];
  m.buffers.push_back({"extra", Dtype::bf16, {Dim::of(1)}, BufferKind::inout});
  CHECK(lines_of(check_edge(stages[0], verified(m))) ==
        Lines{"/1/buffers/extra: stage 0 does not send `extra`"});
  CHECK(lines_of(check_edge(verified(m), stages[2])) ==
        Lines{"/2/buffers: stage 1 sends `extra`, which nothing here receives"});
  m = *stages[1];
  m.vars[0].max = 15;
  CHECK(lines_of(check_edge(stages[0], verified(m))) ==
        Lines{"/1/vars/tokens: var `tokens` differs from stage 0's"});
  m = *stages[1];
  m.programs[1].name = "step";
  CHECK(lines_of(check_edge(stages[0], verified(m))) ==
        Lines{"/1/programs/step: stage 0 has no program `step`",
              "/1/programs: no program `prefill`, which stage 0 has"});
}
