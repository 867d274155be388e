#pragma once
/// Every text tensor of a checkpoint: its name, type and shape as the release has them, and how a
/// random one is filled. Thread safety: plain values, pure functions.

#include <cstdint>
#include <string>
#include <vector>

#include "gen/config.h"

namespace k3 {

/// What makes a random model's logits meaningful and not chaotic.
struct Shape {
  double router_bias_spread = 2;  ///< biases are uniform in [-spread, spread]
  double router_gain = 0.7;       ///< standard deviation of the router's logits
  double output_gain = 0.5;       ///< of projections back into the residual stream
  double residual_query = 0.4;    ///< standard deviation of a mix's scores
  double head_gain = 2;           ///< standard deviation of the logits
};

/// How a tensor is filled.
struct Filling {
  enum class How : uint8_t {
    normal,     ///< mean + deviation * n
    uniform,    ///< mean +- deviation
    taps,       ///< convolution: the last tap mean 0.8, the others 0, plus deviation * n
    decay,      ///< A_log: mean +- deviation for `heads` entries, then zeros
    step_bias,  ///< dt_bias: a level a head, spread from slow to fast, plus deviation * n
    nibbles,    ///< packed E2M1 of a normal with deviation 2
    exponents,  ///< E8M0 bytes around 2^mean
  };
  How how = How::normal;
  double mean = 0, deviation = 1;
  int64_t heads = 0;
};

struct TensorPlan {
  std::string name;
  std::string dtype;  ///< BF16, F32 or U8
  std::vector<int64_t> shape;
  Filling filling;
  bool starts_shard = false;
};

/// All of them, layer by layer, one shard a layer and one for the rest.
std::vector<TensorPlan> tensor_plans(const Config& config, const Shape& shape);

}  // namespace k3
