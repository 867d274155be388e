#include "kern/trace/recorder.h"

#include <catch2/catch.hpp>

#include "kern/trace/writer.h"

using namespace kern::trace;

TEST_CASE("a full ring keeps the newest events, oldest first", "[trace][recorder]") {
  Recorder recorder(3);
  for (uint64_t i = 0; i < 5; ++i)
    recorder.add({"device", "run", i, static_cast<int64_t>(i), static_cast<int64_t>(i + 1)});
  const auto kept = recorder.snapshot();
  REQUIRE(kept.size() == 3);
  CHECK(kept[0].id == 2);
  CHECK(kept[2].id == 4);
  CHECK(recorder.added() == 5);
}

TEST_CASE("a trace names its process and lanes and quotes them", "[trace][writer]") {
  const Event event{"a \"b\"", "run", 7, 1000, 3500};
  const std::string json = to_chrome_trace("stage 0", std::span(&event, 1));
  CHECK(json.find(R"("args":{"name":"stage 0"})") != std::string::npos);
  CHECK(json.find(R"("a \"b\"")") != std::string::npos);
  CHECK(json.find(R"("ts":1.000,"dur":2.500,"args":{"id":7})") != std::string::npos);
}
