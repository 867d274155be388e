#include "kern/manifest/protocol.h"

#include <catch2/catch.hpp>

#include "fixture.h"

using namespace kern::manifest;
using namespace kern_test;

namespace {

using Lines = std::vector<std::string>;

Protocol protocol(std::string_view json) {
  auto result = Protocol::check(verified(json));
  if (!result) FAIL(to_text(result.error()));
  return std::move(*result);
}

Lines said(std::string_view json) {
  const auto result = Protocol::check(verified(json));
  REQUIRE_FALSE(result);
  return lines_of(result.error());
}

std::string base_with(std::string_view from, std::string_view to) {
  return changed(fixture("base"), from, to);
}

}  // namespace

TEST_CASE("a protocol says how every input is filled", "[manifest][protocol]") {
  const Protocol p = protocol(fixture("base"));
  CHECK(p.rows_var == "tokens");
  CHECK(p.groups_var == "seqs");
  CHECK(p.ranks_var.empty());
  CHECK(p.input(Fill::token)->buffer == "ids");
  CHECK(p.input(Fill::token)->along == Along::rows);
  CHECK(p.input(Fill::slot)->dtype == Dtype::i64);
  CHECK(p.input(Fill::seq_len)->along == Along::groups);
  CHECK(p.input(Fill::cu_seqlens)->along == Along::boundaries);
  CHECK(p.input(Fill::snapshot)->along == Along::groups);
  CHECK(p.input(Fill::temperature)->buffer == "heat");
  CHECK(p.input(Fill::valid) == nullptr);
  CHECK(p.output(Fill::tokens)->buffer == "out");
  CHECK(p.output(Fill::tokens)->width == 1);
  CHECK(p.output(Fill::logprob)->buffer == "odds");
}

TEST_CASE("a protocol says where rows are told whose token they take", "[manifest][protocol]") {
  const std::string json = changed(base_with("\"fill\": \"position\"", "\"fill\": \"fed_from\""),
                                   "\"uses\": [", "\"uses\": [\"feedback\", ");
  const Protocol p = protocol(json);
  CHECK(p.input(Fill::fed_from)->buffer == "places");
  CHECK(p.input(Fill::fed_from)->along == Along::rows);
  CHECK(said(changed(json,
                     "{\"dtype\": \"i32\", \"shape\": [\"tokens\"], \"kind\": \"input\", \"fill\": "
                     "\"fed_from\"",
                     "{\"dtype\": \"i32\", \"shape\": [\"seqs\"], \"kind\": \"input\", \"fill\": "
                     "\"fed_from\"")) ==
        Lines{"/buffers/places/fill: the shape does not suit fill `fed_from`; expected [rows]"});
}

TEST_CASE("a protocol says what each table indexes", "[manifest][protocol]") {
  const Protocol p = protocol(fixture("base"));
  REQUIRE(p.page_tables.size() == 1);
  CHECK(p.page_tables[0].buffer == "pages");
  CHECK(p.page_tables[0].state == "kv");
  CHECK(p.page_tables[0].seqs_max == 4);
  CHECK(p.page_tables[0].width == 16);
  CHECK(p.page_tokens == 64);
  REQUIRE(p.line_tables.size() == 1);
  CHECK(p.line_tables[0].buffer == "lines");
  CHECK(p.line_tables[0].lines == 1);
  CHECK(p.line_tables[0].seqs_max == 4);
  CHECK(p.line_tables[0].line_bytes == 48);
  CHECK(p.line_tables[0].lines_per_slot == 1);
}

TEST_CASE("a line may be a part of a slot", "[manifest][protocol]") {
  const Protocol p = protocol(base_with(
      "\"shape\": [1, \"seqs\"], \"kind\": \"input\", \"domain\": {\"index_into\": \"rec\", "
      "\"stride\": 48}",
      "\"shape\": [3, \"seqs\", 2], \"kind\": \"input\", \"domain\": {\"index_into\": \"rec\", "
      "\"stride\": 16}"));
  CHECK(p.line_tables[0].lines == 3);
  CHECK(p.line_tables[0].width == 2);
  CHECK(p.line_tables[0].line_bytes == 16);
  CHECK(p.line_tables[0].lines_per_slot == 3);
}

