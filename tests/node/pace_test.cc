#include "kern/node/pace.h"

#include <catch2/catch.hpp>
#include <vector>

using namespace kern;
using namespace kern::node;

TEST_CASE("a connection that lasted is dialed again soon, one that ended at once is not",
          "[node][pace]") {
  Redial redial;
  TimeNs now = 100 * kSecondNs;
  std::vector<TimeNs> pauses;
  for (int i = 0; i < 10; ++i) {
    redial.connected(now);
    pauses.push_back(redial.pause(now + kMillisecondNs));
    now += kSecondNs;
  }
  CHECK(pauses.front() == 50 * kMillisecondNs);
  for (size_t i = 1; i < pauses.size(); ++i) CHECK(pauses[i] >= pauses[i - 1]);
  CHECK(pauses.back() == 5 * kSecondNs);
  redial.connected(now);
  CHECK(redial.pause(now + 5 * kSecondNs) == 0);
}

TEST_CASE("the same reason is told once until a connection has lasted", "[node][pace]") {
  Redial redial;
  CHECK(redial.is_news("no key"));
  CHECK(!redial.is_news("no key"));
  CHECK(redial.is_news("another key"));
  redial.connected(kSecondNs);
  (void)redial.pause(2 * kSecondNs);
  CHECK(!redial.is_news("another key"));
  redial.connected(3 * kSecondNs);
  (void)redial.pause(60 * kSecondNs);
  CHECK(redial.is_news("another key"));
}

TEST_CASE("lines beyond a window's are counted and the count is told once", "[node][pace]") {
  Throttle throttle(2, 10);
  CHECK(throttle.next(0).write);
  CHECK(throttle.next(1).write);
  for (TimeNs now = 2; now < 9; ++now) CHECK(!throttle.next(now).write);
  const auto later = throttle.next(10);
  CHECK(later.write);
  CHECK(later.held_back == 7);
  CHECK(throttle.next(11).held_back == 0);
  CHECK(!throttle.next(12).write);
  CHECK(throttle.next(1000).held_back == 1);
}
