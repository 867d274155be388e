#pragma once
/// The front's own counters and histograms as Prometheus text: how requests came and went, and the
/// latencies their clients saw. All counters are kept, none is scanned.
/// Thread safety: one thread.

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "kern/base/clock.h"
#include "kern/serve/api.h"

namespace kern::serve {

/// Durations counted below rising bounds.
class DurationHistogram {
 public:
  void add(TimeNs duration);
  /// Appends one Prometheus histogram; `labels` are without braces.
  void print(std::string& out, std::string_view name, std::string_view labels) const;

  static constexpr std::array<double, 18> kBoundsSeconds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
                                                            0.1,   0.25,   0.5,   1.0,  2.5,   5.0,
                                                            10.0,  30.0,   60.0,  120,  300,   600};

 private:
  std::array<uint64_t, kBoundsSeconds.size() + 1> counts_{};
  uint64_t count_ = 0;
  TimeNs sum_ = 0;
};

enum class Ended : uint8_t { stop, length, tool_calls, abort, error };
inline constexpr size_t kEndedKinds = 5;
std::string_view to_string(Ended ended);

struct HttpMetrics {
  std::map<std::pair<std::string, int>, uint64_t> requests;  ///< by route and status
  std::array<uint64_t, kEndedKinds> ended{};                 ///< answers, by how they ended
  uint64_t prompt_tokens = 0;
  uint64_t cached_tokens = 0;
  uint64_t generation_tokens = 0;
  uint64_t answers_open = 0;
  DurationHistogram first_token, between_tokens, end_to_end;

  std::string print(const std::string& model, const Api::ConnectionCounts& connections) const;
};

}  // namespace kern::serve
