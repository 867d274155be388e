#include "kern_test/golden.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <sstream>

#include "kern/base/file.h"

namespace kern_test {

void expect_golden(const std::string& test_dir, const std::string& name, const std::string& text) {
  const std::string path = test_dir + "/golden/" + name;
  if (const char* update = std::getenv("KERN_GOLDEN_UPDATE"); update != nullptr && *update == '1') {
    REQUIRE(kern::write_file(path, kern::as_bytes(text)));
    return;
  }
  const auto want = kern::read_file(path, 64 << 20);
  if (want && *want == text) return;
  (void)kern::write_file(path + ".got", kern::as_bytes(text));
  std::istringstream a(want ? *want : std::string()), b(text);
  std::string line_a, line_b;
  size_t number = 0;
  for (;;) {
    ++number;
    const bool more_a = static_cast<bool>(std::getline(a, line_a));
    const bool more_b = static_cast<bool>(std::getline(b, line_b));
    if (!more_a) line_a = "(end)";
    if (!more_b) line_b = "(end)";
    if (line_a != line_b || (!more_a && !more_b)) break;
  }
  FAIL(path << ":" << number << ": golden has `" << line_a << "`, got `" << line_b << "`; see "
            << path << ".got, and KERN_GOLDEN_UPDATE=1 rewrites it");
}

}  // namespace kern_test
