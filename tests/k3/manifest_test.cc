#include <catch2/catch.hpp>

#include "checkpoint/tensors.h"
#include "kern/base/file.h"
#include "kern/manifest/binds.h"
#include "kern/manifest/cut.h"
#include "kern/manifest/protocol.h"
#include "machine.h"

using namespace k3_test;
namespace m = kern::manifest;

namespace {

/// The smallest of its kind in everything: layers that start with attention over pages, no dense
/// layer, one-layer blocks, sizes that are no powers of two.
k3::Config odd_config() {
  k3::Config config = config_of("k3-nano");
  config.layers = 5;
  config.is_mla = {true, false, false, true, false};
  config.residual_block = 1;
  config.dense_layers = 0;
  config.heads = 6, config.kda_heads = 6, config.kda_dim = 20;
  config.hidden = 72, config.nope = 12, config.rope = 4, config.v_dim = 28;
  config.q_lora = 36, config.kv_lora = 44, config.taps = 3;
  config.experts = 6, config.top_k = 5, config.latent = 96, config.expert_inter = 32;
  config.shared_inter = 96;
  config.vocab = 1302;
  return config;
}

/// Whether every weight of the manifest finds its tensors in the release's list for that config.
std::string bind_problems(const m::Verified& manifest, const k3::Config& config) {
  const auto plans = k3::tensor_plans(config, {});
  std::vector<m::TensorInfo> tensors;
  for (const auto& plan : plans) tensors.push_back({plan.name, plan.dtype, plan.shape});
  return m::to_text(m::check_binds(manifest, tensors));
}

int64_t bytes_of(const k3::TensorPlan& plan) {
  int64_t bytes = plan.dtype == "F32" ? 4 : plan.dtype == "BF16" ? 2 : 1;
  for (const int64_t extent : plan.shape) bytes *= extent;
  return bytes;
}

}  // namespace

TEST_CASE("every layout of every config verifies and binds", "[k3][manifest]") {
  for (const std::string name : {"k3-nano", "k3-mini", "k3", "odd"}) {
    const k3::Config config = name == "odd" ? odd_config() : config_of(name);
    INFO(name);
    std::vector<m::Verified> made;
    made.push_back(verified(k3::one_rank(config, options(name))));
    made.push_back(verified(k3::prefill(config, options(name))));
    for (const int64_t ranks : {2, 3, 8, 16})
      if (config.heads % ranks == 0 && config.experts % ranks == 0)
        made.push_back(verified(k3::decode(config, options(name), ranks)));
    CHECK(made.size() >= 3);
    for (const m::Verified& one : made) {
      CHECK(bind_problems(one, config) == "");
      const auto protocol = m::Protocol::check(one);
      if (!protocol) FAIL(m::to_text(protocol.error()));
      CHECK(protocol->output(m::Fill::tokens) != nullptr);
    }
  }
}

TEST_CASE("a cut before any layer verifies and its edge agrees", "[k3][manifest]") {
  for (const std::string name : {"k3-nano", "odd"}) {
    const k3::Config config = name == "odd" ? odd_config() : config_of(name);
    const auto whole = k3::prefill(config, options(name));
    REQUIRE(whole.has_value());
    std::vector<int64_t> every;
    for (int64_t layer = 1; layer < config.layers; ++layer) {
      every.push_back(layer);
      const auto cut = k3::stages(*whole, {layer});
      if (!cut) FAIL(cut.error().text());
      const auto before = verified((*cut)[0]), after = verified((*cut)[1]);
      CHECK(m::to_text(m::check_edge(before, after)) == "");
      CHECK(m::sent_buffers(*before).size() == 1 + size_t(config.bank_before(layer)));
    }
    const auto all = k3::stages(*whole, every);
    if (!all) FAIL(all.error().text());
    for (const auto& stage : *all) verified(stage);
  }
}

TEST_CASE("only the snapshots that exist cross a cut of the full model", "[k3][manifest]") {
  const k3::Config config = config_of("k3");
  const auto whole = k3::prefill(config, options("k3"));
  REQUIRE(whole.has_value());
  const auto layers = k3::even_cuts(config, 8);
  REQUIRE(layers.has_value());
  CHECK(*layers == std::vector<int64_t>{12, 24, 36, 48, 60, 72, 84});
  const auto cut = k3::stages(*whole, *layers);
  REQUIRE(cut.has_value());
  for (size_t s = 0; s + 1 < cut->size(); ++s) {
    std::vector<std::string> want = {"hidden"};
    for (size_t b = 0; b <= s; ++b) want.push_back("bank." + std::to_string(b));
    auto got = m::sent_buffers((*cut)[s]);
    std::sort(got.begin(), got.end());
    std::sort(want.begin(), want.end());
    CHECK(got == want);
  }
}

