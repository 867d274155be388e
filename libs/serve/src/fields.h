#pragma once
/// Reads typed fields of a request body. The first thing that is wrong is kept and every later read
/// gives its fallback, so a reader asks for all it wants and looks at `error` once.
/// Thread safety: one thread each. Lifetime: the document outlives it.

#include <optional>
#include <string>
#include <string_view>

#include "api_error.h"
#include "json.h"

namespace kern::serve {

class Fields {
 public:
  /// `object` must be an object; a key that stands twice is refused.
  explicit Fields(Json object);

  std::optional<Json> get(std::string_view name) const { return object_.get(name); }
  bool boolean(std::string_view name, bool fallback);
  double number(std::string_view name, double fallback, double low, double high);
  std::optional<int64_t> integer(std::string_view name, int64_t low, int64_t high);
  std::optional<std::string> string(std::string_view name);

  /// Records a refusal unless there is one already.
  void refuse(std::string_view name, std::string message, std::string code = {});
  const std::optional<ApiError>& error() const { return error_; }

 private:
  void refuse_type(std::string_view name, std::string_view wanted, const Json& got);

  Json object_;
  std::optional<ApiError> error_;
};

}  // namespace kern::serve
