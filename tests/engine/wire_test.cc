#include "kern/engine/wire.h"

#include <catch2/catch.hpp>

#include "fixtures.h"
#include "kern/base/prng.h"

using namespace kern;
using namespace kern::engine;
using namespace kern::engine::fixtures;

namespace {

Item item() {
  Item item{.id = 12,
            .phase = Phase::decode,
            .moves = {{Move::What::park_page, 1, 2}, {Move::What::wake_slot, 3, 4}},
            .after_moves = 11,
            .zero_slots = {3},
            .page_copies = {{4, 5}},
            .slot_copies = {{6, 7}, {8, 9}}};
  Slice slice{.request = RequestId{1},
              .slot = 2,
              .snapshot_slot = 3,
              .start = 64,
              .pages = {9, 8, 7},
              .tokens = {100, 200},
              .emits = true,
              .draw = 4,
              .top_logprobs = 5};
  slice.sampling = {.temperature = 0.5F, .top_p = 0.9F, .top_k = 40, .min_p = 0.01F, .seed = 77};
  item.slices = {slice, slice};
  return item;
}

ItemResult result() {
  Emitted emitted{.request = RequestId{1},
                  .token = 5,
                  .failed = true,
                  .logprob = -0.5F,
                  .top = {{1, -0.25F}, {2, -1.5F}}};
  return {.id = 12, .emitted = {emitted, emitted}, .moved = 9};
}

std::vector<StageCommand> stage_commands() {
  return {ResetEpoch{3},
          RunItem{3, item()},
          SendState{3, RequestId{1}, Generation{2}, GroupId{4}, 12, 200, {1, {2, 3}}, {4, {5}}},
          CancelSend{Generation{2}},
          GroupUp{GroupId{4}, hello(2)},
          GroupGone{GroupId{4}}};
}
std::vector<StageReport> stage_reports() {
  return {EpochReady{3}, ItemDone{3, result()}, PartsSent{Generation{2}, false, "cancelled"}};
}
std::vector<GroupCommand> group_commands() {
  return {Ask{RequestId{1}, Generation{2}, 200, 30, {0.5F, 1, 2, 0, 7}, {1, 2}, 3, kSecondNs},
          Begin{Generation{2}, 5}, Abort{Generation{2}}};
}
std::vector<GroupReport> group_reports() {
  GroupHello sharded = hello(2);
  sharded.states[1].shard = HandoffState::Shard::heads;
  sharded.states[1].segments = {{1, 65536}, {9, 512}};
  return {sharded,
          Granted{Generation{2}, {1, {2, 3}}},
          Refused{Generation{2}, RefusalReason::exceeds_row},
          Landed{Generation{2}},
          StepTokens{{{Generation{2}, 7, result().emitted[0]}}},
          Ended{Generation{2}, EndReason::landing_failed, "why"},
          Released{Generation{2}}};
}
std::vector<RankCommand> rank_commands() {
  return {ResetEpoch{3}, RunItem{3, item()},
          ExpectParts{3, RequestId{1}, Generation{2}, 200, {1, {2, 3}}},
          StopExpecting{Generation{2}}};
}
std::vector<RankReport> rank_reports() {
  return {EpochReady{3}, ItemDone{3, result()}, RankExpecting{3, Generation{2}},
          RankLanded{3, Generation{2}, false, "part `kv`"}};
}

/// Every message reads back to the same bytes, and no beginning of it reads at all.
template <class T, class Decode>
void check_round_trip(const std::vector<T>& messages, Decode decode) {
  for (const T& message : messages) {
    const auto bytes = encode(message);
    const auto read = decode(bytes, WireLimits{});
    REQUIRE(read);
    CHECK(read->index() == message.index());
    CHECK(encode(*read) == bytes);
    for (size_t length = 0; length < bytes.size(); ++length) {
      const auto cut = decode(ByteSpan(bytes).first(length), WireLimits{});
      REQUIRE(!cut);
      REQUIRE(cut.error().kind == Kind::peer);
    }
    auto longer = bytes;
    longer.push_back(std::byte{0});
    CHECK(!decode(longer, WireLimits{}));
  }
}

template <class T, class Decode>
void check_noise(const std::vector<T>& messages, Decode decode, Prng& prng) {
  for (const T& message : messages)
    for (int round = 0; round < 300; ++round) {
      auto bytes = encode(message);
      for (uint64_t flips = 1 + prng.below(4); flips > 0; --flips)
        bytes[prng.below(bytes.size())] = static_cast<std::byte>(prng.next());
      const auto read = decode(bytes, WireLimits{});
      // what still reads is a message again; what does not is the peer's fault
      if (read)
        REQUIRE(encode(*read) == bytes);
      else
        REQUIRE(read.error().kind == Kind::peer);
    }
}

}  // namespace