TEST_CASE("a list of slots over the groups var is one line of each", "[manifest][protocol]") {
  const Protocol p = protocol(base_with("\"shape\": [1, \"seqs\"]", "\"shape\": [\"seqs\"]"));
  CHECK(p.line_tables[0].lines == 1);
  CHECK(p.line_tables[0].seqs_max == 4);
}

TEST_CASE("programs that run at load are listed, not served", "[manifest][protocol]") {
  const Protocol p = protocol(fixture("base"));
  CHECK(p.once_programs == Lines{"init"});
  CHECK(p.derive_programs == Lines{"load"});
  REQUIRE(p.services.size() == 1);
  CHECK(p.services[0].program == "prefill");
  CHECK(p.services[0].emits);
  CHECK(p.services[0].context_var == "ctx");
}

TEST_CASE("a program is chosen by sequences and rows", "[manifest][protocol]") {
  Manifest m = parsed(fixture("base"));
  Program wide = m.programs[0];
  wide.name = "step.4";
  wide.batch = Batch{4, int64_t{1}, ""};
  Program narrow = wide;
  narrow.name = "step.2";
  narrow.batch->groups = 2;
  Program twice = wide;
  twice.name = "verify";
  twice.batch->rows = int64_t{2};
  m.programs.insert(m.programs.end(), {wide, narrow, twice});
  const auto p = Protocol::check(verified(std::move(m)));
  REQUIRE(p);
  CHECK(p->for_prompts(4, 64)->program == "prefill");
  CHECK(p->for_prompts(5, 64) == nullptr);
  CHECK(p->for_prompts(4, 65) == nullptr);
  CHECK(p->choose(1, 1)->program == "step.2");
  CHECK(p->choose(2, 1)->program == "step.2");
  CHECK(p->choose(3, 1)->program == "step.4");
  CHECK(p->choose(3, 2)->program == "verify");
  CHECK(p->choose(4, 3)->program == "prefill");
  CHECK(p->choose(5, 1) == nullptr);
  CHECK(p->choose(4, 17) == nullptr);
}

TEST_CASE("a manifest that serves has a batch and both axes", "[manifest][protocol]") {
  CHECK(
      said(changed(base_with(", \"axis\": \"rows\"", ""), ", \"axis\": \"groups\"", "")) ==
      Lines{
          "/programs/prefill/batch: `rows` names var `tokens`, whose axis is not `rows`",
          "/buffers/ids/fill: the shape does not suit fill `token`; expected [rows]",
          "/buffers/places/fill: the shape does not suit fill `position`; expected [rows]",
          "/buffers/cells/fill: the shape does not suit fill `slot`; expected [rows]",
          "/buffers/lens/fill: the shape does not suit fill `seq_len`; expected [groups]",
          "/buffers/bounds/fill: the shape does not suit fill `cu_seqlens`; expected [groups + 1]",
          "/buffers/snap/fill: the shape does not suit fill `snapshot`; expected [groups]",
          "/buffers/heat/fill: the shape does not suit fill `temperature`; expected [groups]",
          "/buffers/out/fill: the shape does not suit fill `tokens`; expected [groups] or "
          "[groups, rows]",
          "/buffers/odds/fill: the shape does not suit fill `logprob`; expected [groups]",
          "/vars: a manifest with a `batch` names a var with axis `rows`",
          "/vars: a manifest with a `batch` names a var with axis `groups`",
          "/buffers/pages: a page table runs over `seqs`; expected ``"});
  const std::string batch =
      "\"batch\": {\"groups\": 4, \"rows\": \"tokens\", \"context\": \"ctx\"},";
  CHECK(said(base_with(batch, "")) == Lines{"/programs: no program has a `batch`, so none serves"});
}

