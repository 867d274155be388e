#include "kern/base/error.h"

namespace kern {

std::string_view to_string(Kind kind) {
  switch (kind) {
    case Kind::manifest:
      return "manifest";
    case Kind::kernel_artifact:
      return "kernel artifact";
    case Kind::weight_artifact:
      return "weight artifact";
    case Kind::caller:
      return "caller";
    case Kind::busy:
      return "busy";
    case Kind::peer:
      return "peer";
    case Kind::device:
      return "device";
    case Kind::io:
      return "io";
  }
  return "unknown";
}

std::string Error::text() const {
  std::string out;
  for (auto it = context.rbegin(); it != context.rend(); ++it) out += *it + ": ";
  return out + message;
}

namespace detail {
tl::unexpected<Error> fail_formatted(Kind kind, fmt::string_view format, fmt::format_args args) {
  return tl::unexpected<Error>(Error{kind, fmt::vformat(format, args), {}});
}
}  // namespace detail

}  // namespace kern
