#pragma once
/// One line a fact, to stderr: "2026-01-31T12:00:00.000Z info name: text".
/// Built in main and passed down; there is no global logger.
/// Thread safety: lines from several threads do not mix.

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "kern/base/result.h"

namespace kern {

enum class Level { debug, info, warn, error, off };

/// "debug" … "off", or a caller error that lists them.
Result<Level> parse_level(std::string_view word);

class Log {
 public:
  /// `name` stands in every line: the daemon and its place, "prefill-stage 3".
  Log(std::string name, Level level) : name_(std::move(name)), level_(level) {}

  template <class... Args>
  void debug(fmt::format_string<Args...> format, Args&&... args) const {
    write(Level::debug, format, fmt::make_format_args(args...));
  }
  template <class... Args>
  void info(fmt::format_string<Args...> format, Args&&... args) const {
    write(Level::info, format, fmt::make_format_args(args...));
  }
  template <class... Args>
  void warn(fmt::format_string<Args...> format, Args&&... args) const {
    write(Level::warn, format, fmt::make_format_args(args...));
  }
  template <class... Args>
  void error(fmt::format_string<Args...> format, Args&&... args) const {
    write(Level::error, format, fmt::make_format_args(args...));
  }

 private:
  void write(Level level, fmt::string_view format, fmt::format_args args) const;

  std::string name_;
  Level level_;
};

}  // namespace kern
