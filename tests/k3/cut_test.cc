#include "kern/manifest/cut.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>

#include "kern/base/prng.h"
#include "machine.h"

using namespace k3_test;
namespace m = kern::manifest;

namespace {

using Labels = std::vector<std::string>;

/// The whole prefill program of the nano model, every call labelled: a cut may stand anywhere.
m::Manifest labelled() {
  auto whole = k3::prefill(config_of("k3-nano"), options("k3-nano"));
  if (!whole) FAIL(whole.error().text());
  int call = 0;
  for (m::Call& each : whole->programs.at(0).calls)
    if (each.label.empty()) each.label = "call." + std::to_string(call++);
  return std::move(*whole);
}

/// Three sequences of which the first two come in pieces, side by side.
std::vector<std::vector<Feed>> steps(int64_t vocab) {
  const Tokens a = prompt(21, 90, vocab), b = prompt(22, 40, vocab), c = prompt(23, 3, vocab);
  const auto part = [](const Tokens& all, ptrdiff_t first, ptrdiff_t last) {
    return Tokens(all.begin() + first, all.begin() + last);
  };
  const int32_t second = 1 + kPagesEach, third = 1 + 2 * kPagesEach;
  return {{{part(a, 0, 70), 0, 1, 5}, {part(b, 0, 13), 0, 2, 0, second}},
          {{part(b, 13, 40), 13, 2, 0, second}, {c, 0, 3, 0, third}, {part(a, 70, 90), 70, 1}}};
}

struct Result {
  std::map<std::string, std::vector<std::byte>> states, outputs;
};

void note(Machine& machine, Result& result) {
  for (const m::State& state : machine.manifest()->states)
    result.states[state.name] = machine.state(state.name);
}

void note_outputs(Machine& machine, const m::Manifest& whole, size_t step, Result& result) {
  for (const m::Buffer& buffer : whole.buffers) {
    if (buffer.kind != m::BufferKind::output) continue;
    const auto bytes = machine.runtime().buffer(buffer.name);
    result.outputs[buffer.name + "@" + std::to_string(step)] = {bytes.begin(), bytes.end()};
  }
}

/// Every state and output of the steps, through these stages in order.
Result run(std::vector<m::Manifest> stages, const m::Manifest& whole) {
  const auto feeds = steps(config_of("k3-nano").vocab);
  std::vector<std::unique_ptr<Machine>> machines;
  for (m::Manifest& stage : stages)
    machines.push_back(
        std::make_unique<Machine>(verified(std::move(stage)), checkpoint_of("k3-nano")));
  Result result;
  for (size_t step = 0; step < feeds.size(); ++step) {
    for (size_t s = 0; s < machines.size(); ++s) {
      for (const std::string& name : m::received_buffers(*machines[s]->manifest())) {
        const auto from = machines[s - 1]->runtime().buffer(name),
                   to = machines[s]->runtime().buffer(name);
        REQUIRE(from.size() == to.size());
        std::memcpy(to.data(), from.data(), to.size());
      }
      machines[s]->run("prefill", feeds[step]);
    }
    note_outputs(*machines.back(), whole, step, result);
  }
  for (const auto& machine : machines) note(*machine, result);
  return result;
}

void check_same(const Result& got, const Result& want) {
  CHECK(got.states.size() == want.states.size());
  for (const auto& [name, bytes] : want.states) {
    INFO("state " << name);
    CHECK((got.states.count(name) == 1 && got.states.at(name) == bytes));
  }
  for (const auto& [name, bytes] : want.outputs) {
    INFO("output " << name);
    CHECK((got.outputs.count(name) == 1 && got.outputs.at(name) == bytes));
  }
}

const Result& uncut(const m::Manifest& whole) {
  static const Result result = run({whole}, whole);
  return result;
}

Labels layers(const m::Manifest& whole) {
  Labels out;
  for (const m::Call& call : whole.programs[0].calls)
    if (call.label.starts_with("layer.") && call.label.find('.', 6) == std::string::npos)
      out.push_back(call.label);
  out.erase(out.begin());
  return out;
}

}  // namespace

TEST_CASE("a cut at any layer, and one at all of them, changes no byte", "[k3][cut]") {
  const m::Manifest whole = labelled();
  const m::Verified checked = verified(whole);
  const Labels all = layers(whole);
  REQUIRE(all.size() == static_cast<size_t>(config_of("k3-nano").layers - 1));
  CHECK(!uncut(whole).outputs.empty());
  for (size_t i = 0; i <= all.size(); ++i) {
    const Labels at = i < all.size() ? Labels{all[i]} : all;
    INFO(at[0] << " and " << at.size() - 1 << " more");
    auto stages = m::cut(checked, at);
    if (!stages) FAIL(m::to_text(stages.error()));
    for (const m::Manifest& stage : *stages) CHECK_FALSE(stage.uses_extension("hand_on"));
    check_same(run(std::move(*stages), whole), uncut(whole));
  }
}

TEST_CASE("a cut at any calls is refused with a sentence, or changes no byte", "[k3][cut][prop]") {
  const char* given = std::getenv("KERN_SEED");
  kern::Prng random(given != nullptr ? std::strtoull(given, nullptr, 0) : 1);
  const m::Manifest whole = labelled();
  const m::Verified checked = verified(whole);
  const auto& calls = whole.programs[0].calls;
  int run_through = 0, refused = 0;
  for (int i = 0; i < 400 && run_through < 8; ++i) {
    std::vector<size_t> places;
    for (uint64_t n = 1 + random.below(3); n > 0; --n)
      places.push_back(1 + random.below(calls.size() - 1));
    std::sort(places.begin(), places.end());
    places.erase(std::unique(places.begin(), places.end()), places.end());
    Labels at;
    for (const size_t place : places) at.push_back(calls[place].label);
    std::string text;
    for (const std::string& label : at) text += label + " ";
    INFO(text);
    auto stages = m::cut(checked, at);
    if (!stages) {
      ++refused;
      for (const m::Diagnostic& d : stages.error()) {
        CHECK(d.pointer.starts_with("/"));
        CHECK(d.sentence.find("touch this state") + 1 + (d.sentence.find("reads this table") + 1) +
                  (d.sentence.find("has no fill") + 1) >
              0);
      }
      continue;
    }
    ++run_through;
    check_same(run(std::move(*stages), whole), uncut(whole));
  }
  CHECK(run_through == 8);
  CHECK(refused > 0);
}
