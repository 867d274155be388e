#pragma once
/// What a server must know of a checkpoint's folder besides weights: tokenizer, stop token, name.

#include <filesystem>

#include "kern/node/app.h"

namespace k3 {

/// Reads config.json, tiktoken.model and tokenizer_config.json of a checkpoint folder.
kern::Result<kern::node::ModelText> load_model_text(const std::filesystem::path& checkpoint);

}  // namespace k3
