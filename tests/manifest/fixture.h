#pragma once
/// Manifests to start from, and one change at a time.

#include <string>
#include <string_view>
#include <vector>

#include "kern/manifest/verify.h"

namespace kern_test {

/// fixtures/<name>.json. `base` is the smallest manifest that has one of everything version 7 and
/// the extensions of a cuda manifest know; `pipe` is the smallest that can be cut in three.
std::string fixture(std::string_view name);

/// The text with `from`, which stands in it once, replaced by `to`.
std::string changed(std::string text, std::string_view from, std::string_view to);

/// Verified, or the test fails with the diagnostics.
kern::manifest::Verified verified(std::string_view json);
kern::manifest::Verified verified(kern::manifest::Manifest manifest);
kern::manifest::Manifest parsed(std::string_view json);

/// "pointer: sentence" of each, without the "(line n)" at its end.
std::vector<std::string> lines_of(const kern::manifest::Diagnostics& diagnostics);

}  // namespace kern_test