TEST_CASE("the full model has the release's tensors and bytes", "[k3][manifest]") {
  const k3::Config config = config_of("k3");
  const auto plans = k3::tensor_plans(config, {});
  CHECK(plans.size() == 497052);
  int64_t all = 0, first_moe = 0, mla = 0;
  for (const auto& plan : plans) {
    all += bytes_of(plan);
    if (plan.name.find(".layers.1.") != std::string::npos) first_moe += bytes_of(plan);
    if (plan.name.find(".layers.3.") != std::string::npos) mla += bytes_of(plan);
  }
  CHECK(first_moe == 16990092800);
  CHECK(mla == 16566684160);
  CHECK(all == 1559965606912);
}

TEST_CASE("states have the published sizes and are divided as declared", "[k3][manifest]") {
  const k3::Config config = config_of("k3");
  const auto whole = verified(k3::prefill(config, options("k3")));
  CHECK(whole.state("kda.0")->bytes == 6512640);
  CHECK(whole.state("kv.3")->bytes == 1152);
  CHECK(whole.state("kv.92")->bytes == 1152);
  CHECK(!whole.state("kda.0")->shard.has_value());
  const auto rank = verified(k3::decode(config, options("k3"), 8));
  CHECK(rank.state("kda.0")->bytes == 814080);
  CHECK(rank.state("kv.3")->bytes == 1152);
  const auto shard = rank.state("kda.0")->shard;
  REQUIRE(shard.has_value());
  CHECK(shard->segments == std::vector<m::Shard::Segment>{{1, 6291456}, {9, 24576}});
  CHECK(rank.state("kv.3")->shard->by == m::Shard::By::position);
}

TEST_CASE("a manifest is the same bytes every time", "[k3][manifest]") {
  const k3::Config config = config_of("k3-nano");
  const auto once = k3::one_rank(config, options("x")), again = k3::one_rank(config, options("x"));
  REQUIRE(once.has_value());
  CHECK(m::print(*once) == m::print(*again));
  const auto back = m::parse(m::print(*once));
  REQUIRE(back.has_value());
  CHECK(m::print(*back) == m::print(*once));
}

TEST_CASE("experts spelled out bind what their series bind, and print as version 7",
          "[k3][manifest]") {
  for (const std::string name : {"k3-nano", "k3", "odd"}) {
    const k3::Config config = name == "odd" ? odd_config() : config_of(name);
    k3::Options series = options(name), plain = options(name);
    plain.spelled_out = true;
    for (const int64_t ranks : {1, 2}) {
      INFO(name << ", " << ranks << " ranks");
      auto one = k3::decode(config, series, ranks);
      const auto other = k3::decode(config, plain, ranks);
      REQUIRE(one.has_value());
      REQUIRE(other.has_value());
      CHECK(one->uses_extension("series"));
      CHECK_FALSE(other->uses_extension("series"));
      const auto read = m::load(m::print(*other));
      REQUIRE(read.has_value());
      CHECK(bind_problems(*read, config) == "");
      for (m::Buffer& buffer : one->buffers)
        for (m::BindSegment& segment : buffer.bind)
          if (segment.series) segment.series->spelled_out = true;
      std::erase(one->uses, "series");
      CHECK(m::print(*one) == m::print(*other));
      CHECK(m::print(**read) == m::print(*other));
    }
  }
}

TEST_CASE("a group that does not divide the model is refused", "[k3][manifest]") {
  const k3::Config config = config_of("k3-nano");
  const auto refusal = [&](int64_t ranks) {
    return k3::decode(config, options("x"), ranks).error().message;
  };
  CHECK(refusal(3) == "`--ranks` 3: does not divide num_attention_heads (8)");
  CHECK(refusal(0) == "`--ranks`: expected 1 to 1024, got 0");
  const auto stages = k3::even_cuts(config, 18);
  CHECK(stages.error().message == "`--stages`: expected 1 to 17, got 18");
  const auto whole = k3::prefill(config, options("x"));
  CHECK(!k3::stages(*whole, {99}).has_value());
}
