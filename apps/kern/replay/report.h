#pragma once
/// What `kern replay` says about its runs: a table for people, JSON for programs.
/// Determinism: the same runs give the same text.

#include <string>
#include <vector>

#include "replay.h"

namespace kern::replay {

/// A trace played once.
struct Run {
  Setup setup;
  Outcome outcome;
};

/// One line a run under two lines of heading.
std::string table(const Trace& trace, const std::vector<Run>& runs);

/// One object: the trace's size, then every run with its setup and every count.
std::string json(const Trace& trace, const std::vector<Run>& runs);

}  // namespace kern::replay