TEST_CASE("every message reads back whole and never in part", "[engine][wire]") {
  check_round_trip(stage_commands(), decode_stage_command);
  check_round_trip(stage_reports(), decode_stage_report);
  check_round_trip(group_commands(), decode_group_command);
  check_round_trip(group_reports(), decode_group_report);
  check_round_trip(rank_commands(), decode_rank_command);
  check_round_trip(rank_reports(), decode_rank_report);
}

TEST_CASE("altered bytes are another message or a peer error", "[engine][wire][prop]") {
  Prng prng(11);
  check_noise(stage_commands(), decode_stage_command, prng);
  check_noise(stage_reports(), decode_stage_report, prng);
  check_noise(group_commands(), decode_group_command, prng);
  check_noise(group_reports(), decode_group_report, prng);
  check_noise(rank_commands(), decode_rank_command, prng);
  check_noise(rank_reports(), decode_rank_report, prng);
}

TEST_CASE("an item keeps every field", "[engine][wire]") {
  const auto read = decode_item(encode(item()), WireLimits{});
  REQUIRE(read);
  CHECK(read->id == 12);
  CHECK(read->phase == Phase::decode);
  CHECK(read->moves == item().moves);
  CHECK(read->after_moves == 11);
  CHECK(read->zero_slots == std::vector<uint32_t>{3});
  CHECK(read->page_copies == std::vector<Copy>{{4, 5}});
  CHECK(read->slot_copies == std::vector<Copy>{{6, 7}, {8, 9}});
  REQUIRE(read->slices.size() == 2);
  const Slice& slice = read->slices[1];
  CHECK(slice.request == RequestId{1});
  CHECK(slice.slot == 2);
  CHECK(slice.snapshot_slot == 3);
  CHECK(slice.start == 64);
  CHECK(slice.pages == std::vector<uint32_t>{9, 8, 7});
  CHECK(slice.tokens == std::vector<Token>{100, 200});
  CHECK(slice.emits);
  CHECK(slice.sampling == item().slices[0].sampling);
  CHECK(slice.draw == 4);
  CHECK(slice.top_logprobs == 5);
}

TEST_CASE("a move of no known kind is the peer's fault", "[engine][wire]") {
  Item odd = item();
  odd.moves[1].what = static_cast<Move::What>(4);
  const auto read = decode_item(encode(odd), WireLimits{});
  REQUIRE(!read);
  CHECK(read.error().kind == Kind::peer);
}

TEST_CASE("a part's header and its answer read back", "[engine][wire]") {
  const PartHeader header{RequestId{1}, Generation{2}, "kv.3", 200, 4096, 0xABCDEF};
  const auto read = decode_part_header(encode(header), WireLimits{});
  REQUIRE(read);
  CHECK(*read == header);
  const auto taken = decode_part_taken(encode(PartTaken{Generation{2}, "kv.3", true}), {});
  REQUIRE(taken);
  CHECK(taken->generation == Generation{2});
  CHECK(taken->whole);
}

TEST_CASE("a count beyond its limit is refused before anything is allocated", "[engine][wire]") {
  Item large = item();
  large.slices[0].pages.assign(100, 1);
  WireLimits limits;
  limits.pages_max = 99;
  CHECK(!decode_item(encode(large), limits));
  limits.pages_max = 100;
  CHECK(decode_item(encode(large), limits));
  limits.slices_max = 1;
  CHECK(!decode_item(encode(large), limits));
  // four thousand million emitted tokens in four bytes
  ByteWriter out;
  out.put(MessageType::item_done);
  out.put<uint64_t>(1);
  out.put<uint64_t>(1);
  out.put<uint64_t>(1);
  out.put<uint32_t>(0xFFFFFFFF);
  CHECK(!decode_stage_report(out.view(), WireLimits{}));
}

TEST_CASE("a message of another kind is named by its type", "[engine][wire]") {
  const auto read = decode_group_command(encode(StageCommand(ResetEpoch{1})), WireLimits{});
  REQUIRE(!read);
  CHECK(read.error().message == "command to a group: message type 1 is not one of its kind");
}
