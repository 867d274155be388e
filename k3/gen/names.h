#pragma once
/// The release's tensor names, in one place for the generator and the checkpoint writer.

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace k3 {

inline constexpr std::string_view kRoot = "language_model.";

inline std::string global_tensor(std::string_view name) {
  return fmt::format("{}{}", kRoot, name);
}

inline std::string layer_tensor(int64_t layer, std::string_view name) {
  return fmt::format("{}model.layers.{}.{}", kRoot, layer, name);
}

/// `expert` is a number or what stands for one, `part` weight_packed or weight_scale, `matrix` w1
/// (gate), w2 (down) or w3 (up).
template <class Expert>
std::string expert_tensor(int64_t layer, const Expert& expert, std::string_view matrix,
                          std::string_view part) {
  return fmt::format("{}model.layers.{}.block_sparse_moe.experts.{}.{}.{}", kRoot, layer, expert,
                     matrix, part);
}

}  // namespace k3
