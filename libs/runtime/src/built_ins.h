#pragma once
/// The built-ins of the host device, by name, and what each demands of its arguments.

#include "target.h"

namespace kern::runtime {

class Machine;

/// Finds a built-in and checks its arguments as Target::built_in says. A null machine is a plan's.
Result<LoweredBuiltIn> lower_host_built_in(const LaunchSource& source, Machine* machine);

// What every device's built-ins check alike; `name` is without `extern:`.

/// m, n, k within 1 to 2^31, strides no shorter than rows, and the matrices within what is bound.
/// args: a, w, c, m, n, k [, C row stride [, A row stride]].
Result<void> check_gemm_args(std::string_view name, std::span<const BoundArg> args,
                             manifest::Dtype c_dtype);

/// Whether a rank sends, or receives, a block for every rank rather than one.
struct CollectiveReach {
  bool sends_all = false, receives_all = false;
};

/// A count from 0 to 2^40, a rank of a group, and what is sent and received within what is bound.
/// args: send, receive, count, rank.
Result<void> check_collective_args(std::string_view name, std::span<const BoundArg> args,
                                   manifest::Dtype dtype, int64_t ranks, CollectiveReach reach);

}  // namespace kern::runtime
