#pragma once
// KERN_POOL_ASSERT(cond, "what must hold"): always on; for what only a bug can cause. Prints,
// aborts. The library's own, because it depends on the standard library alone.

namespace kern::pool::detail {
[[noreturn, gnu::cold]] void assert_failed(const char* file, int line, const char* expression,
                                           const char* rule);
}

#define KERN_POOL_ASSERT(cond, rule)                                           \
  do {                                                                         \
    if (__builtin_expect(!(cond), 0))                                          \
      ::kern::pool::detail::assert_failed(__FILE__, __LINE__, #cond, "" rule); \
  } while (false)
