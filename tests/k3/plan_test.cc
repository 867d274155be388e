#include "kern/runtime/plan.h"

#include <catch2/catch.hpp>

#include "machine.h"

using namespace k3_test;
namespace m = kern::manifest;
using kern::runtime::Capacity;

namespace {

const Capacity kCapacity{1 + 4 * kPagesEach, 64, 8};

kern::runtime::Plan planned(const m::Verified& manifest, const Capacity& capacity = kCapacity) {
  auto plan = kern::runtime::plan(manifest, capacity);
  if (!plan) FAIL(plan.error().text());
  CHECK(plan->programs.size() == manifest->programs.size());
  CHECK(!plan->entries.empty());
  return std::move(*plan);
}

/// Options with whatever modules these layouts ask for; a plan reads none of them.
k3::Options cuda_options(const k3::Config& config, bool plain) {
  k3::Options with = options("cuda");
  with.device = m::Device::cuda;
  with.plain = plain;
  with.modules.clear();
  const auto ask = [&](const auto& make) {
    for (int asked = 0; asked < 200; ++asked) {
      const auto made = make();
      if (made) return;
      const std::string& said = made.error().message;
      const size_t first = said.find('`') + 1, last = said.find("` is needed and not given");
      if (last == std::string::npos) FAIL(said);
      const std::string name = said.substr(first, last - first);
      with.modules.push_back({name, name + ".cubin", std::string(64, 'a')});
    }
  };
  ask([&] { return k3::one_rank(config, with); });
  ask([&] { return k3::prefill(config, with); });
  ask([&] { return k3::decode(config, with, 8); });
  ask([&] { return k3::decode(config, with, 1); });
  return with;
}

/// Every layout of a config: one rank, prefill whole and in stages, decode over each group.
std::vector<m::Verified> layouts(const k3::Config& config, const k3::Options& with) {
  std::vector<m::Verified> out;
  out.push_back(verified(k3::one_rank(config, with)));
  auto whole = k3::prefill(config, with);
  REQUIRE(whole.has_value());
  for (const int64_t stages : {2, 5, 8}) {
    const auto layers = k3::even_cuts(config, stages);
    if (!layers) continue;
    auto cut = k3::stages(*whole, *layers);
    if (!cut) FAIL(cut.error().text());
    for (m::Manifest& stage : *cut) out.push_back(verified(std::move(stage)));
  }
  out.push_back(verified(std::move(whole)));
  for (const int64_t ranks : {1, 2, 4, 8, 16})
    if (config.heads % ranks == 0 && config.experts % ranks == 0)
      out.push_back(verified(k3::decode(config, with, ranks)));
  return out;
}

}  // namespace

TEST_CASE("every layout of every config lowers, whatever it takes", "[k3][plan]") {
  for (const std::string name : {"k3-nano", "k3-mini", "k3"}) {
    INFO(name);
    for (const m::Verified& one : layouts(config_of(name), options(name))) planned(one);
  }
}

TEST_CASE("every layout for a GPU lowers", "[k3][plan][cuda]") {
  for (const std::string name : {"k3-nano", "k3"}) {
    INFO(name);
    const k3::Config config = config_of(name);
    for (const m::Verified& one : layouts(config, cuda_options(config, false))) planned(one);
  }
}

TEST_CASE("a plain rank for a GPU lowers, its collectives through NCCL", "[k3][plan][cuda]") {
  const k3::Config config = config_of("k3");
  const k3::Options with = cuda_options(config, true);
  for (const int64_t ranks : {1, 8}) planned(verified(k3::decode(config, with, ranks)));
}

TEST_CASE("a plan of the nano model is what its runtime holds", "[k3][plan]") {
  const k3::Config config = config_of("k3-nano");
  const auto manifest = verified(k3::one_rank(config, options("k3-nano")));
  const auto plan = planned(manifest);
  Machine machine(verified(k3::one_rank(config, options("k3-nano"))), checkpoint_of("k3-nano"));
  int64_t states = 0;
  for (const auto& state : manifest->states)
    states += static_cast<int64_t>(machine.runtime().state(state.name).size());
  CHECK(plan.state_bytes == states);
}

TEST_CASE("the stages of the full model hold its weights once", "[k3][plan]") {
  const k3::Config config = config_of("k3");
  auto whole = k3::prefill(config, options("k3"));
  REQUIRE(whole.has_value());
  const auto layers = k3::even_cuts(config, 8);
  REQUIRE(layers.has_value());
  auto cut = k3::stages(*whole, *layers);
  REQUIRE(cut.has_value());
  const auto all = planned(verified(std::move(whole)));
  int64_t weights = 0, states = 0, launches = 0;
  for (m::Manifest& stage : *cut) {
    const auto plan = planned(verified(std::move(stage)));
    weights += plan.weight_bytes, states += plan.state_bytes;
    for (const auto& program : plan.programs) launches += program.launches;
  }
  CHECK(weights == all.weight_bytes);
  CHECK(states == all.state_bytes);
  REQUIRE(all.programs.size() == 1);
  CHECK(launches == all.programs[0].launches);
}
