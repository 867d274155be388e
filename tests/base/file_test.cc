#include "kern/base/file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>

using namespace kern;

TEST_CASE("what is no regular file is refused at once, a pipe that nobody writes to as well",
          "[base][file]") {
  const auto folder =
      std::filesystem::temp_directory_path() / ("kern-file-test-" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  const auto pipe = folder / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  for (const std::filesystem::path& path : {pipe, folder, std::filesystem::path("/dev/zero")}) {
    INFO(path.string());
    const auto read = read_file(path, 100);
    REQUIRE_FALSE(read);
    CHECK(read.error().message == "`" + path.string() + "` is not a regular file");
    CHECK_FALSE(MappedFile::open(path));
  }
  std::filesystem::remove_all(folder);
}
