#include <catch2/catch.hpp>

#include "fixture.h"

using namespace kern::manifest;
using namespace kern_test;

namespace {

std::vector<std::string> said(Manifest manifest) {
  const auto result = verify(std::move(manifest));
  REQUIRE_FALSE(result);
  return lines_of(result.error());
}

using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE("a verified manifest finds everything by name", "[manifest][verify]") {
  const Verified m = verified(fixture("base"));
  CHECK(m.var("tokens")->max == 64);
  CHECK(m.group("tp")->size == 2);
  CHECK(m.state("rec")->bytes == 48);
  CHECK(m.buffer("x")->kind == BufferKind::workspace);
  CHECK(m.module("main")->source == "main.cubin");
  CHECK(m.op("mix")->launches.size() == 2);
  CHECK(m.program("init")->once);
  CHECK(m.buffer("y") == nullptr);
  CHECK(m.index().buffers.find("ids") == 0);
}

TEST_CASE("a verified manifest knows its buffers' sizes at the vars' bounds",
          "[manifest][verify]") {
  Verified m = verified(fixture("base"));
  CHECK(m.bytes_max(*m.buffer("x")) == 64 * 32 * 2);
  CHECK(m.bytes_max(*m.index().buffers.find("lens")) == 16);
  const std::vector<int64_t> values = {10, 2, 7};
  CHECK(bytes_of(Dtype::bf16, m.buffer("x")->shape, m.with(values)) == 640);
  const Buffer* before = m.buffer("x");
  const Verified moved = std::move(m);
  CHECK(moved.buffer("x") == before);
}

TEST_CASE("verify reports lines when it is given the text", "[manifest][verify]") {
  const auto result =
      load(changed(fixture("base"), "\"step\": {\"bytes\": 8}", "\"step\": {\"bytes\": 0}"));
  REQUIRE_FALSE(result);
  CHECK(to_text(result.error()) ==
        "/states/step: a size of 0 bytes; expected at least 1 (line 16)\n");
}

TEST_CASE("diagnostics become one error of kind manifest", "[manifest][verify]") {
  const kern::Error error = to_error({{"/a", "b"}, {"", "c"}}, "file `m.json`");
  CHECK(error.kind == kern::Kind::manifest);
  CHECK(error.text() == "file `m.json` has 2 problems:\n/a: b\n/: c");
}

TEST_CASE("what no text can say is refused when a manifest is built by hand",
          "[manifest][verify]") {
  const Manifest base = parsed(fixture("base"));
  Manifest m = base;
  m.schema_version = 5;
  CHECK(said(m) == Lines{"/schema_version: expected 7, got 5"});
  m = base;
  m.states.push_back(m.states[2]);
  CHECK(said(m) == Lines{"/states/step: `step` is declared twice",
                         "/states/step: no program uses state `step`"});
  m = base;
  m.states[3].host.reset();
  CHECK(said(m) == Lines{"/states/far: a host state without its shape"});
  m = base;
  m.ops[8].launches[0].block = {32};
  m.ops[8].launches[0].grid.clear();
  m.ops[8].launches[0].cluster = {1, 1};
  m.ops[8].launches[0].algo.emplace();
  CHECK(said(m) == Lines{"/ops/open/impl/launches/0: a block of 1 extents; expected 3",
                         "/ops/open/impl/launches/0: a grid of 0 extents; expected 3",
                         "/ops/open/impl/launches/0: a cluster of 2 extents; expected 3",
                         "/ops/open/impl/launches/0: `algo` goes with built-ins only"});
  m = base;
  m.ops[5].launches[0].pdl = true;
  CHECK(said(m) == Lines{"/ops/gemm/impl/launches/0: a built-in has no module and no geometry"});
  m = base;
  std::get<StateArg>(m.programs[0].calls[2].args[8]).offset_bytes = -1;
  CHECK(said(m) == Lines{"/programs/prefill/calls/2/args/8: a negative offset into state `step`"});
  m = base;
  m.buffers[9].bind[0].tensors = {"a", "b"};
  CHECK(said(m) == Lines{"/buffers/table/bind/0: 2 tensor names without a group; expected one"});
}

TEST_CASE("a manifest without a program is refused", "[manifest][verify]") {
  Manifest m;
  CHECK(said(m) == Lines{"/programs: there is no program; expected at least one"});
}

TEST_CASE("a host manifest with our built-ins verifies", "[manifest][verify]") {
  std::string text = fixture("base");
  text = changed(text, "\"uses\": [", "\"device\": \"host\", \"uses\": [\"host\", ");
  text =
      changed(text,
              "{\"at\": 0, \"tensormap\": {\"param\": 1, \"dtype\": \"bf16\", \"dims\": [32, 20], "
              "\"strides\": [64], \"box\": [32, 4], \"swizzle\": 64, \"l2_promotion\": 128}}",
              "{\"at\": 0, \"param\": 1}");
  text = changed(text,
                 "{\"entry\": \"extern:cublaslt_bf16_tn\", \"algo\": {\"id\": 1, \"tile\": 2, "
                 "\"stages\": 3, \"split_k\": 1, \"reduction\": 0, \"swizzle\": 0, \"custom\": 0, "
                 "\"inner_shape\": 0, \"cluster_shape\": 0}}",
                 "{\"entry\": \"extern:gemm_bf16_tn\"}");
  const Verified m = verified(text);
  CHECK(m->device == Device::host);
  CHECK(m->uses_extension("host"));
}

TEST_CASE("a stage that says so hands on or drops a buffer that none of its calls uses",
          "[manifest][verify]") {
  Manifest m = parsed(fixture("base"));
  m.cut = Cut{"id", 1, 3};
  m.buffers.push_back({"through", Dtype::bf16, {Dim::of(4)}, BufferKind::inout});
  const Lines unused = {"/buffers/through: no program uses buffer `through`"};
  CHECK(said(m) == unused);
  m.uses.push_back("hand_on");
  CHECK(verify(m));
  m.buffers.back().kind = BufferKind::input;
  CHECK(verify(m));
  // the first receives nothing, and an uncut manifest has no edges
  m.cut->stage = 0;
  const Lines twice = {"/uses/4: extension `hand_on` is listed and never used", unused[0]};
  CHECK(said(m) == twice);
  m.cut.reset();
  CHECK(said(m) == twice);
}
