#include "kern/base/log.h"

#include <unistd.h>

#include <array>
#include <chrono>
#include <ctime>

namespace kern {
namespace {

constexpr std::array<std::string_view, 5> kWords = {"debug", "info", "warn", "error", "off"};

}  // namespace

Result<Level> parse_level(std::string_view word) {
  for (size_t i = 0; i < kWords.size(); ++i)
    if (word == kWords[i]) return static_cast<Level>(i);
  return fail(Kind::caller, "log level `{}`: expected debug, info, warn, error or off", word);
}

void Log::write(Level level, fmt::string_view format, fmt::format_args args) const {
  if (level < level_) return;
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  const std::string line =
      fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z {} {}: {}\n", utc.tm_year + 1900,
                  utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec, ms,
                  kWords[static_cast<size_t>(level)], name_, fmt::vformat(format, args));
  // One write a line, so that lines of several threads and processes stay whole.
  [[maybe_unused]] const ssize_t n = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace kern
