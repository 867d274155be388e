#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <thread>

#include "kern/manifest/shard.h"
#include "kern/runtime/local_peers.h"
#include "machine.h"

using namespace k3_test;

namespace {

/// The states of a prompt of `length` tokens as a rank holds them: its cut of each line, its
/// positions.
void hand_over(Machine& from, Machine& to, int32_t length, kern::manifest::Member member) {
  for (const auto& state : to.manifest()->states) {
    const auto whole = from.state(state.name);
    auto own = to.state(state.name);
    if (state.size == kern::manifest::State::Size::per_token) {
      const auto bytes = static_cast<size_t>(state.bytes);
      for (int32_t p = 0; p < length; ++p)
        if (kern::manifest::member_of(p, member.members) == member.index)
          std::memcpy(own.data() + (64 + kern::manifest::row_of(p, member.members)) * bytes,
                      whole.data() + (64 + p) * bytes, bytes);
    } else {
      const int64_t line = kern::manifest::whole_line_bytes(*state.shard);
      std::byte* at = own.data() + state.bytes;
      for (const auto& range : kern::manifest::line_ranges(*state.shard, member)) {
        std::memcpy(at, whole.data() + line + range.first, static_cast<size_t>(range.size));
        at += range.size;
      }
    }
    to.set_state(state.name, own);
  }
}

}  // namespace

// Eight ranks of one process on one GPU: their collectives meet through memory that each has
// mapped, and the blocks of all of them are resident together.
TEST_CASE("ranks on a GPU go on from a handed-over prompt as one rank does", "[k3][gpu][ranks]") {
  for (const auto& [name, ranks] :
       {std::pair("k3-nano", 2), std::pair("k3-nano", 8), std::pair("k3-mini", 8)}) {
    const k3::Config config = config_of(name);
    const int32_t length = 100, steps = 12;
    const Tokens tokens = prompt(14, length + steps, config.vocab);
    Machine one(verified(k3::one_rank(config, options(name, Device::cuda))), checkpoint_of(name));
    one.run("prefill", {{Tokens(tokens.begin(), tokens.begin() + length)}});
    kern::runtime::LocalGroup group(ranks);
    k3::Options shared_gpu = options(name, Device::cuda);
    shared_gpu.limits.collective_blocks = 2;
    std::vector<std::unique_ptr<Machine>> machines(static_cast<size_t>(ranks));
    const auto on_every_rank = [&](auto work) {
      std::vector<std::thread> threads;
      for (int r = 0; r < ranks; ++r) threads.emplace_back([&work, r] { work(r); });
      for (std::thread& thread : threads) thread.join();
    };
    on_every_rank([&](int r) {
      machines[r] =
          std::make_unique<Machine>(verified(k3::decode(config, shared_gpu, ranks)),
                                    checkpoint_of(name), Place{r, ranks, &group.member(r)});
    });
    for (int r = 0; r < ranks; ++r) hand_over(one, *machines[r], length, {r, ranks});
    double worst = 0;
    int same = 0;
    for (int32_t step = 0; step < steps; ++step) {
      const Feed feed{{tokens[length + step]}, length + step};
      on_every_rank([&](int r) { machines[r]->run("decode", {feed}); });
      one.run("decode", {feed});
      const auto want = one.values<float>("top_logprobs", 20);
      const auto token = one.values<int32_t>("next_token", 1);
      const auto first = machines[0]->values<float>("top_logprobs", 20);
      for (const auto& machine : machines) {
        CHECK(machine->values<float>("top_logprobs", 20) == first);
        CHECK(machine->values<int32_t>("next_token", 1) ==
              machines[0]->values<int32_t>("next_token", 1));
      }
      for (size_t i = 0; i < 5; ++i)
        worst = std::max(worst, std::fabs(double{first[i]} - double{want[i]}));
      same += machines[0]->values<int32_t>("next_token", 1) == token;
    }
    WARN(name << ", " << ranks << " ranks: the same token as one rank in " << same << " of "
              << steps << " steps, top log-probabilities within " << worst);
    CHECK(worst < 0.3);
    CHECK(same >= steps - 2);
  }
}
