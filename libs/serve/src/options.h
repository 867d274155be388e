#pragma once
/// Checks of a server's options before it starts.
/// Thread safety: pure functions, but for the reading of a file.

#include <string>
#include <vector>

#include "kern/base/result.h"
#include "kern/serve/api.h"

namespace kern::serve {

/// Keys of a file, one a line; empty lines and those that begin with # are skipped. No path gives
/// no key; a file without one is refused.
Result<std::vector<std::string>> read_keys(const std::string& path);
/// Refuses a limit that is not positive.
Result<void> check_limits(const Limits& limits);

}  // namespace kern::serve
