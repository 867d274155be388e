#include "kern/transport/key.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <fstream>

using namespace kern;
using namespace kern::transport;

namespace {

/// A key file that goes away with the test.
struct KeyFile {
  KeyFile(const std::string& text, mode_t mode)
      : path(std::filesystem::temp_directory_path() /
             fmt::format("kern-key-{}-{}", ::getpid(), text.size())) {
    std::ofstream(path) << text;
    ::chmod(path.c_str(), mode);
  }
  ~KeyFile() { std::filesystem::remove(path); }
  std::filesystem::path path;
};

std::string error_of(const std::filesystem::path& path) {
  const auto key = ClusterKey::read(path);
  REQUIRE_FALSE(key);
  return key.error().text();
}

}  // namespace

TEST_CASE("a key file's trailing white space is no part of the key", "[transport][key]") {
  const KeyFile plain("0123456789abcdef", 0600);
  const KeyFile spaced("0123456789abcdef \r\n\n", 0400);
  const auto a = ClusterKey::read(plain.path);
  const auto b = ClusterKey::read(spaced.path);
  REQUIRE(a);
  REQUIRE(b);
  CHECK(a->sign(as_bytes("x")) == b->sign(as_bytes("x")));
  CHECK(a->fingerprint() == b->fingerprint());
  CHECK(a->fingerprint().size() == 8);
}

TEST_CASE("different keys sign differently", "[transport][key]") {
  const auto a = ClusterKey::from_bytes(as_bytes("0123456789abcdef"));
  const auto b = ClusterKey::from_bytes(as_bytes("0123456789abcdeg"));
  REQUIRE(a);
  REQUIRE(b);
  CHECK(a->sign(as_bytes("x")) != b->sign(as_bytes("x")));
  CHECK(a->fingerprint() != b->fingerprint());
}

TEST_CASE("a key file that others can read is refused", "[transport][key]") {
  for (const mode_t mode : {0644, 0640, 0604, 0660}) {
    const KeyFile file("0123456789abcdef", mode);
    CHECK_THAT(error_of(file.path), Catch::Contains("lets others read or write it"));
  }
}

TEST_CASE("a key that is too short or too long is refused", "[transport][key]") {
  const KeyFile brief("0123456789abcde\n", 0600);
  CHECK_THAT(error_of(brief.path), Catch::Contains("16 to 4096 bytes, got 15"));
  const KeyFile huge(std::string(5000, 'k'), 0600);
  CHECK_THAT(error_of(huge.path), Catch::Contains("cluster key file"));
}

TEST_CASE("a missing key file and a folder are refused by name", "[transport][key]") {
  CHECK_THAT(error_of("/nowhere/key"), Catch::Contains("/nowhere/key"));
  CHECK_THAT(error_of("/tmp"), Catch::Contains("not a regular file"));
}
