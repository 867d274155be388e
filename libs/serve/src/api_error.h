#pragma once
/// A request's refusal, on its way to becoming an error body.
/// Thread safety: plain value.

#include <string>
#include <tl/expected.hpp>

#include "kern/base/result.h"
#include "kern/serve/api.h"

namespace kern::serve {

struct ApiError {
  int status = 400;
  std::string message;
  std::string param;  ///< the field at fault, or empty
  std::string code;   ///< a word clients branch on, or empty
};

template <class T>
using Outcome = tl::expected<T, ApiError>;

/// {"error": {"message", "type", "param", "code"}}.
std::string error_json(const ApiError& error);
/// With Retry-After on 429 and 503.
HttpResponse error_reply(const ApiError& error, int32_t retry_after_s);
/// A caller error of another library as a 400, with its context.
ApiError bad_request(const Error& error, std::string param);

}  // namespace kern::serve