TEST_CASE("a batch fits its vars", "[manifest][protocol]") {
  const std::string_view groups = "\"batch\": {\"groups\": 4, \"rows\": \"tokens\"";
  CHECK(said(base_with(groups, "\"batch\": {\"groups\": 5, \"rows\": \"tokens\"")) ==
        Lines{"/programs/prefill/batch: 5 groups, but var `seqs` stops at 4"});
  CHECK(said(base_with(groups, "\"batch\": {\"groups\": 4, \"rows\": 17")) ==
        Lines{"/programs/prefill/batch: 4 groups of 17 rows, but var `tokens` stops at 64"});
}

TEST_CASE("one buffer plays a role", "[manifest][protocol]") {
  CHECK(said(base_with("\"fill\": \"position\"", "\"fill\": \"token\"")) ==
        Lines{"/buffers/places/fill: fill `token` is buffer `ids`'s already; one buffer a role"});
}

TEST_CASE("an input that nothing fills is refused", "[manifest][protocol]") {
  CHECK(
      said(base_with("\"kind\": \"input\", \"fill\": \"seq_len\"", "\"kind\": \"input\"")) ==
      Lines{"/buffers/lens: nothing fills this input buffer: no fill, no `index_into` a state, no "
            "stage before"});
  CHECK(said(base_with("\"domain\": {\"index_into\": \"kv\", \"stride\": 64}",
                       "\"domain\": {\"index_into\": \"step\"}")) ==
        Lines{"/buffers/pages: nothing fills this table: `step` is neither a paged nor a "
              "per-sequence state"});
}

TEST_CASE("a once program has no input", "[manifest][protocol]") {
  Manifest m = parsed(fixture("base"));
  m.ops[8].params.push_back(ParamType::buffer(Direction::in, Dtype::i32));
  m.programs[1].calls[0].args.push_back(BufferArg{"lens"});
  const auto result = Protocol::check(verified(std::move(m)));
  REQUIRE_FALSE(result);
  CHECK(lines_of(result.error()) ==
        Lines{"/programs/init/calls/0/args/1: a once program has no input buffer, got `lens`"});
}

TEST_CASE("tables have the shapes of tables", "[manifest][protocol]") {
  CHECK(said(base_with("\"shape\": [\"seqs\", 16]", "\"shape\": [\"seqs\", 16, 2]")) ==
        Lines{"/buffers/pages: a page table has shape [sequences, pages], got 3 extents"});
  CHECK(said(base_with("\"shape\": [\"seqs\", 16]", "\"shape\": [\"tokens\", 16]")) ==
        Lines{"/buffers/pages: a page table runs over `tokens`; expected `seqs`"});
  CHECK(said(base_with("\"shape\": [1, \"seqs\"]", "\"shape\": [1, \"seqs\", 2, 2]")) ==
        Lines{"/buffers/lines: a line table has shape [lines], [lines, sequences] or [lines, "
              "sequences, width], got 4 extents"});
  Manifest m = parsed(fixture("base"));
  m.buffers.push_back(m.buffers[7]);
  m.buffers.back().name = "pages.2";
  m.buffers.back().domain->stride = 32;
  std::get<BufferArg>(m.programs[0].calls[1].args[4]).buffer = "pages.2";
  m.programs[0].calls.push_back(m.programs[0].calls[1]);
  std::get<BufferArg>(m.programs[0].calls.back().args[4]).buffer = "lines";
  const auto result = Protocol::check(verified(std::move(m)));
  REQUIRE_FALSE(result);
  CHECK(lines_of(result.error()) ==
        Lines{"/buffers/pages.2: pages of 32 tokens, other tables have pages of 64"});
}

TEST_CASE("a stage in the middle receives and sends", "[manifest][protocol]") {
  Manifest m = parsed(fixture("base"));
  m.cut = Cut{"id", 1, 3};
  m.uses.push_back("hand_on");
  m.buffers.push_back({"through", Dtype::bf16, {Dim::of(4)}, BufferKind::inout});
  const auto p = Protocol::check(verified(std::move(m)));
  REQUIRE(p);
  CHECK(p->received == Lines{"through"});
  CHECK(p->sent == Lines{"through"});
}
