#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "machine.h"
#include "reference.h"

using namespace k3_test;

namespace {

Machine one_rank(const std::string& name) {
  return Machine(verified(k3::one_rank(config_of(name), options(name))), checkpoint_of(name));
}

Tokens part(const Tokens& tokens, size_t first, size_t last) {
  return {tokens.begin() + static_cast<ptrdiff_t>(first),
          tokens.begin() + static_cast<ptrdiff_t>(last)};
}

double relative(const std::vector<float>& got, const Row& want) {
  double error = 0, size = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    size += want[i] * want[i];
  }
  return std::sqrt(error / size);
}

int32_t best(const std::vector<float>& logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

}  // namespace

TEST_CASE("the generated programs compute the model of the definition", "[k3][run]") {
  for (const std::string name : {"k3-nano", "k3-mini"}) {
    const k3::Config config = config_of(name);
    const size_t count = name == "k3-nano" ? 40 : 6;
    const Tokens tokens = prompt(5, count, config.vocab);
    Machine machine = one_rank(name);
    const Rows want = Reference(config, checkpoint_of(name)).logits(tokens);
    machine.run("prefill", {{part(tokens, 0, count - 1)}});
    CHECK(relative(machine.logits(), want[count - 2]) < 0.05);
    machine.run("decode", {{{tokens.back()}, static_cast<int32_t>(count - 1)}});
    CHECK(relative(machine.logits(), want[count - 1]) < 0.05);
  }
}

TEST_CASE("logits of a random checkpoint are neither flat nor chaotic", "[k3][run]") {
  const k3::Config config = config_of("k3-nano");
  Machine machine = one_rank("k3-nano");
  Tokens tokens = prompt(6, 60, config.vocab);
  machine.run("prefill", {{tokens}});
  const auto before = machine.logits();
  double mean = 0, square = 0;
  for (const float logit : before) mean += logit, square += double{logit} * logit;
  const double count = static_cast<double>(before.size());
  const double deviation = std::sqrt(square / count - mean / count * (mean / count));
  CHECK(deviation > 1);
  CHECK(deviation < 4);
  tokens[3] = (tokens[3] + 1) % 1000;  // far away: felt, but not another world
  machine.run("prefill", {{tokens, 0, 2, 0, 1 + kPagesEach}});
  const auto after = machine.logits();
  const double moved = relative(after, Row(before.begin(), before.end()));
  CHECK(moved > 1e-3);
  CHECK(moved < 1);
}

TEST_CASE("a step fed the tokens of the step before computes what one fed by the caller does",
          "[k3][run]") {
  const k3::Config config = config_of("k3-nano");
  const Tokens first = prompt(7, 70, config.vocab), second = prompt(8, 20, config.vocab);
  const int32_t page = 1 + kPagesEach;
  const auto prepared = [&] {
    Machine machine = one_rank("k3-nano");
    machine.run("prefill", {{first}, {second, 0, 2, 0, page}});
    machine.run("decode", {{{5}, 70}, {{6}, 20, 2, 0, page}});
    return machine;
  };
  Machine fed = prepared(), told = prepared();
  const auto tokens = told.values<int32_t>("next_token", 2);
  told.run("decode", {{{tokens[1]}, 21, 2, 0, page}, {{tokens[0]}, 71}});
  // The rows have changed places; what stands in `token` does not matter.
  fed.run("decode", {{{1}, 21, 2, 0, page, 1}, {{2}, 71, 1, 0, 1, 0}});
  for (const size_t seq : {0, 1}) CHECK(fed.logits(seq) == told.logits(seq));
  CHECK(fed.state("kda.4") == told.state("kda.4"));
  // One of two ends, and a new one joins with a token of the caller's.
  const auto after = told.values<int32_t>("next_token", 2);
  told.run("decode", {{{after[1]}, 72}, {{9}, 22, 2, 0, page}});
  fed.run("decode", {{{3}, 72, 1, 0, 1, 1}, {{9}, 22, 2, 0, page}});
  for (const size_t seq : {0, 1}) CHECK(fed.logits(seq) == told.logits(seq));
}

TEST_CASE("prompt cuts, steps and company do not change a byte", "[k3][run]") {
  const k3::Config config = config_of("k3-nano");
  const Tokens tokens = prompt(7, 150, config.vocab), other = prompt(8, 90, config.vocab);
  Machine machine = one_rank("k3-nano");
  machine.run("prefill", {{tokens}});
  const auto want = machine.logits();
  const auto line = machine.state("kda.4");
  const size_t bytes = static_cast<size_t>(machine.manifest().state("kda.4")->bytes);

  // in three pieces, beside another sequence, the last rows one at a time
  const int32_t page = 1 + kPagesEach, far = 1 + 2 * kPagesEach;
  machine.run("prefill",
              {{part(other, 0, 30), 0, 3, 0, far}, {part(tokens, 0, 64), 0, 2, 0, page}});
  machine.run("prefill",
              {{part(tokens, 64, 145), 64, 2, 0, page}, {part(other, 30, 89), 30, 3, 0, far}});
  for (int32_t at = 145; at < 150; ++at) machine.run("decode", {{{tokens[at]}, at, 2, 0, page}});
  CHECK(machine.logits() == want);
  const auto after = machine.state("kda.4");
  CHECK(std::memcmp(line.data() + bytes, after.data() + 2 * bytes, bytes) == 0);
}

