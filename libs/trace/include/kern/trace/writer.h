#pragma once
/// Events as a Chrome trace: one process, one row a lane, times in microseconds.

#include <filesystem>
#include <span>
#include <string>

#include "kern/base/result.h"
#include "kern/trace/event.h"

namespace kern::trace {

/// The JSON text; `process` names the daemon.
std::string to_chrome_trace(std::string_view process, std::span<const Event> events);
/// Writes it; fails with kind io.
Result<void> write_chrome_trace(const std::filesystem::path& path, std::string_view process,
                                std::span<const Event> events);

}  // namespace kern::trace
