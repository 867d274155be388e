#pragma once
/// What an op launches on a device. The model's calls and the parameters of its ops are the same on
/// every device; modules, geometry and scratch are not, and a Target knows those of one device.
/// Thread safety: immutable after construction; the config must outlive it.

#include <memory>
#include <string>
#include <vector>

#include "gen/builder.h"
#include "gen/config.h"

namespace k3 {

/// The shape of one manifest.
struct Layout {
  int64_t ranks = 1;
  int64_t rows_max = 0;  ///< bound of `tokens`
  int64_t seqs_max = 0;  ///< bound of `seqs`
  int64_t ctx_max = 0;   ///< positions of one sequence
  bool logits_output = false;
  bool spelled_out = false;        ///< experts bind without extension `series`
  int64_t collective_blocks = 16;  ///< of every collective over mailboxes, which they share
};

/// The ops that kernels implement. Each one's parameters stand where the emitter declares it.
enum class Work {
  embed,
  embed_fed,  ///< or of the token that the step before kept
  keep_token,
  rms,
  mix_rms,
  mix_rms_last,
  copy_rows,
  land,
  land_add,
  land_rms,
  land_moe,
  situ,
  router,
  routed_experts,
  kda_step,           ///< one row a sequence
  kda_rows,           ///< any rows a sequence
  kda_rows_snapshot,  ///< the same, and leaves snapshots
  mla_prep,
  mla_absorb,
  mla_attend_step,  ///< one row a sequence
  mla_attend_rows,  ///< any rows a sequence
  mla_merge,
  join_columns,
  sample,
  argmax  ///< in place of sample where there is no choice
};

/// The matrix products and collectives that the runtime has built in.
enum class BuiltIn { gemm_bf16, gemm_f32, allreduce_f32, alltoall_f32, allgather_f32 };

class Target {
 public:
  virtual ~Target() = default;
  virtual m::Device device() const = 0;
  /// Extensions that every manifest of this device lists, sorted.
  virtual std::vector<std::string> extensions() const = 0;
  /// The implementation of an op; launches that name no parameters take the op's in order.
  /// `sources`: bank rows of a mix.
  virtual Body body(Work work, int64_t sources = 0) const = 0;
  /// The name behind `extern:`.
  virtual std::string built_in(BuiltIn built_in) const = 0;
  /// Whether collectives are kernels over mailboxes that every rank has mapped, not built-ins.
  virtual bool has_mailboxes() const { return false; }
  /// Whether the next token is drawn by the caller's parameters, or always the likeliest.
  virtual bool has_sampling() const { return true; }
  /// Rows of a fused projection begin at multiples of so many elements.
  virtual int64_t row_elements() const { return 1; }
};

std::unique_ptr<Target> host_target(const Config& config, const Layout& layout);
/// `plain`: nothing beyond plain version 7.
std::unique_ptr<Target> cuda_target(const Config& config, const Layout& layout, bool plain);

/// Places of the parameters of `routed_experts`.
enum RoutedParam : int64_t {
  kIds,
  kWeights,
  kZ,
  kW1,
  kS1,
  kW3,
  kS3,
  kW2,
  kS2,
  kPartial,
  kExperts,
  kTopK,
  kRank,
  kWidth,
  kInter,
  kStride,
  kBeta,
  kLinearBeta,
  kRows
};

/// Places of the parameters of the KDA ops; the last three exist where snapshots are left.
enum KdaParam : int64_t {
  kX,
  kR,
  kConvQ,
  kConvK,
  kConvV,
  kALog,
  kDtBias,
  kONorm,
  kState,
  kLines,
  kCuSeqlens,
  kY,
  kHeads,
  kDim,
  kTaps,
  kXStride,
  kBColumn,
  kZColumn,
  kLowerBound,
  kL2,
  kQScale,
  kEps,
  kKdaRows,
  kSequences,
  kSnapshot,
  kSeqLen,
  kBoundary
};

// ---- for the targets ----

inline m::LaunchArg param(int64_t index) {
  return m::ParamRef{index};
}
inline m::LaunchArg scratch(const char* name) {
  return m::ScratchRef{name};
}
/// The launch with its own parameters and what they get.
m::Launch with(m::Launch launch, std::vector<m::ParamType> params, std::vector<m::LaunchArg> args);

}  // namespace k3
