#include "kern/node/join.h"

#include <catch2/catch.hpp>

using namespace kern;
using namespace kern::node;

namespace {

std::vector<JoinMessage> samples() {
  engine::ExecutorLimits limits;
  limits.prefill_rows_max = 512;
  limits.pages = 100;
  limits.slots = 9;
  limits.host_bytes = 1000;
  limits.host_page_bytes = 10;
  limits.host_slot_bytes = 30;
  return {MemberJoin{3, 8, limits, "127.0.0.1:9"}, EpochAddress{7, "127.0.0.1:10"},
          EpochPeers{8, {"a:1", "b:2"}}, MemberTimes{1, 2, 3, 4, 5}};
}

}  // namespace

TEST_CASE("a join message comes back as it was sent", "[node][join]") {
  for (const JoinMessage& message : samples()) {
    const auto bytes = encode(message);
    const auto back = decode_join(bytes);
    REQUIRE(back);
    CHECK(back->index() == message.index());
    CHECK(encode(*back) == bytes);
  }
}

TEST_CASE("a join message that is cut or longer is refused", "[node][join]") {
  for (const JoinMessage& message : samples()) {
    auto bytes = encode(message);
    for (size_t n = 0; n < bytes.size(); ++n) CHECK_FALSE(decode_join(ByteSpan(bytes).first(n)));
    bytes.push_back(std::byte{0});
    CHECK_FALSE(decode_join(bytes));
  }
  const std::byte unknown[] = {std::byte{99}};
  CHECK_FALSE(decode_join(unknown));
}

TEST_CASE("together members allow the least of each, and zero bounds nothing", "[node][join]") {
  engine::ExecutorLimits a, b;
  a.pages = 10, b.pages = 0;
  a.slots = 5, b.slots = 3;
  a.context_max = 0, b.context_max = 64;
  const auto both = tightest(a, b);
  a.host_bytes = 1000, b.host_bytes = 900;
  a.host_page_bytes = 0, b.host_page_bytes = 7;
  a.host_slot_bytes = 30, b.host_slot_bytes = 20;
  const auto tiers = tightest(a, b);
  CHECK(tiers.host_bytes == 900);
  CHECK(tiers.host_page_bytes == 7);
  CHECK(tiers.host_slot_bytes == 30);
  CHECK(tightest(a, {}).host_bytes == 0);
  CHECK(both.pages == 10);
  CHECK(both.slots == 3);
  CHECK(both.context_max == 64);
}
