#pragma once
/// One sequence through a manifest, from load to the last token, on every rank of the manifest's
/// group. Each rank is a thread that makes the same items from the same tokens.

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "kern/base/log.h"
#include "kern/engine/request.h"
#include "kern/manifest/verify.h"
#include "kern/safetensors/catalog.h"
#include "npy.h"

namespace kern::app {

/// A buffer's values as they stand after a call, gathered over the steps.
struct Dump {
  std::string label;  ///< of the call; empty: the last that names the buffer
  std::string buffer;
  std::filesystem::path file;
};

/// One sequence's part of a state at the end, as bytes.
struct StateDump {
  std::string state;
  std::filesystem::path file;
};

/// Values that stand in for the stage before.
struct StageInput {
  std::string buffer;
  Array array;
};

struct RunPlan {
  const manifest::Verified* manifest = nullptr;
  const safetensors::Catalog* weights = nullptr;  ///< null when the manifest binds none
  std::vector<std::filesystem::path> module_dirs;
  std::filesystem::path cache_dir;
  int threads = 1;
  int gpu = 0;                        ///< where the manifest is for one
  std::vector<engine::Token> tokens;  ///< the prompt; at least one
  int64_t tokens_max = 0;             ///< generated after it
  bool step_by_step = false;          ///< feed the prompt one token at a time
  bool eager = false;                 ///< nothing is captured
  int64_t chunk = 0;                  ///< rows of a prompt item; 0: as many as fit
  engine::Sampling sampling;
  std::vector<engine::Token> stop_tokens;
  std::vector<Dump> dumps;
  std::vector<StateDump> states;
  std::vector<StageInput> inputs;
  std::filesystem::path logits;  ///< empty: not asked for
};

struct RunAnswer {
  std::vector<engine::Token> tokens;
  double load_seconds = 0, prompt_seconds = 0, decode_seconds = 0;
};

/// Runs all ranks and writes every file asked for, from rank 0.
Result<RunAnswer> run_session(const RunPlan& plan, const Log& log);

}  // namespace kern::app
