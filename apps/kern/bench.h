#pragma once
/// How long a program of a manifest takes at one shape: legal inputs, contexts that hold what the
/// program itself computed, warm runs, then the clock. One rank, one process.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "kern/base/log.h"
#include "kern/engine/request.h"
#include "kern/manifest/verify.h"
#include "kern/safetensors/catalog.h"

namespace kern::app {

struct BenchPlan {
  const manifest::Verified* manifest = nullptr;
  const safetensors::Catalog* weights = nullptr;  ///< null: synthetic, or none are bound
  std::optional<uint64_t> synthetic;              ///< seed of the weights
  std::vector<std::filesystem::path> module_dirs;
  std::filesystem::path cache_dir;
  int threads = 1;
  int gpu = 0;
  std::string program;
  int64_t rows = 0;     ///< of one run, over all sequences alike
  int64_t seqs = 1;     ///< sequences of one run
  int64_t context = 0;  ///< positions of each sequence after the run
  int64_t repeat = 1;   ///< timed runs
  bool by_op = false;   ///< also launch by launch
  bool eager = false;   ///< nothing is captured
};

/// Launches of one entry by one op.
struct LaunchShare {
  std::string op, entry;
  int64_t launches = 0;
  double milliseconds = 0;  ///< of all of them together, each the median of its runs
};

struct BenchAnswer {
  double load_seconds = 0;
  int64_t computed = 0;      ///< positions of a context that were computed, then repeated
  std::vector<double> runs;  ///< milliseconds from enqueue to the end, in order
  /// Of steps that take each other's tokens, each started before the last was read: milliseconds
  /// from one result to the next, and of them what the host worked; empty where there are none.
  std::vector<double> chained, chained_host;
  std::vector<LaunchShare> shares;    ///< the largest first; empty unless asked for
  std::vector<engine::Token> tokens;  ///< what the first run emitted

  double median() const;
  double least() const;
  double launches_total() const;  ///< milliseconds of all shares
};

/// Kind caller when the program does not take the shape; device when a row holds a NaN.
Result<BenchAnswer> run_bench(const BenchPlan& plan, const Log& log);

double median_of(std::vector<double> values);

}  // namespace kern::app
