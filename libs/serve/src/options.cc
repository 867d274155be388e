#include "options.h"

#include <algorithm>
#include <utility>

#include "kern/base/file.h"

namespace kern::serve {
namespace {

constexpr size_t kKeyFileBytesMax = size_t{1} << 20;

}  // namespace

Result<std::vector<std::string>> read_keys(const std::string& path) {
  std::vector<std::string> keys;
  if (path.empty()) return keys;
  KERN_TRY(text, with_context(read_file(path, kKeyFileBytesMax), "API key file"));
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (!line.empty() && line[0] != '#') keys.push_back(std::move(line));
    at = end + 1;
  }
  if (keys.empty()) return fail(Kind::caller, "API key file `{}` holds no key", path);
  return keys;
}

Result<void> check_limits(const Limits& limits) {
  const std::pair<const char*, int64_t> positive[] = {
      {"body_bytes_max", static_cast<int64_t>(limits.body_bytes_max)},
      {"header_bytes_max", static_cast<int64_t>(limits.header_bytes_max)},
      {"header_timeout_ms", limits.header_timeout_ms},
      {"body_timeout_ms", limits.body_timeout_ms},
      {"idle_timeout_ms", limits.idle_timeout_ms},
      {"write_timeout_ms", limits.write_timeout_ms},
      {"stream_bytes_max", static_cast<int64_t>(limits.stream_bytes_max)},
      {"connections_max", limits.connections_max},
      {"queue_max", limits.queue_max},
      {"json_depth_max", limits.json_depth_max},
      {"n_max", limits.n_max},
      {"prompts_max", limits.prompts_max}};
  for (const auto& [name, value] : positive)
    if (value <= 0) return fail(Kind::caller, "limit `{}` must be positive, got {}", name, value);
  return {};
}

}  // namespace kern::serve
