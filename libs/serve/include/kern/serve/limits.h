#pragma once
/// Every limit of the front, with its unit in its name, and the table that turns them into flags:
/// whoever parses a command line walks `limit_flags` and sets the fields.
/// Thread safety: plain values.
/// Does not: read command lines.

#include <cstdint>
#include <span>

#include "kern/base/result.h"

namespace kern::serve {

struct Limits {
  int64_t body_bytes_max = int64_t{16} << 20;
  int64_t header_bytes_max = int64_t{64} << 10;
  int64_t header_timeout_ms = 10'000;  ///< from the first byte of a request to its blank line
  int64_t body_timeout_ms = 60'000;    ///< from the blank line to the last byte of the body
  int64_t idle_timeout_ms = 75'000;    ///< a kept connection without a request
  int64_t write_timeout_ms = 60'000;   ///< a peer that takes no byte at all
  int64_t stream_bytes_max = int64_t{4} << 20;  ///< unread bytes of a stream before it is cut
  int64_t connections_max = 4096;
  int64_t answers_max = 8192;  ///< answers running or waiting, over all requests
  int64_t json_depth_max = 64;
  int64_t n_max = 128;
  int64_t prompts_max = 1024;     ///< prompts of one completions request
  int64_t top_logprobs_max = 20;  ///< fewer where the engine gives fewer
  int64_t stop_strings_max = 16;
  int64_t stop_bytes_max = 1024;  ///< bytes of one stop string
};

/// One limit as a flag of a daemon.
struct LimitFlag {
  const char* name;  ///< without its dashes
  const char* help;
  int64_t Limits::*field;
  int64_t low, high;
};

/// All of them, one a field.
std::span<const LimitFlag> limit_flags();
/// A caller error that names the first limit out of its range.
Result<void> check_limits(const Limits& limits);

}  // namespace kern::serve
