#include "kern/node/handoff.h"

#include <catch2/catch.hpp>
#include <cstring>

#include "kern/manifest/protocol.h"
#include "machine.h"

using namespace k3_test;
using kern::engine::HandoffState;

namespace {

constexpr int64_t kPageTokens = 64;

/// Runs a prompt through the stages of a cut, carrying over what crosses.
std::vector<Machine> prefilled_stages(const Tokens& tokens, int64_t count) {
  const k3::Config config = config_of("k3-nano");
  const auto whole = k3::prefill(config, options("k3-nano"));
  REQUIRE(whole);
  const auto cuts = k3::even_cuts(config, count);
  REQUIRE(cuts);
  auto manifests = k3::stages(*whole, *cuts);
  REQUIRE(manifests);
  std::vector<Machine> machines;
  machines.reserve(manifests->size());  // a runtime refers to its machine's manifest
  for (auto& manifest : *manifests) {
    machines.emplace_back(verified(std::move(manifest)), checkpoint_of("k3-nano"));
    Machine& stage = machines.back();
    if (machines.size() > 1) {
      Machine& before = machines[machines.size() - 2];
      const auto protocol = kern::manifest::Protocol::check(stage.manifest());
      REQUIRE(protocol);
      for (const std::string& name : protocol->received) {
        const auto from = before.runtime().buffer(name), to = stage.runtime().buffer(name);
        REQUIRE(from.size() == to.size());
        std::memcpy(to.data(), from.data(), to.size());
      }
    }
    stage.run("prefill", {{tokens}});
  }
  return machines;
}

Machine prefilled_whole(const Tokens& tokens) {
  Machine one(verified(k3::one_rank(config_of("k3-nano"), options("k3-nano"))),
              checkpoint_of("k3-nano"));
  one.run("prefill", {{tokens}});
  return one;
}

kern::engine::Place place(uint32_t slot, uint32_t first_page) {
  kern::engine::Place at{slot, {}};
  for (uint32_t p = 0; p < kPagesEach; ++p) at.pages.push_back(first_page + p);
  return at;
}

/// What rank `rank` of `ranks` must hold, written out plainly from the declaration's meaning.
std::vector<std::byte> expected_part(Machine& one, const HandoffState& state, int64_t tokens,
                                     int64_t rank, int64_t ranks) {
  const auto memory = one.runtime().state(state.name);
  std::vector<std::byte> out;
  const auto take = [&](int64_t first, int64_t size) {
    out.insert(out.end(), memory.begin() + first, memory.begin() + first + size);
  };
  if (state.paged) {
    // The test's pages follow each other from page 1, so position p is row 64 + p.
    for (int64_t p = 0; p < tokens; ++p)
      if (p % ranks == rank) take((kPageTokens + p) * state.bytes, state.bytes);
    return out;
  }
  int64_t at = one.manifest().state(state.name)->bytes;  // slot 1
  for (const auto& segment : state.segments)
    for (int64_t row = 0; row < segment.rows; ++row, at += segment.width_bytes)
      take(at + segment.width_bytes / ranks * rank, segment.width_bytes / ranks);
  if (state.segments.empty()) take(at, state.bytes);
  return out;
}

std::vector<std::byte> joined(const std::vector<kern::ByteSpan>& pieces) {
  std::vector<std::byte> out;
  for (const auto piece : pieces) out.insert(out.end(), piece.begin(), piece.end());
  return out;
}

}  // namespace

TEST_CASE("the states of eight stages are those of the uncut model, byte for byte",
          "[k3][handoff]") {
  const Tokens tokens = prompt(21, 150, config_of("k3-nano").vocab);
  Machine one = prefilled_whole(tokens);
  auto stages = prefilled_stages(tokens, 8);
  size_t compared = 0;
  for (Machine& stage : stages)
    for (const auto& state : stage.manifest()->states) {
      CAPTURE(state.name);
      CHECK(stage.state(state.name) == one.state(state.name));
      ++compared;
    }
  CHECK(compared == one.manifest()->states.size());
  CHECK(stages.back().values<int32_t>("next_token", 1) == one.values<int32_t>("next_token", 1));
}

TEST_CASE("what lands on every rank is the one-rank state cut by the declared shards",
          "[k3][handoff]") {
  for (const int64_t ranks : {int64_t{1}, int64_t{2}, int64_t{8}}) {
    for (const size_t length : {size_t{1}, size_t{5}, size_t{64}, size_t{150}}) {
      const Tokens tokens = prompt(22, length, config_of("k3-nano").vocab);
      Machine one = prefilled_whole(tokens);
      auto stages = prefilled_stages(tokens, 3);
      const auto d = verified(k3::decode(config_of("k3-nano"), options("k3-nano"), ranks));
      const auto states = kern::node::describe_states(d);
      REQUIRE(states.size() == one.manifest()->states.size());
      const auto count = static_cast<uint32_t>(length);
      for (const HandoffState& state : states)
        for (uint32_t rank = 0; rank < ranks; ++rank) {
          CAPTURE(ranks, length, state.name, rank);
          const auto want = expected_part(one, state, length, rank, ranks);
          for (Machine& stage : stages) {
            const auto* own = stage.manifest().state(state.name);
            if (own == nullptr) continue;
            const auto part = kern::node::cut_part(
                state, own->bytes, {stage.runtime().state(state.name), kPageTokens}, place(1, 1),
                count, rank, static_cast<uint32_t>(ranks));
            REQUIRE(part);
            CHECK(joined(part->pieces) == want);
            // Landing: the same bytes, in the same order, in the rank's own places.
            std::vector<std::byte> memory(size_t{1} << 22);
            size_t landed = 0;
            for (const auto piece :
                 kern::node::place_part(state, {memory, kPageTokens}, place(2, 3), count, rank,
                                        static_cast<uint32_t>(ranks)))
              landed += piece.size();
            CHECK(landed == want.size());
          }
        }
    }
  }
}

TEST_CASE("a group whose states do not fit the stage's is refused", "[k3][handoff]") {
  HandoffState state{"kda.0", false, 100, HandoffState::Shard::heads, {{1, 800}}};
  std::vector<std::byte> memory(4096);
  const auto part = kern::node::cut_part(state, 900, {memory, 64}, place(1, 1), 5, 0, 8);
  REQUIRE_FALSE(part);
  CHECK(part.error().text() ==
        "state `kda.0`: the group's is cut from 800 bytes, this stage's has 900");
}
