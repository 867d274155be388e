#include <fmt/format.h>

#include "gen/generate.h"
#include "kern/manifest/cut.h"
#include "kern/manifest/verify.h"

namespace k3 {

using namespace kern;

namespace m = kern::manifest;

/// The largest stages come first: 93 layers over 8 are seven of twelve and one of nine. Where that
/// leaves a last stage without a layer, the layers are spread evenly.
Result<std::vector<int64_t>> even_cuts(const Config& config, int64_t stages) {
  if (stages < 1 || stages > config.layers)
    return fail(Kind::caller, "`--stages`: expected 1 to {}, got {}", config.layers, stages);
  const int64_t each = (config.layers + stages - 1) / stages;
  const bool fits = each * (stages - 1) < config.layers;
  std::vector<int64_t> layers;
  for (int64_t s = 1; s < stages; ++s)
    layers.push_back(fits ? s * each : s * config.layers / stages);
  return layers;
}

Result<std::vector<m::Manifest>> stages(const m::Manifest& whole,
                                        const std::vector<int64_t>& layers) {
  if (layers.empty()) return std::vector<m::Manifest>{whole};
  auto verified = m::verify(whole);
  if (!verified) return tl::unexpected<Error>(m::to_error(verified.error(), "the whole manifest"));
  std::vector<std::string> labels;
  for (const int64_t layer : layers) labels.push_back(fmt::format("layer.{}", layer));
  auto cut = m::cut(*verified, labels);
  if (!cut) return tl::unexpected<Error>(m::to_error(cut.error(), "the cut"));
  return std::move(*cut);
}

}  // namespace k3
