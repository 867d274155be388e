#pragma once
/// How a group divides a state: which bytes of a whole line, and which positions, a member holds.
/// The runtime never asks; the hand-off from prefill to decode does.
/// Thread safety: pure functions.
/// Determinism: ranges come in the order of the member's own line.
/// Does not: move bytes, or know what the bytes mean.

#include <cstdint>
#include <vector>

#include "kern/manifest/types.h"

namespace kern::manifest {

/// One member of a group of `members`.
struct Member {
  int64_t index = 0;
  int64_t members = 1;
};

struct ByteRange {
  int64_t first = 0;
  int64_t size = 0;
  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

// ---- by heads ----

/// Bytes of the whole line: the segments end to end.
int64_t whole_line_bytes(const Shard& shard);
/// The ranges of the whole line that the member holds; laid end to end they are its own line.
std::vector<ByteRange> line_ranges(const Shard& shard, Member member);

// ---- by position ----

/// Positions 0..length-1 that live on the member.
int64_t rows_held(int64_t length, Member member);
/// Position p lives on member p mod w as its row p div w.
int64_t member_of(int64_t position, int64_t members);
int64_t row_of(int64_t position, int64_t members);
int64_t position_of(int64_t row, Member member);

// ---- a whole sequence ----

/// Bytes the member holds of one sequence of `length` tokens, by the member's own declaration of
/// the state: its rows times `bytes_per_token`, its line, or nothing for a fixed or host state.
int64_t sequence_bytes(const State& state, int64_t length, Member member);

}  // namespace kern::manifest
