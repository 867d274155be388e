#include "kern/engine/decode.h"

#include <catch2/catch.hpp>

#include "fixtures.h"

using namespace kern;
using namespace kern::engine;
using namespace kern::engine::fixtures;

namespace {

DecodeSequence sequence(uint64_t id, int32_t max_tokens = 10) {
  return {.id = RequestId{id},
          .place = {.slot = static_cast<uint32_t>(id), .pages = {static_cast<uint32_t>(id)}},
          .position = 20,
          .next_token = 3,
          .max_tokens = max_tokens};
}

std::vector<uint64_t> ids(const Item& item) {
  std::vector<uint64_t> all;
  for (const Slice& slice : item.slices) all.push_back(slice.request.value());
  return all;
}

}  // namespace

TEST_CASE("a step feeds each sequence one token at its position", "[engine][decode]") {
  DecodeScheduler decode(4);
  DecodeSequence one = sequence(1);
  one.sampling.seed = 77;
  decode.add(one);
  const auto first = decode.plan(1);
  REQUIRE(first);
  CHECK(first->phase == Phase::decode);
  const Slice& slice = first->slices[0];
  CHECK(slice.start == 20);
  CHECK(slice.tokens == std::vector<Token>{3});
  CHECK(slice.draw == 1);
  CHECK(slice.sampling.seed == 77);
  CHECK(!decode.plan(2));
  const auto outcomes = decode.on_result(result_of(*first, 9));
  REQUIRE(outcomes);
  CHECK(outcomes->front().index == 1);
  CHECK(!outcomes->front().end);
  const auto second = decode.plan(2);
  REQUIRE(second);
  CHECK(second->slices[0].start == 21);
  CHECK(second->slices[0].tokens == std::vector<Token>{9});
  CHECK(second->slices[0].draw == 2);
}

TEST_CASE("a step carries as much of a page table as it reads", "[engine][decode]") {
  DecodeScheduler decode(4, 128);  // pages of 64 tokens on each of two ranks
  DecodeSequence one = sequence(1);
  one.place.pages = {1, 2, 3};
  one.position = 127;
  decode.add(one);
  const auto first = decode.plan(1);
  CHECK(first->slices[0].pages == std::vector<uint32_t>{1});
  REQUIRE(decode.on_result(result_of(*first)));
  CHECK(decode.plan(2)->slices[0].pages == std::vector<uint32_t>{1, 2});
}

TEST_CASE("with more sequences than a step holds, those that waited longest go first",
          "[engine][decode]") {
  DecodeScheduler decode(2);
  for (uint64_t id = 1; id <= 3; ++id) decode.add(sequence(id));
  std::vector<std::vector<uint64_t>> steps;
  for (uint64_t step = 1; step <= 3; ++step) {
    const auto item = decode.plan(step);
    REQUIRE(item);
    steps.push_back(ids(*item));
    REQUIRE(decode.on_result(result_of(*item)));
  }
  CHECK(steps == std::vector<std::vector<uint64_t>>{{1, 2}, {3, 1}, {2, 3}});
}

TEST_CASE("an answer ends by a stop token, by its length or by a bad row, each alone",
          "[engine][decode]") {
  DecodeScheduler decode(4);
  for (uint64_t id = 1; id <= 4; ++id) {
    DecodeSequence one = sequence(id, id == 2 ? 2 : 10);
    one.stop_tokens = {8};
    decode.add(one);
  }
  const auto item = decode.plan(1);
  auto result = result_of(*item, 5);
  result.emitted[0].token = 8;
  result.emitted[2].token = -1;
  const auto outcomes = decode.on_result(result);
  REQUIRE(outcomes);
  REQUIRE(outcomes->size() == 4);
  CHECK((*outcomes)[0].end == EndReason::stop);
  CHECK((*outcomes)[1].end == EndReason::length);
  CHECK((*outcomes)[2].end == EndReason::failed);
  CHECK(!(*outcomes)[3].end);
  CHECK(decode.running() == 1);
  CHECK(ids(*decode.plan(2)) == std::vector<uint64_t>{4});
}

TEST_CASE("a sequence removed during a step is not heard of again, nor mixed with its successor",
          "[engine][decode]") {
  DecodeScheduler decode(4);
  decode.add(sequence(1));
  const auto item = decode.plan(1);
  decode.remove(RequestId{1});
  DecodeSequence again = sequence(1);
  again.position = 50;
  decode.add(again);
  const auto outcomes = decode.on_result(result_of(*item, 9));
  REQUIRE(outcomes);
  CHECK(outcomes->empty());
  const auto next = decode.plan(2);
  CHECK(next->slices[0].start == 50);
  CHECK(next->slices[0].tokens == std::vector<Token>{3});
}

