#include <catch2/catch.hpp>
#include <cstdlib>
#include <map>

#include "fixture.h"
#include "kern/base/prng.h"
#include "kern/manifest/cut.h"
#include "symbols.h"

using namespace kern::manifest;
using namespace kern_test;

// Programs of random calls are run twice as symbols: whole, and as stages that hand their buffers
// on.

namespace {

struct Pipe {
  Manifest manifest;
  std::vector<std::string> labels;
};

constexpr int kBuffers = 5;

/// A random straight line over a few buffers, of which some are outputs, each stage with a state of
/// its own.
Pipe random_pipe(kern::Prng& random) {
  Pipe pipe;
  Manifest& m = pipe.manifest;
  m.model = "random";
  m.vars = {{"n", 4, Axis::rows}, {"s", 1, Axis::groups}};
  m.modules = {{"m", "m.cubin", std::string(64, '0')}};
  m.buffers.push_back({"in", Dtype::i32, {Dim::of_var("n"), Dim::of(8)}, BufferKind::input});
  m.buffers.back().fill = Fill::token;
  for (int b = 0; b < kBuffers; ++b)
    m.buffers.push_back(
        {fmt::format("b{}", b), Dtype::i32, {Dim::of_var("n"), Dim::of(8)}, BufferKind::workspace});
  for (uint64_t b = random.below(3); b > 0; --b) m.buffers[b].kind = BufferKind::output;
  m.buffers.push_back({"out", Dtype::i32, {Dim::of_var("s")}, BufferKind::output});
  m.buffers.push_back({"given", Dtype::i32, {Dim::of_var("n"), Dim::of(8)}, BufferKind::input});
  const auto op = [&](const char* name, std::vector<ParamType> params) {
    Launch launch;
    launch.module = "m";
    launch.entry = name;
    launch.block = {1, 1, 1};
    launch.grid = {Expr::constant(1), Expr::constant(1), Expr::of_var("s")};
    m.ops.push_back({name, std::move(params), {}, {launch}});
  };
  const auto type = [](Direction d) { return ParamType::buffer(d, Dtype::i32); };
  op("first", {type(Direction::in), type(Direction::out)});
  op("copy", {type(Direction::in), type(Direction::out)});
  op("change", {type(Direction::in), type(Direction::inout)});
  op("state", {type(Direction::inout), ParamType::state(Direction::inout)});
  op("last", {type(Direction::in), type(Direction::out)});
  const auto any = [&] { return fmt::format("b{}", random.below(kBuffers)); };
  Program program;
  program.name = "run";
  program.batch = Batch{1, std::string("n"), ""};
  for (int b = 0; b < kBuffers; ++b)
    program.calls.push_back({"first", {BufferArg{"in"}, BufferArg{fmt::format("b{}", b)}}, ""});
  const size_t stages = 2 + random.below(3);
  for (size_t s = 0; s < stages; ++s) {
    const size_t first = program.calls.size();
    m.states.push_back({fmt::format("s{}", s), State::Size::per_seq, 8, {}, {}});
    program.calls.push_back({"state", {BufferArg{any()}, StateArg{m.states.back().name}}, ""});
    if (random.below(3) == 0 || s == 0)
      program.calls.push_back({"change", {BufferArg{"given"}, BufferArg{any()}}, ""});
    for (size_t c = random.below(5); c > 0; --c) {
      const int64_t offset = random.below(4) == 0 ? 4 : 0;
      program.calls.push_back({random.below(3) == 0 ? "change" : "copy",
                               {BufferArg{any()}, BufferArg{any(), offset}},
                               ""});
    }
    if (s == 0) continue;
    program.calls[first].label = fmt::format("stage.{}", s);
    pipe.labels.push_back(program.calls[first].label);
  }
  program.calls.push_back({"last", {BufferArg{any()}, BufferArg{"out"}}, ""});
  m.programs.push_back(std::move(program));
  return pipe;
}

/// What memory holds before a run, whole or in stages: what the caller gives, which the first stage
/// alone gets of inputs without a fill, and the states of earlier runs.
Values before(const Manifest& m) {
  Values memory{{"in", 42}};
  if (!m.cut || m.cut->stage == 0) memory["given"] = 43;
  for (const State& state : m.states) memory[state.name] = hash(state.name);
  return memory;
}

bool has_all_ops(const Manifest& m) {
  std::map<std::string, int> called;
  for (const Call& call : m.programs[0].calls) ++called[call.op];
  return called.size() == m.ops.size();
}

}  // namespace

TEST_CASE("stages run in order leave what the whole leaves", "[manifest][cut][prop]") {
  const char* given = std::getenv("KERN_SEED");
  const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 0) : 1;
  int cuts = 0;
  for (uint64_t i = 0; i < 2000; ++i) {
    INFO("KERN_SEED=" << seed << ", step " << i);
    kern::Prng random(mix(seed, i));
    const Pipe pipe = random_pipe(random);
    if (!has_all_ops(pipe.manifest)) continue;
    const Verified whole = verified(pipe.manifest);
    const auto stages = cut(whole, pipe.labels);
    if (!stages) FAIL(to_text(stages.error()));
    ++cuts;
    Values memory = before(*whole);
    run_symbols(whole, whole->programs[0], memory, 1);
    Values link, states;
    std::vector<Verified> checked;
    for (const Manifest& stage : *stages) {
      checked.push_back(verified(stage));
      const Verified& m = checked.back();
      Values own = before(*m);
      for (const std::string& name : received_buffers(*m)) own[name] = link.at(name);
      run_symbols(m, *m.program("run"), own, 100 + static_cast<uint64_t>(m->cut->stage));
      link.clear();
      for (const std::string& name : sent_buffers(*m)) link[name] = own.at(name);
      for (const State& state : m->states) states[state.name] = own.at(state.name);
      if (m->cut->stage + 1 == m->cut->stages)
        for (const Buffer& buffer : whole->buffers)
          if (buffer.kind == BufferKind::output) states[buffer.name] = own.at(buffer.name);
      if (checked.size() > 1) CHECK(check_edge(checked[checked.size() - 2], m).empty());
    }
    for (const auto& [name, value] : states) {
      INFO(name);
      CHECK(memory.at(name) == value);
    }
  }
  INFO(cuts << " cuts");
  CHECK(cuts > 1000);
}
