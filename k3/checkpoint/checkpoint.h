#pragma once
/// Writes a random checkpoint in the release's form: tensors, index, config.json and tokenizer.
/// Thread safety: one thread. Determinism: the same config, seed and shape give the same files.

#include <filesystem>
#include <string_view>

#include "checkpoint/tensors.h"

namespace k3 {

/// `config_json` is copied as it is. Kind caller for a config that is refused, io for the disk.
kern::Result<void> write_checkpoint(std::string_view config_json, uint64_t seed, const Shape& shape,
                                    const std::filesystem::path& dir);

}  // namespace k3