TEST_CASE("a result of another step is a peer error and the step stays out", "[engine][decode]") {
  DecodeScheduler decode(4);
  decode.add(sequence(1));
  const auto item = decode.plan(1);
  auto wrong = result_of(*item);
  wrong.id = 2;
  CHECK(decode.on_result(wrong).error().message == "step result: expected step 1, got 2");
  wrong = result_of(*item);
  wrong.emitted.clear();
  CHECK(!decode.on_result(wrong));
  CHECK(decode.steps_in_flight() == 1);
  CHECK(decode.on_result(result_of(*item)));
}

TEST_CASE("a step behind another takes its tokens and goes one position on", "[engine][decode]") {
  DecodeScheduler decode(4);
  decode.add(sequence(1));
  decode.add(sequence(2));
  const auto first = decode.plan(1, 2);
  REQUIRE(first);
  CHECK(first->slices[1].fed_from == -1);
  decode.add(sequence(3));
  decode.remove(RequestId{1});
  const auto second = decode.plan(2, 2);
  REQUIRE(second);
  CHECK(ids(*second) == std::vector<uint64_t>{2, 3});
  CHECK(second->slices[0].fed_from == 1);
  CHECK(second->slices[0].tokens == std::vector<Token>{0});
  CHECK(second->slices[0].start == 21);
  CHECK(second->slices[0].draw == 2);
  CHECK(second->slices[1].fed_from == -1);
  CHECK(second->slices[1].tokens == std::vector<Token>{3});
  CHECK(second->slices[1].start == 20);
  CHECK(!decode.plan(3, 2));
  CHECK(decode.steps_in_flight() == 2);

  auto outcomes = decode.on_result(result_of(*first, 9));
  REQUIRE(outcomes);
  REQUIRE(outcomes->size() == 1);  // request 1 is gone
  const auto third = decode.plan(3, 2);
  REQUIRE(third);
  CHECK(third->slices[0].fed_from == 0);
  CHECK(third->slices[0].start == 22);
  outcomes = decode.on_result(result_of(*second, 4));
  REQUIRE(outcomes);
  CHECK((*outcomes)[0].index == 2);
  CHECK((*outcomes)[0].emitted.token == 4);
}

TEST_CASE("a sequence that surely ends with a step is not in the one behind it",
          "[engine][decode]") {
  DecodeScheduler decode(4);
  decode.add(sequence(1, 2));
  decode.add(sequence(2, 3));
  const auto first = decode.plan(1, 2), second = decode.plan(2, 2);
  REQUIRE(second);
  CHECK(ids(*second) == std::vector<uint64_t>{2});
  REQUIRE(decode.on_result(result_of(*first)));
  CHECK(!decode.plan(3, 2));  // 2 ends with the second step
  REQUIRE(decode.on_result(result_of(*second)));
  CHECK(decode.running() == 0);
}

TEST_CASE("a sequence that stops with a step leaves a row in the one behind it, which is dropped",
          "[engine][decode]") {
  DecodeScheduler decode(4);
  for (uint64_t id = 1; id <= 2; ++id) {
    DecodeSequence one = sequence(id);
    one.stop_tokens = {8};
    decode.add(one);
  }
  const auto first = decode.plan(1, 2), second = decode.plan(2, 2);
  REQUIRE(second);
  auto result = result_of(*first, 5);
  result.emitted[0].token = 8;
  REQUIRE(decode.on_result(result)->front().end == EndReason::stop);
  CHECK(ids(*decode.plan(3, 2)) == std::vector<uint64_t>{2});
  const auto outcomes = decode.on_result(result_of(*second, 5));
  REQUIRE(outcomes);
  REQUIRE(outcomes->size() == 1);
  CHECK(outcomes->front().id == RequestId{2});
}

TEST_CASE("rows are fed from their own places where not all sequences fit a step",
          "[engine][decode]") {
  DecodeScheduler decode(2);
  for (uint64_t id = 1; id <= 3; ++id) decode.add(sequence(id));
  const auto first = decode.plan(1, 2), second = decode.plan(2, 2);
  CHECK(ids(*first) == std::vector<uint64_t>{1, 2});
  CHECK(ids(*second) == std::vector<uint64_t>{3, 1});
  CHECK(second->slices[0].fed_from == -1);
  CHECK(second->slices[1].fed_from == 0);
  REQUIRE(decode.on_result(result_of(*first, 6)));
  const auto third = decode.plan(3, 2);
  CHECK(ids(*third) == std::vector<uint64_t>{2, 3});
  CHECK(third->slices[0].fed_from == -1);
  CHECK(third->slices[0].tokens == std::vector<Token>{6});
  CHECK(third->slices[1].fed_from == 0);
}
