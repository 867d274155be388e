// Gives every file of the folders named to the target, in order of their names: the corpus as a
// test, for compilers without libFuzzer.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <vector>

#include "kern/base/file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

int main(int argc, char** argv) {
  std::vector<std::filesystem::path> files;
  for (int i = 1; i < argc; ++i)
    for (const auto& entry : std::filesystem::directory_iterator(argv[i]))
      files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  for (const auto& file : files) {
    const auto bytes = kern::read_file(file, size_t{1} << 24);
    if (!bytes) {
      fmt::print("{}\n", bytes.error().text());
      return 1;
    }
    // A failure aborts, so the name comes first.
    fmt::print("{}\n", file.string());
    std::fflush(stdout);
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes->data()), bytes->size());
  }
  fmt::print("{} passed, {} failed\n", files.size(), files.empty() ? 1 : 0);
  return files.empty() ? 1 : 0;
}
