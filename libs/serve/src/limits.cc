#include "kern/serve/limits.h"

namespace kern::serve {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr int64_t kDayMs = 86'400'000;
constexpr int64_t kMany = 1'000'000;

constexpr LimitFlag kFlags[] = {
    {"max-body-bytes", "largest request body", &Limits::body_bytes_max, 1, kGiB},
    {"max-header-bytes", "largest request head", &Limits::header_bytes_max, 256, 1 << 24},
    {"header-timeout-ms", "time for a request's head", &Limits::header_timeout_ms, 1, kDayMs},
    {"body-timeout-ms", "time for a request's body", &Limits::body_timeout_ms, 1, kDayMs},
    {"idle-timeout-ms", "time a kept connection may be idle", &Limits::idle_timeout_ms, 1, kDayMs},
    {"write-timeout-ms", "time a client may take no byte", &Limits::write_timeout_ms, 1, kDayMs},
    {"max-stream-bytes", "unread bytes before a slow reader is cut", &Limits::stream_bytes_max,
     1024, kGiB},
    {"max-connections", "open connections", &Limits::connections_max, 1, kMany},
    {"max-answers", "answers running or waiting", &Limits::answers_max, 1, kMany},
    {"max-json-depth", "nesting of a body", &Limits::json_depth_max, 1, 1024},
    {"max-n", "answers to one prompt", &Limits::n_max, 1, kMany},
    {"max-prompts", "prompts of one request", &Limits::prompts_max, 1, kMany},
    {"max-logprobs", "alternatives a token", &Limits::top_logprobs_max, 0, 1024},
    {"max-stop-strings", "stop strings of one request", &Limits::stop_strings_max, 0, 4096},
    {"max-stop-bytes", "bytes of one stop string", &Limits::stop_bytes_max, 1, 1 << 20},
};
static_assert(sizeof(kFlags) / sizeof(kFlags[0]) * sizeof(int64_t) == sizeof(Limits),
              "every limit has a flag");

}  // namespace

std::span<const LimitFlag> limit_flags() {
  return kFlags;
}

Result<void> check_limits(const Limits& limits) {
  for (const auto& flag : limit_flags()) {
    const int64_t value = limits.*flag.field;
    if (value < flag.low || value > flag.high)
      return fail(Kind::caller, "limit `{}` must lie within [{}, {}], got {}", flag.name, flag.low,
                  flag.high, value);
  }
  return {};
}

}  // namespace kern::serve
