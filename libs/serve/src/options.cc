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

}  // namespace kern::serve
