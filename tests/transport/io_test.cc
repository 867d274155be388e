#include "kern/transport/io.h"

#include <unistd.h>

#include <csignal>

#include "loop.h"

using namespace kern_test;

TEST_CASE("timers fire in the order of their times", "[transport][io]") {
  IoContext io;
  std::string order;
  Timer late(io), early(io);
  late.after(20 * kMillisecondNs, [&] { order += "b"; });
  early.after(5 * kMillisecondNs, [&] { order += "a"; });
  CHECK(run_until(io, [&] { return order.size() == 2; }));
  CHECK(order == "ab");
}

TEST_CASE("a timer that was set again, cancelled or destroyed does not fire", "[transport][io]") {
  IoContext io;
  std::string fired;
  Timer again(io), cancelled(io);
  auto destroyed = std::make_unique<Timer>(io);
  again.after(0, [&] { fired += "x"; });
  again.after(kMillisecondNs, [&] { fired += "a"; });
  cancelled.after(0, [&] { fired += "c"; });
  cancelled.cancel();
  destroyed->after(0, [&] { fired += "d"; });
  destroyed.reset();
  CHECK_FALSE(run_until(
      io, [&] { return fired.size() > 1; }, 30 * kMillisecondNs));
  CHECK(fired == "a");
}

TEST_CASE("a timer may be destroyed by what it calls", "[transport][io]") {
  IoContext io;
  auto timer = std::make_unique<Timer>(io);
  const std::string kept(100, 'x');
  std::string seen;
  timer->after(0, [&, kept] {
    timer.reset();
    seen = kept;
  });
  CHECK(run_until(io, [&] { return seen == kept; }));
}

TEST_CASE("a watch tells once when bytes come and again when asked again", "[transport][io]") {
  IoContext io;
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const Socket read_end(ends[0]), write_end(ends[1]);
  int told = 0;
  {
    Watch watch(io, read_end.fd());
    watch.readable([&] { ++told; });
    CHECK_FALSE(run_until(
        io, [&] { return told > 0; }, 10 * kMillisecondNs));
    REQUIRE(::write(write_end.fd(), "x", 1) == 1);
    CHECK(run_until(io, [&] { return told == 1; }));
    watch.readable([&] { ++told; });
    CHECK(run_until(io, [&] { return told == 2; }));
    watch.readable([&] { ++told; });
  }
  CHECK_FALSE(run_until(
      io, [&] { return told > 2; }, 10 * kMillisecondNs));
}

TEST_CASE("posts from other threads run on the context's thread in order", "[transport][io]") {
  LoopThread loop;
  std::vector<int> got;
  for (int i = 0; i < 100; ++i) loop.io.post([&got, i] { got.push_back(i); });
  loop.on_loop([] {});
  REQUIRE(got.size() == 100);
  CHECK(std::is_sorted(got.begin(), got.end()));
}

TEST_CASE("a signal reaches its callback every time", "[transport][io]") {
  IoContext io;
  int count = 0;
  REQUIRE(io.on_signals({SIGUSR1}, [&](int number) { count += number == SIGUSR1 ? 1 : 100; }));
  ::raise(SIGUSR1);
  CHECK(run_until(io, [&] { return count == 1; }));
  ::raise(SIGUSR1);
  CHECK(run_until(io, [&] { return count == 2; }));
}
