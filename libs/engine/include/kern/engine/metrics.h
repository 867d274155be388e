#pragma once
/// Counters that a head keeps as it goes; nothing is scanned to read them.
/// Thread safety: plain values; a shell copies them on the engine's thread.

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kern/base/clock.h"

namespace kern::engine {

/// Where a request stands; also the index of its gauge in Counters.
enum class RequestState : uint8_t { queued, prefilling, landing, running };
inline constexpr size_t kRequestStates = 4;

/// Durations by upper bound in nanoseconds, as a Prometheus histogram wants them.
class Histogram {
 public:
  static constexpr std::array<TimeNs, 18> kBounds = {
      1'000'000,      2'500'000,       5'000'000,      10'000'000,     20'000'000,
      40'000'000,     80'000'000,      160'000'000,    320'000'000,    640'000'000,
      1'000'000'000,  2'500'000'000,   5'000'000'000,  10'000'000'000, 30'000'000'000,
      60'000'000'000, 120'000'000'000, 300'000'000'000};

  void add(TimeNs duration);
  /// counts()[i]: how many were at most kBounds[i]; the last element: all.
  std::array<uint64_t, kBounds.size() + 1> counts() const;
  uint64_t count() const { return count_; }
  TimeNs sum() const { return sum_; }

 private:
  std::array<uint64_t, kBounds.size() + 1> own_{};
  uint64_t count_ = 0;
  TimeNs sum_ = 0;
};

/// Totals since the head was made, and gauges of now.
struct Counters {
  // gauges
  std::array<uint64_t, kRequestStates> requests{};   ///< by RequestState
  uint32_t pages_used = 0, pages_max = 0;            ///< not free, and there (page 0 not counted)
  uint32_t pages_frozen = 0;                         ///< of those used: shared by checkpoints
  uint64_t host_bytes_used = 0, host_bytes_max = 0;  ///< of the host tier
  uint32_t host_prefixes = 0;                        ///< parked there
  uint64_t items_in_flight = 0;
  uint64_t groups = 0;
  bool ready = false;  ///< whether a prompt that comes now could run
  // totals
  uint64_t prompt_tokens = 0, generated_tokens = 0;
  uint64_t cache_queries = 0, cache_hits = 0;  ///< in tokens
  uint64_t cache_hits_woken = 0;               ///< tokens woken for a hit
  uint64_t prefixes_parked = 0, prefixes_woken = 0;
  uint64_t prefixes_dropped = 0;               ///< from either tier
  uint64_t bytes_parked = 0, bytes_woken = 0;  ///< in pages and slots of the largest stage
  uint64_t items = 0, decode_steps = 0;
  uint64_t finished_stop = 0, finished_length = 0, finished_aborted = 0;
  uint64_t failed_too_long = 0, failed_queue_full = 0, failed_unavailable = 0;
  uint64_t failed_deadline = 0, failed_internal = 0;
  uint64_t handoffs = 0, handoffs_failed = 0, handoffs_expired = 0, handoffs_again = 0;
  uint64_t late_messages = 0;  ///< refused by generation or epoch
  uint64_t epochs = 0;         ///< lives of the pipeline
  Histogram time_to_first_token, inter_token, end_to_end;
  // progress, for a health check
  /// When an item or a token last came back, or a request came and found none open.
  TimeNs last_progress = 0;
};

/// How one group stands, for a status page.
struct GroupStatus {
  uint32_t id = 0;
  uint32_t ranks = 0;
  uint32_t pages_free = 0, pages_max = 0;
  uint32_t slots_free = 0, slots_max = 0;
  uint32_t handoffs = 0;
};

}  // namespace kern::engine
