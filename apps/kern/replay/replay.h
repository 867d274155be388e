#pragma once
/// Plays a trace against a pool with its prefix tree, and counts: what was found where, what moved,
/// what had to go, who waited. A discrete-event loop in virtual time; the pool is the real one, and
/// only the executor is missing.
///
/// A request arrives, waits its turn (first come, first served, nobody overtakes), looks its prompt
/// up in both tiers, wakes what it found in host memory, and takes a lease for its worst case;
/// what is missing for it is evicted, into host memory if there is any, where what is worth least
/// makes room.
/// One pipeline computes what was not found, in order of grants; then the checkpoints that `Keep`
/// asks for are cut and enter the tree; the answer follows at its own pace. Transfers take no time.
/// Thread safety: plain values and one pure function.
/// Determinism: the same trace and setup give the same outcome.

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "kern/pool/pool.h"
#include "kern/pool/prefix.h"
#include "trace.h"

namespace kern::replay {

enum class Policy {
  lru,   ///< least recently hit goes first
  hits,  ///< least often hit goes first
  cost,  ///< least recompute cost per byte goes first, aged
};

/// "lru", "hits", "cost".
std::optional<Policy> policy_named(std::string_view name);
std::string_view to_string(Policy policy);

/// At which lengths of a request checkpoints are kept, each rounded down to the grid.
struct Keep {
  bool shared = false;  ///< at the end of each shared prefix
  bool prompt = true;   ///< at the end of the prompt
  bool answer = false;  ///< at the end of the answer, but for its last token, which none computed
};

struct Setup {
  pool::Geometry geometry;
  Policy policy = Policy::lru;
  pool::EntryCost cost;  ///< what `Policy::cost` reckons with
  Keep keep;
  uint32_t grid = 64;                    ///< tokens between places where a checkpoint may lie
  bool answers_elsewhere = false;        ///< a lease covers the prompt alone and ends with it
  uint32_t park_tokens_min = 0;          ///< shorter checkpoints are dropped, not parked
  uint64_t prefill_tokens_per_s = 8000;  ///< of the whole pipeline, at least 1
  uint64_t step_us = 25'000;             ///< from a token of an answer to the next
};

/// One count for each place where a prompt's longest usable prefix was found.
struct ByTier {
  uint64_t device = 0;
  uint64_t host = 0;
  uint64_t miss = 0;
  friend bool operator==(const ByTier&, const ByTier&) = default;
};

struct Outcome {
  ByTier requests;  ///< by where the longest prefix was found; `miss`: nowhere
  ByTier tokens;    ///< of their prompts; `miss`: computed
  uint64_t bytes_parked = 0;
  uint64_t bytes_woken = 0;
  uint64_t bytes_copied = 0;  ///< within the device, for restores
  uint64_t kept = 0;          ///< checkpoints that entered the tree
  uint64_t not_kept = 0;      ///< those for which there was no room
  uint64_t parked = 0;        ///< evicted into host memory
  uint64_t dropped = 0;       ///< evicted for good
  uint64_t host_dropped = 0;  ///< evicted from host memory
  uint64_t waited = 0;        ///< requests refused as busy at least once
  uint64_t wait_us = 0;       ///< of all of them together
  uint64_t wait_us_max = 0;
  uint64_t exceeded_pool = 0;  ///< requests refused for good; their session ends
  uint64_t exceeded_row = 0;
  uint64_t abandoned = 0;   ///< turns that such a session still had
  uint32_t pages_peak = 0;  ///< not free, at most
  uint32_t pages_leased_peak = 0;
  uint32_t slots_peak = 0;
  uint32_t slots_leased_peak = 0;
  uint64_t host_bytes_peak = 0;
  uint64_t end_us = 0;  ///< when the last answer was out
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

/// The geometry has no `pool::refusal`; grid and prefill rate are not 0.
Outcome play(const Trace& trace, const Setup& setup);

}  // namespace kern::replay
