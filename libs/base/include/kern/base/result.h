#pragma once
/// Result<T>: a value or an Error, never ignored.
/// `KERN_TRY(name, expr);` declares `name` as the value or returns the error;
/// `KERN_TRY_VOID(expr);` does the same for Result<void>.

#include <utility>

#include "kern/base/error.h"

namespace kern {

/// A T or an Error. Check with `if (!r)`, then dereference; `.value()` is not used in this project.
template <class T>
class [[nodiscard]] Result : public tl::expected<T, Error> {
 public:
  using tl::expected<T, Error>::expected;
};

/// Adds one line of context to a failed result on its way up; a success passes unchanged.
template <class T, class... Args>
Result<T> with_context(Result<T> result, fmt::format_string<Args...> format, Args&&... args) {
  if (!result) result.error().context.push_back(fmt::format(format, std::forward<Args>(args)...));
  return result;
}

}  // namespace kern

#define KERN_CONCAT_(a, b) a##b
#define KERN_CONCAT(a, b) KERN_CONCAT_(a, b)
#define KERN_TRY_(tmp, name, expr)                                          \
  auto tmp = (expr);                                                        \
  if (!tmp) return ::tl::unexpected<::kern::Error>(std::move(tmp.error())); \
  auto name = std::move(*tmp)
#define KERN_TRY(name, expr) KERN_TRY_(KERN_CONCAT(kern_try_, __LINE__), name, expr)
#define KERN_TRY_VOID(expr)                                                     \
  do {                                                                          \
    if (auto kern_try_void = (expr); !kern_try_void)                            \
      return ::tl::unexpected<::kern::Error>(std::move(kern_try_void.error())); \
  } while (false)
