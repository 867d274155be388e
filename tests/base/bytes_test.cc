#include "kern/base/bytes.h"

#include <catch2/catch.hpp>

using namespace kern;

TEST_CASE("what a writer puts a reader gets back", "[base][bytes]") {
  ByteWriter w;
  w.put(uint32_t{7});
  w.put(-1.5);
  w.put_text("page");
  w.put_vector(std::vector<int32_t>{1, -2, 3});
  ByteReader r(w.view());
  CHECK(r.get<uint32_t>() == 7);
  CHECK(r.get<double>() == -1.5);
  CHECK(r.get_text(100) == "page");
  CHECK(r.get_vector<int32_t>(100) == std::vector<int32_t>{1, -2, 3});
  CHECK(r.finish("message"));
}

TEST_CASE("every strict prefix of a message is refused", "[base][bytes]") {
  ByteWriter w;
  w.put(uint64_t{7});
  w.put_vector(std::vector<int32_t>{1, 2});
  for (size_t n = 0; n < w.view().size(); ++n) {
    ByteReader r(w.view().first(n));
    r.get<uint64_t>();
    r.get_vector<int32_t>(10);
    CHECK_FALSE(r.finish("message"));
  }
}

TEST_CASE("a count above its limit is refused before anything is allocated", "[base][bytes]") {
  ByteWriter w;
  w.put(uint32_t{0xFFFFFFFF});
  ByteReader r(w.view());
  CHECK(r.get_vector<int64_t>(1000).empty());
  CHECK_FALSE(r.ok());
}

TEST_CASE("bytes left over are refused", "[base][bytes]") {
  ByteWriter w;
  w.put(uint32_t{1});
  w.put(uint8_t{1});
  ByteReader r(w.view());
  r.get<uint32_t>();
  const auto end = r.finish("message");
  REQUIRE_FALSE(end);
  CHECK(end.error().text() == "`message`: 1 bytes left over after the message");
}