TEST_CASE("a sequence goes on from a snapshot to the same bytes", "[k3][run]") {
  const k3::Config config = config_of("k3-nano");
  const Tokens tokens = prompt(9, 200, config.vocab);
  Machine machine = one_rank("k3-nano");
  machine.run("prefill", {{part(tokens, 0, 150), 0, 1, 5}});  // the state after 128 goes to slot 5
  machine.run("prefill", {{part(tokens, 150, 200), 150, 1}});
  const auto want = machine.logits();
  REQUIRE(machine.runtime().copy_slot(5, 2).has_value());
  for (int32_t p = 1; p <= 2; ++p)
    REQUIRE(machine.runtime().copy_page(p, p + kPagesEach).has_value());
  machine.run("prefill", {{part(tokens, 128, 200), 128, 2, 0, 1 + kPagesEach}});
  CHECK(machine.logits() == want);
}

TEST_CASE("experts bound one by one and as series give the same bytes", "[k3][run]") {
  const k3::Config config = config_of("k3-nano");
  const Tokens tokens = prompt(12, 90, config.vocab);
  k3::Options plain = options("k3-nano");
  plain.spelled_out = true;
  Machine series = one_rank("k3-nano");
  Machine spelled_out(verified(k3::one_rank(config, plain)), checkpoint_of("k3-nano"));
  for (Machine* machine : {&series, &spelled_out}) machine->run("prefill", {{tokens}});
  CHECK(series.logits() == spelled_out.logits());
  CHECK(series.state("kda.4") == spelled_out.state("kda.4"));
}

TEST_CASE("stages in a row give the bytes of the uncut program", "[k3][run]") {
  const k3::Config config = config_of("k3-nano");
  const Tokens tokens = prompt(10, 130, config.vocab);
  auto whole = k3::prefill(config, options("k3-nano"));
  REQUIRE(whole.has_value());
  Machine uncut(verified(*whole), checkpoint_of("k3-nano"));
  uncut.run("prefill", {{part(tokens, 0, 100)}});
  uncut.run("prefill", {{part(tokens, 100, 130), 100}});
  auto cut = k3::stages(*whole, {3, 8, 14});  // inside a block, at a block, inside again
  REQUIRE(cut.has_value());
  std::vector<Machine> stages;
  for (const auto& stage : *cut) stages.emplace_back(verified(stage), checkpoint_of("k3-nano"));
  for (const Feed& feed : {Feed{part(tokens, 0, 100)}, Feed{part(tokens, 100, 130), 100}})
    for (size_t s = 0; s < stages.size(); ++s) {
      if (s > 0) send_on(stages[s - 1], stages[s]);
      stages[s].run("prefill", {feed});
    }
  CHECK(stages[3].values<int32_t>("next_token", 1) == uncut.values<int32_t>("next_token", 1));
  CHECK(stages[3].values<float>("top_logprobs", 20) == uncut.values<float>("top_logprobs", 20));
  for (const auto& [stage, state] :
       {std::pair{0, "kda.2"}, {1, "kv.3"}, {2, "kda.9"}, {3, "kv.16"}})
    CHECK(stages[stage].state(state) == uncut.state(state));
}

TEST_CASE("one decode rank is the decode program of the one-rank manifest", "[k3][run]") {
  const k3::Config config = config_of("k3-nano");
  const Tokens tokens = prompt(11, 70, config.vocab);
  Machine one = one_rank("k3-nano");
  Machine rank(verified(k3::decode(config, options("k3-nano"), 1)), checkpoint_of("k3-nano"));
  one.run("prefill", {{part(tokens, 0, 69)}});
  for (const auto& state : one.manifest()->states) {
    const auto bytes = one.runtime().state(state.name);
    std::memcpy(rank.runtime().state(state.name).data(), bytes.data(), bytes.size());
  }
  one.run("decode", {{{tokens[69]}, 69}});
  rank.run("decode", {{{tokens[69]}, 69}});
  CHECK(rank.values<int32_t>("next_token", 1)[0] == best(one.logits()));
  CHECK(rank.values<float>("top_logprobs", 20) == one.values<float>("top_logprobs", 20));
}

TEST_CASE("a NaN in one sequence's state fails that sequence alone", "[k3][run]") {
  const k3::Config config = config_of("k3-nano");
  const Tokens a = prompt(12, 40, config.vocab), b = prompt(13, 40, config.vocab);
  Machine machine = one_rank("k3-nano");
  const int32_t page = 1 + kPagesEach;
  machine.run("prefill", {{part(a, 0, 39)}, {part(b, 0, 39), 0, 2, 0, page}});
  machine.run("decode", {{{b[39]}, 39, 2, 0, page}});
  const auto want = machine.logits();
  machine.run("prefill", {{part(b, 0, 39), 0, 3, 0, 1 + 2 * kPagesEach}});
  const float nan = std::nanf("");
  const size_t bytes = static_cast<size_t>(machine.manifest().state("kda.1")->bytes);
  std::memcpy(machine.runtime().state("kda.1").data() + bytes + 256, &nan, sizeof nan);
  machine.run("decode", {{{a[39]}, 39}, {{b[39]}, 39, 3, 0, 1 + 2 * kPagesEach}});
  CHECK(machine.values<int32_t>("next_token", 2) == Tokens{-1, best(want)});
  CHECK(machine.logits(1) == want);
}
