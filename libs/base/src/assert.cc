#include "kern/base/assert.h"

#include <cstdio>
#include <cstdlib>

namespace kern::detail {

void assert_failed(const char* file, int line, const char* expression, const std::string& message) {
  fmt::print(stderr, "{}:{}: assertion failed: {} {}\n", file, line, expression, message);
  std::abort();
}

}  // namespace kern::detail
