#pragma once
/// Slices a manifest into pipeline stages by liveness, and checks stages against each other.
/// Stages run in order are byte-identical to the uncut manifest.
/// Thread safety: pure functions.
/// Determinism: the same manifest and labels give the same stages and the same id.
/// Does not: decide where to cut, or move a state: a state two stages touch is refused.

#include <span>
#include <string>
#include <vector>

#include "kern/manifest/verify.h"

namespace kern::manifest {

/// One stage more than labels. A label names the call at which a new stage starts; it exists once
/// in every program that has calls, in the order given. What is produced before a cut and read
/// after it crosses, also what the caller reads behind the last call, or gives the first stage
/// alone. Each stage still has to be verified.
tl::expected<std::vector<Manifest>, Diagnostics> cut(const Verified& whole,
                                                     std::span<const std::string> labels);

/// Names of the buffers a stage takes from the one before it: `input` and `inout` with neither a
/// fill nor an `index_into` domain. Empty for stage 0 and for an uncut manifest.
std::vector<std::string> received_buffers(const Manifest& stage);
/// Names of the buffers a stage hands to the one after it: `output` and `inout` without a fill.
/// Empty for the last stage and for an uncut manifest.
std::vector<std::string> sent_buffers(const Manifest& stage);

/// What must agree across one edge: the cut, the place in it, and every buffer that crosses. The
/// pointers say which stage is meant by its number in the cut.
Diagnostics check_edge(const Verified& before, const Verified& after);
/// Every edge, and that the stages are all of one cut, in order.
Diagnostics check_cut(std::span<const Verified* const> stages);

}  // namespace kern::manifest
