#pragma once
/// KERN_ASSERT(cond, "format", args…): always on, release builds too. For what only a bug can
/// cause; never reachable from a manifest, a request, a frame or a file. Prints and aborts.
/// KERN_DCHECK(cond): the same in debug builds only, for loops measured to matter.

#include <fmt/format.h>

namespace kern::detail {
[[noreturn, gnu::cold]] void assert_failed(const char* file, int line, const char* expression,
                                           const std::string& message);
}

#define KERN_ASSERT(cond, ...)                                                                 \
  do {                                                                                         \
    if (__builtin_expect(!(cond), 0))                                                          \
      ::kern::detail::assert_failed(__FILE__, __LINE__, #cond, ::fmt::format("" __VA_ARGS__)); \
  } while (false)

#ifdef NDEBUG
#define KERN_DCHECK(cond) ((void)0)
#else
#define KERN_DCHECK(cond) KERN_ASSERT(cond)
#endif
