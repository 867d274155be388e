#include <catch2/catch.hpp>
#include <cstdlib>
#include <set>

#include "accepted_refusal.h"
#include "gen/generate.h"
#include "json_mutator.h"
#include "kern/base/file.h"
#include "kern/runtime/plan.h"

using namespace kern_test;
namespace m = kern::manifest;

namespace {

std::string text_of(const std::string& path) {
  auto text = kern::read_file(std::string(KERN_SOURCE_DIR) + "/" + path, size_t{1} << 22);
  if (!text) FAIL(text.error().text());
  return *text;
}

/// A rank of two of the nano model, cut short where a test needs no more.
std::string nano_rank() {
  const auto config = k3::read_config(text_of("k3/configs/k3-nano.json"));
  if (!config) FAIL(config.error().text());
  k3::Options options;
  options.model = "nano";
  for (const char* name : {"act", "head", "kda", "mla", "moe", "norm"})
    options.modules.push_back({name, std::string(name) + ".so", std::string(64, 'a')});
  auto manifest = k3::decode(*config, options, 2);
  if (!manifest) FAIL(manifest.error().text());
  return m::print(*manifest);
}

struct Tally {
  int accepted = 0, lowered = 0;
  std::set<std::string> refusals;
};

/// Mutants of one text, of one change in most cases.
Tally mutants(const std::string& base, int count, uint64_t seed) {
  Tally tally;
  for (int i = 0; i < count; ++i) {
    INFO("KERN_SEED=" << seed << ", mutant " << i);
    kern::Prng random(seed * 1'000'003 + static_cast<uint64_t>(i));
    std::string text = mutate_json(base, random);
    if (random.below(4) == 0) text = mutate_json(text, random);
    const auto verified = m::load(text);
    if (!verified) continue;
    ++tally.accepted;
    const auto plan = kern::runtime::plan(*verified, smallest_capacity(*verified));
    if (plan) {
      ++tally.lowered;
      continue;
    }
    if (!is_listed_refusal(plan.error())) FAIL(plan.error().text());
    tally.refusals.insert(plan.error().message.substr(0, 40));
  }
  return tally;
}

uint64_t seed() {
  const char* given = std::getenv("KERN_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 0) : 1;
}

}  // namespace

TEST_CASE("every accepted mutant of a host manifest lowers, or is refused as listed",
          "[fuzz][plan][prop]") {
  const Tally tally = mutants(text_of("tests/fuzz/corpus/plan/host.json"), 6000, seed());
  CHECK(tally.accepted > 600);
  CHECK(tally.lowered > 400);
  CHECK(tally.refusals.size() > 2);
}

TEST_CASE("every accepted mutant of a GPU's manifest lowers, or is refused as listed",
          "[fuzz][plan][prop]") {
  std::string text = text_of("tests/fuzz/corpus/plan/host.json");
  const auto cut = [&](const std::string& from, const std::string& to) {
    const size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    text.replace(at, from.size(), to);
  };
  cut(R"("uses": ["host", "collectives"],)", R"("uses": ["collectives"],)");
  cut(R"("device": "host",)", "");
  cut("extern:gemm_bf16_tn_f32", "extern:cublas_bf16_tn_f32");
  cut(R"({"param": 2}, {"rank": "tp"}]}])", R"({"param": 2}, {"rank": "one"}]}])");
  const Tally tally = mutants(text, 6000, seed());
  CHECK(tally.accepted > 600);
  CHECK(tally.lowered > 300);
  CHECK(tally.refusals.size() > 2);
}

TEST_CASE("every accepted mutant of a model's rank lowers, or is refused as listed",
          "[fuzz][plan][prop]") {
  const Tally tally = mutants(nano_rank(), 300, seed());
  CHECK(tally.accepted > 30);
  CHECK(tally.lowered > 20);
}
