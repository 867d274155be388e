#include "kern/manifest/shard.h"

#include "kern/base/assert.h"

namespace kern::manifest {
namespace {

void check(Member member) {
  KERN_ASSERT(member.index >= 0 && member.index < member.members, "member {} of {}", member.index,
              member.members);
}

}  // namespace

int64_t whole_line_bytes(const Shard& shard) {
  int64_t bytes = 0;
  for (const Shard::Segment& segment : shard.segments) bytes += segment.rows * segment.width_bytes;
  return bytes;
}

std::vector<ByteRange> line_ranges(const Shard& shard, Member member) {
  check(member);
  KERN_ASSERT(shard.by == Shard::By::heads);
  std::vector<ByteRange> ranges;
  int64_t row_first = 0;
  for (const Shard::Segment& segment : shard.segments) {
    KERN_ASSERT(segment.width_bytes % member.members == 0);
    const int64_t part = segment.width_bytes / member.members;
    for (int64_t row = 0; row < segment.rows; ++row) {
      ranges.push_back({row_first + part * member.index, part});
      row_first += segment.width_bytes;
    }
  }
  return ranges;
}

int64_t rows_held(int64_t length, Member member) {
  check(member);
  KERN_ASSERT(length >= 0);
  return (length + member.members - 1 - member.index) / member.members;
}

int64_t member_of(int64_t position, int64_t members) {
  return position % members;
}

int64_t row_of(int64_t position, int64_t members) {
  return position / members;
}

int64_t position_of(int64_t row, Member member) {
  return row * member.members + member.index;
}

int64_t sequence_bytes(const State& state, int64_t length, Member member) {
  check(member);
  switch (state.size) {
    case State::Size::per_token:
      break;
    case State::Size::per_seq:
      return state.bytes;
    case State::Size::fixed:
    case State::Size::host:
      return 0;
  }
  const bool divided = state.shard && state.shard->by == Shard::By::position;
  return state.bytes * (divided ? rows_held(length, member) : length);
}

}  // namespace kern::manifest
