#include <barrier>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <thread>

#include "kern/manifest/shard.h"
#include "machine.h"

using namespace k3_test;
using kern::ByteSpan;
using kern::MutableByteSpan;

namespace {

/// Ranks of one process that meet in memory.
class Meeting {
 public:
  explicit Meeting(int size) : size_(size), sent_(size), barrier_(size) {}

  class Member final : public kern::runtime::PeerGroup {
   public:
    Member(Meeting& meeting, int rank) : meeting_(meeting), rank_(rank) {}
    int rank() const override { return rank_; }
    int size() const override { return meeting_.size_; }
    kern::Result<void> all_gather(ByteSpan send, MutableByteSpan receive) override {
      return meeting_.exchange(rank_, send, [&](int from, ByteSpan bytes) {
        std::memcpy(receive.data() + from * send.size(), bytes.data(), send.size());
      });
    }
    kern::Result<void> all_to_all(ByteSpan send, MutableByteSpan receive) override {
      const size_t block = send.size() / size();
      return meeting_.exchange(rank_, send, [&](int from, ByteSpan bytes) {
        std::memcpy(receive.data() + from * block, bytes.data() + rank_ * block, block);
      });
    }

   private:
    Meeting& meeting_;
    int rank_;
  };

 private:
  template <class Take>
  kern::Result<void> exchange(int rank, ByteSpan send, Take take) {
    sent_[rank].assign(send.begin(), send.end());
    barrier_.arrive_and_wait();
    for (int from = 0; from < size_; ++from) take(from, sent_[from]);
    barrier_.arrive_and_wait();
    return {};
  }

  int size_;
  std::vector<std::vector<std::byte>> sent_;
  std::barrier<> barrier_;
};

/// Hands the states of a prompt of `length` tokens to a rank: its cut of each line, its positions.
void hand_over(Machine& from, Machine& to, int32_t length, kern::manifest::Member member) {
  for (const auto& state : to.manifest()->states) {
    const auto whole = from.runtime().state(state.name), own = to.runtime().state(state.name);
    if (state.size == kern::manifest::State::Size::per_token) {
      const size_t bytes = static_cast<size_t>(state.bytes);
      for (int32_t p = 0; p < length; ++p)
        if (kern::manifest::member_of(p, member.members) == member.index)
          std::memcpy(own.data() + (64 + kern::manifest::row_of(p, member.members)) * bytes,
                      whole.data() + (64 + p) * bytes, bytes);
      continue;
    }
    const int64_t line = kern::manifest::whole_line_bytes(*state.shard);
    std::byte* at = own.data() + state.bytes;
    for (const auto& range : kern::manifest::line_ranges(*state.shard, member)) {
      std::memcpy(at, whole.data() + line + range.first, static_cast<size_t>(range.size));
      at += range.size;
    }
  }
}

}  // namespace

TEST_CASE("a group of ranks goes on from a handed-over prompt as one rank does", "[k3][ranks]") {
  const k3::Config config = config_of("k3-nano");
  const int32_t length = 100, steps = 6;
  const Tokens tokens = prompt(14, length + steps, config.vocab);
  Machine one(verified(k3::one_rank(config, options("k3-nano"))), checkpoint_of("k3-nano"));
  one.run("prefill", {{Tokens(tokens.begin(), tokens.begin() + length)}});

  for (const int ranks : {2, 4}) {
    Meeting meeting(ranks);
    std::vector<std::unique_ptr<Meeting::Member>> members;
    std::vector<Machine> machines;
    for (int r = 0; r < ranks; ++r) {
      members.push_back(std::make_unique<Meeting::Member>(meeting, r));
      machines.emplace_back(verified(k3::decode(config, options("k3-nano"), ranks)),
                            checkpoint_of("k3-nano"), Place{r, ranks, members.back().get()});
      hand_over(one, machines.back(), length, {r, ranks});
    }
    Machine oracle(verified(k3::one_rank(config, options("k3-nano"))), checkpoint_of("k3-nano"));
    oracle.run("prefill", {{Tokens(tokens.begin(), tokens.begin() + length)}});
    for (int32_t step = 0; step < steps; ++step) {
      const Feed feed{{tokens[length + step]}, length + step};
      std::vector<std::thread> threads;
      for (Machine& machine : machines)
        threads.emplace_back([&machine, &feed] { machine.run("decode", {feed}); });
      for (std::thread& thread : threads) thread.join();
      oracle.run("decode", {feed});
      const auto want = oracle.logits();
      const auto top = oracle.values<float>("top_logprobs", 20);
      for (Machine& machine : machines) {
        CHECK(machine.values<float>("top_logprobs", 20) ==
              machines[0].values<float>("top_logprobs", 20));
        const auto got = machine.values<float>("top_logprobs", 20);
        for (size_t i = 0; i < 5; ++i) CHECK(std::fabs(got[i] - top[i]) < 0.15);
        const int32_t token = machine.values<int32_t>("next_token", 1)[0];
        const float most = *std::max_element(want.begin(), want.end());
        CHECK(most - want[token] < 0.2F);
      }
    }
  }
}
