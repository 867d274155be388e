#pragma once
/// What a server's options name and has to be read before it starts.
/// Thread safety: any.

#include <string>
#include <vector>

#include "kern/base/result.h"

namespace kern::serve {

/// Keys of a file, one a line; empty lines and those that begin with # are skipped. No path gives
/// no key; a file without one is refused.
Result<std::vector<std::string>> read_keys(const std::string& path);

}  // namespace kern::serve
