#pragma once
/// The error value every fallible function of this project returns.
/// A kind says who must act; the message names the object, what was expected and what was got;
/// the context lines are added by callers on the way up.
/// Thread safety: plain value.
/// Does not: carry codes to branch on; an outcome a caller branches on has its own small type.

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

namespace kern {

/// Who acts on an error.
enum class Kind {
  manifest,         ///< the model provider: refuse to start
  kernel_artifact,  ///< whoever built the pinned modules: refuse to start
  weight_artifact,  ///< whoever exported the checkpoint: refuse to start
  caller,           ///< the client or programmer: fail the request, keep running
  busy,             ///< nobody: try later
  peer,             ///< the other node: drop the link, fail what depended on it
  device,           ///< the operator: the device context is gone
  io,               ///< the operator: file system or socket
};

/// Lower-case word for a kind, for logs.
std::string_view to_string(Kind kind);

struct Error {
  Kind kind;
  std::string message;               ///< lower case, no full stop
  std::vector<std::string> context;  ///< innermost first

  /// "context: context: message", outermost context first.
  std::string text() const;
};

namespace detail {
[[gnu::cold]] tl::unexpected<Error> fail_formatted(Kind kind, fmt::string_view format,
                                                   fmt::format_args args);
}  // namespace detail

/// Builds the failure side of a Result: `return fail(Kind::caller, "got {}", x);`
template <class... Args>
[[gnu::cold]] tl::unexpected<Error> fail(Kind kind, fmt::format_string<Args...> format,
                                         Args&&... args) {
  return detail::fail_formatted(kind, format, fmt::make_format_args(args...));
}

}  // namespace kern
