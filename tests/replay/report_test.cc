#include "replay/report.h"

#include <catch2/catch.hpp>

#include "kern_test/golden.h"

using namespace kern::replay;

TEST_CASE("a report is a line a run, or JSON with every count", "[replay][golden]") {
  const Trace trace{{0, {{"system", 8}}, {{0, 10, 5}, {1000, 6, 3}}}, {500, {}, {{0, 11, 2}}}};
  std::vector<Run> runs;
  for (const uint64_t host_bytes : {0, 10'000}) {
    Setup setup;
    setup.geometry = {.page_tokens = 4,
                      .pages = 101,
                      .slots = 3,
                      .recurrent = true,
                      .row_pages_max = 50,
                      .host_bytes = host_bytes,
                      .page_bytes = 100,
                      .slot_bytes = 1000};
    setup.grid = 4;
    runs.push_back({setup, play(trace, setup)});
  }
  kern_test::expect_golden(KERN_TEST_DIR, "report.txt", table(trace, runs));
  kern_test::expect_golden(KERN_TEST_DIR, "report.json", json(trace, runs));
}
