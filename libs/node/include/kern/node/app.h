#pragma once
/// The daemons, each one function: build everything, run until told to stop, return the exit code.
/// A main parses flags, says what it knows of its model, and calls one of these.
/// Thread safety: called once, from main.
/// Does not: read the environment.

#include <functional>
#include <string>
#include <vector>

#include "kern/engine/request.h"
#include "kern/node/config.h"
#include "kern/text/chat.h"
#include "kern/text/tokenizer.h"

namespace kern::node {

/// What a checkpoint's folder says about text; read by whoever knows the model.
struct ModelText {
  text::Tokenizer tokenizer;
  std::vector<engine::Token> stop_tokens;
  std::string name;  ///< of the model, in /v1/models
  std::vector<std::string> aliases;
  text::ChatStyle style;
};

/// One stage of the prefill pipeline; stage 0 also serves HTTP and needs `model_text`.
int run_prefill_stage(const DaemonConfig& config,
                      const std::function<Result<ModelText>()>& model_text);
/// One rank of a decode group; rank 0 also heads the group.
int run_decode_rank(const DaemonConfig& config);
/// One process with prompts and decode on one manifest.
int run_one_process(const DaemonConfig& config,
                    const std::function<Result<ModelText>()>& model_text);

}  // namespace kern::node
