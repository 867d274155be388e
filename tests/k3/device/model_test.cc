#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <numeric>

#include "machine.h"
#include "reference.h"

using namespace k3_test;

namespace {

Machine on(Device device, const std::string& name, const Place& place = {}) {
  return Machine(verified(k3::one_rank(config_of(name), options(name, device))),
                 checkpoint_of(name), place);
}

Tokens part(const Tokens& tokens, size_t first, size_t last) {
  return {tokens.begin() + static_cast<ptrdiff_t>(first),
          tokens.begin() + static_cast<ptrdiff_t>(last)};
}

template <class Wanted>
double relative(const std::vector<float>& got, const Wanted& want) {
  double error = 0, size = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    size += want[i] * want[i];
  }
  return std::sqrt(error / size);
}

size_t best(const std::vector<float>& logits) {
  return static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

size_t best(const Row& logits) {
  return static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

/// What a device says after every token of a text, against the definition.
struct Distances {
  std::vector<double> relative_rms;
  int same_best = 0;

  void add(Machine& machine, const Row& want) {
    const auto got = machine.logits();
    relative_rms.push_back(relative(got, want));
    same_best += best(got) == best(want);
  }
};

}  // namespace

// Both devices round at the same places, and sum in other orders: neither is nearer to the
// definition than the other by more than chance, which the median of the rows shows.
TEST_CASE("a GPU is as near to the definition as the host is", "[k3][gpu]") {
  for (const std::string name : {"k3-nano", "k3-mini"}) {
    const k3::Config config = config_of(name);
    const size_t count = name == "k3-nano" ? 150 : 80, first = count - 40;
    const Tokens tokens = prompt(5, count, config.vocab);
    const Rows want = Reference(config, checkpoint_of(name)).logits(tokens);
    Machine gpu = on(Device::cuda, name), host = on(Device::host, name);
    Distances ours, theirs;
    for (Machine* machine : {&gpu, &host}) machine->run("prefill", {{part(tokens, 0, first)}});
    ours.add(gpu, want[first - 1]);
    theirs.add(host, want[first - 1]);
    for (size_t at = first; at < count; ++at) {
      for (Machine* machine : {&gpu, &host})
        machine->run("decode", {{{tokens[at]}, static_cast<int32_t>(at)}});
      ours.add(gpu, want[at]);
      theirs.add(host, want[at]);
    }
    const double gpu_median = median(ours.relative_rms), host_median = median(theirs.relative_rms);
    WARN(name << ", distance from the definition, median row of " << count - first + 1 << ": GPU "
              << gpu_median << ", host " << host_median << "; its best token found: GPU "
              << ours.same_best << ", host " << theirs.same_best);
    CHECK(gpu_median < 1.5 * host_median);
    CHECK(ours.same_best >= theirs.same_best - static_cast<int>(count - first) / 10);
  }
}

TEST_CASE("on a GPU the cut of a prompt and its company do not change a byte", "[k3][gpu]") {
  for (const std::string name : {"k3-nano", "k3-mini"}) {
    const k3::Config config = config_of(name);
    const Tokens tokens = prompt(7, 210, config.vocab), other = prompt(8, 90, config.vocab);
    const int32_t page = 1 + kPagesEach, far = 1 + 2 * kPagesEach;
    Machine machine = on(Device::cuda, name);
    machine.run("prefill", {{tokens}});
    const auto want = machine.logits();
    machine.run("prefill",
                {{part(other, 0, 30), 0, 3, 0, far}, {part(tokens, 0, 64), 0, 2, 0, page}});
    machine.run("prefill",
                {{part(tokens, 64, 192), 64, 2, 0, page}, {part(other, 30, 89), 30, 3, 0, far}});
    machine.run("prefill", {{part(tokens, 192, 210), 192, 2, 0, page}});
    CHECK(machine.logits() == want);
    for (const auto& state : machine.manifest()->states) {
      if (state.size != kern::manifest::State::Size::per_seq) continue;
      const auto bytes = static_cast<size_t>(state.bytes);
      const auto all = machine.state(state.name);
      INFO(name << ", state " << state.name);
      CHECK(std::memcmp(all.data() + bytes, all.data() + 2 * bytes, bytes) == 0);
    }
  }
}

TEST_CASE("on a GPU a step alone and in a batch gives the same bytes", "[k3][gpu]") {
  for (const std::string name : {"k3-nano", "k3-mini"}) {
    const k3::Config config = config_of(name);
    Machine machine = on(Device::cuda, name);
    std::vector<Feed> all;
    for (int32_t s = 0; s < 4; ++s) {
      const auto length = static_cast<size_t>(61 + 2 * s);
      const Tokens tokens = prompt(20 + s, length, config.vocab);
      machine.run("prefill", {{tokens, 0, 1 + s, 0, 1 + s * kPagesEach}});
      all.push_back({{tokens[3]}, static_cast<int32_t>(length), 1 + s, 0, 1 + s * kPagesEach});
    }
    std::vector<std::vector<std::byte>> before;
    for (const auto& state : machine.manifest()->states)
      before.push_back(machine.state(state.name));
    machine.run("decode", all);
    std::vector<std::vector<float>> together;
    for (size_t s = 0; s < 4; ++s) together.push_back(machine.logits(s));
    std::vector<std::vector<std::byte>> after;
    for (const auto& state : machine.manifest()->states) after.push_back(machine.state(state.name));
    for (size_t i = 0; i < before.size(); ++i)
      machine.set_state(machine.manifest()->states[i].name, before[i]);
    for (size_t s = 0; s < 4; ++s) {
      machine.run("decode", {all[s]});
      CHECK(machine.logits() == together[s]);
    }
    for (size_t i = 0; i < before.size(); ++i) {
      INFO(name << ", state " << machine.manifest()->states[i].name);
      CHECK(machine.state(machine.manifest()->states[i].name) == after[i]);
    }
  }
}

TEST_CASE("on a GPU a sequence goes on from a snapshot to the same bytes", "[k3][gpu]") {
  const k3::Config config = config_of("k3-nano");
  const Tokens tokens = prompt(9, 200, config.vocab);
  Machine machine = on(Device::cuda, "k3-nano");
  machine.run("prefill", {{part(tokens, 0, 150), 0, 1, 5}});  // the state after 128 goes to slot 5
  REQUIRE(machine.runtime().copy_slot(5, 2).has_value());
  for (int32_t p = 1; p <= 2; ++p)
    REQUIRE(machine.runtime().copy_page(p, p + kPagesEach).has_value());
  machine.run("prefill", {{part(tokens, 128, 200), 128, 2, 0, 1 + kPagesEach}});
  const auto resumed = machine.logits();
  machine.run("prefill", {{part(tokens, 0, 200), 0, 3, 0, 1 + 2 * kPagesEach}});
  CHECK(machine.logits() == resumed);
}

TEST_CASE("on a GPU stages in a row give the bytes of the uncut program", "[k3][gpu]") {
  const k3::Config config = config_of("k3-nano");
  const Tokens tokens = prompt(10, 130, config.vocab);
  auto whole = k3::prefill(config, options("k3-nano", Device::cuda));
  REQUIRE(whole.has_value());
  Machine uncut(verified(*whole), checkpoint_of("k3-nano"));
  uncut.run("prefill", {{part(tokens, 0, 64)}});
  uncut.run("prefill", {{part(tokens, 64, 130), 64}});
  auto cut = k3::stages(*whole, {3, 8, 14});
  REQUIRE(cut.has_value());
  std::vector<Machine> stages;
  for (const auto& stage : *cut) stages.emplace_back(verified(stage), checkpoint_of("k3-nano"));
  for (const Feed& feed : {Feed{part(tokens, 0, 64)}, Feed{part(tokens, 64, 130), 64}})
    for (size_t s = 0; s < stages.size(); ++s) {
      if (s > 0) send_on(stages[s - 1], stages[s]);
      stages[s].run("prefill", {feed});
    }
  CHECK(stages[3].values<int32_t>("next_token", 1) == uncut.values<int32_t>("next_token", 1));
  CHECK(stages[3].values<float>("top_logprobs", 20) == uncut.values<float>("top_logprobs", 20));
}

TEST_CASE("on a GPU steps captured, launched one by one and fed on the device give the same bytes",
          "[k3][gpu]") {
  for (const std::string name : {"k3-nano", "k3-mini"}) {
    const k3::Config config = config_of(name);
    const int32_t page = 1 + kPagesEach;
    Machine eager = on(Device::cuda, name, {.eager = true}), captured = on(Device::cuda, name),
            fed = on(Device::cuda, name);
    for (Machine* machine : {&captured, &fed})
      REQUIRE(machine->runtime().capture(
          "decode", std::vector<kern::runtime::VarValue>{{"tokens", 2}, {"seqs", 2}}));
    Tokens next;
    for (Machine* machine : {&eager, &captured, &fed}) {
      machine->run("prefill",
                   {{prompt(7, 70, config.vocab)}, {prompt(8, 20, config.vocab), 0, 2, 0, page}});
      next = machine->values<int32_t>("next_token", 2);
    }
    for (int32_t step = 0; step < 20; ++step) {
      const auto feeds = [&](int32_t first, int32_t second) {
        return std::vector<Feed>{{{next[0]}, 70 + step, 1, 0, 1, first},
                                 {{next[1]}, 20 + step, 2, 0, page, second}};
      };
      eager.run("decode", feeds(-1, -1));
      captured.run("decode", feeds(-1, -1));
      if (step == 0) {
        fed.run("decode", feeds(-1, -1));  // of a prompt, which keeps no token
      } else {
        next = {1, 1};  // what nobody reads
        fed.run("decode", feeds(0, 1));
      }
      next = eager.values<int32_t>("next_token", 2);
      INFO(name << ", step " << step);
      for (const size_t seq : {0, 1}) {
        CHECK(captured.logits(seq) == eager.logits(seq));
        CHECK(fed.logits(seq) == eager.logits(seq));
      }
    }
    for (const auto& state : eager.manifest()->states) {
      INFO(name << ", state " << state.name);
      const auto want = eager.state(state.name);
      CHECK((captured.state(state.name) == want));
      CHECK((fed.state(state.name) == want));
    }
  }
}
