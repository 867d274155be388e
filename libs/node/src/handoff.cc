#include "kern/node/handoff.h"

#include <algorithm>
#include <cstring>

#include "kern/base/assert.h"
#include "kern/base/checked.h"
#include "kern/manifest/shard.h"

namespace kern::node {
namespace {

using engine::HandoffState;

manifest::Shard shard_of(const HandoffState& state) {
  manifest::Shard shard;
  shard.by = state.shard == HandoffState::Shard::heads ? manifest::Shard::By::heads
                                                       : manifest::Shard::By::position;
  for (const auto& s : state.segments) shard.segments.push_back({s.rows, s.width_bytes});
  return shard;
}

/// Calls `piece(offset, size)` for the memory of rows [0, rows) of a paged state, page by page.
template <class Piece>
void each_page(const engine::Place& place, int64_t row_bytes, int64_t page_tokens, int64_t rows,
               Piece piece) {
  const int64_t page_bytes = row_bytes * page_tokens;
  for (int64_t row = 0; row < rows; row += page_tokens) {
    const auto page = static_cast<size_t>(row / page_tokens);
    KERN_ASSERT(page < place.pages.size(), "row {} lies beyond {} pages", row, place.pages.size());
    piece(place.pages[page] * page_bytes, std::min(page_tokens, rows - row) * row_bytes);
  }
}

Result<CutPart> cut_rows(const HandoffState& state, StateMemory memory, const engine::Place& from,
                         uint32_t tokens, manifest::Member member) {
  CutPart part;
  if (state.shard != HandoffState::Shard::position || member.members == 1) {
    each_page(from, state.bytes, memory.page_tokens, tokens, [&](int64_t at, int64_t size) {
      part.pieces.push_back(memory.bytes.subspan(at, size));
    });
    return part;
  }
  const int64_t rows = manifest::rows_held(tokens, member);
  part.packed.resize(rows * state.bytes);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t position = manifest::position_of(row, member);
    const int64_t page = from.pages[position / memory.page_tokens];
    const int64_t at = page * memory.page_tokens + position % memory.page_tokens;
    std::memcpy(part.packed.data() + row * state.bytes, memory.bytes.data() + at * state.bytes,
                state.bytes);
  }
  if (rows > 0) part.pieces.push_back(part.packed);
  return part;
}

}  // namespace

std::vector<HandoffState> describe_states(const manifest::Verified& manifest) {
  std::vector<HandoffState> out;
  for (const manifest::State& s : manifest->states) {
    if (s.size != manifest::State::Size::per_token && s.size != manifest::State::Size::per_seq)
      continue;
    HandoffState h;
    h.name = s.name;
    h.paged = s.size == manifest::State::Size::per_token;
    h.bytes = s.bytes;
    if (s.shard) {
      h.shard = s.shard->by == manifest::Shard::By::heads ? HandoffState::Shard::heads
                                                          : HandoffState::Shard::position;
      for (const auto& segment : s.shard->segments)
        h.segments.push_back({segment.rows, segment.width_bytes});
    }
    out.push_back(std::move(h));
  }
  return out;
}

Result<CutPart> cut_part(const HandoffState& state, int64_t stage_bytes, StateMemory memory,
                         const engine::Place& from, uint32_t tokens, uint32_t member,
                         uint32_t members) {
  const manifest::Member who{member, members};
  const bool by_heads = state.shard == HandoffState::Shard::heads;
  const int64_t whole = by_heads ? manifest::whole_line_bytes(shard_of(state)) : state.bytes;
  if (whole != stage_bytes)
    return fail(Kind::peer, "state `{}`: the group's is cut from {} bytes, this stage's has {}",
                state.name, whole, stage_bytes);
  if (state.paged) return cut_rows(state, memory, from, tokens, who);
  CutPart part;
  const ByteSpan line = memory.bytes.subspan(from.slot * stage_bytes, stage_bytes);
  if (!by_heads) {
    part.pieces.push_back(line);
    return part;
  }
  for (const manifest::ByteRange& range : manifest::line_ranges(shard_of(state), who))
    part.pieces.push_back(line.subspan(range.first, range.size));
  return part;
}

Result<StateImage> copy_out(runtime::Runtime& runtime, const HandoffState& state, int64_t bytes,
                            int64_t page_tokens, const engine::Place& from, uint32_t tokens) {
  StateImage image;
  if (!state.paged) {
    image.bytes.resize(bytes);
    KERN_TRY_VOID(runtime.read_state(state.name, from.slot * bytes, image.bytes));
    return image;
  }
  const int64_t pages = ceil_div<int64_t>(tokens, page_tokens), page_bytes = page_tokens * bytes;
  KERN_ASSERT(pages <= static_cast<int64_t>(from.pages.size()), "{} pages of {}", pages,
              from.pages.size());
  image.bytes.resize(pages * page_bytes);
  for (int64_t page = 0; page < pages; ++page) {
    const MutableByteSpan room(image.bytes.data() + page * page_bytes, page_bytes);
    KERN_TRY_VOID(runtime.read_state(state.name, from.pages[page] * page_bytes, room));
    image.place.pages.push_back(static_cast<uint32_t>(page));
  }
  return image;
}

std::vector<StateRange> ranges_of_part(const HandoffState& state, int64_t page_tokens,
                                       const engine::Place& to, uint32_t tokens, uint32_t member,
                                       uint32_t members) {
  std::vector<StateRange> out;
  if (!state.paged) {
    out.push_back({to.slot * state.bytes, state.bytes});
    return out;
  }
  const int64_t rows = state.shard == HandoffState::Shard::position
                           ? manifest::rows_held(tokens, {member, members})
                           : tokens;
  each_page(to, state.bytes, page_tokens, rows, [&](int64_t at, int64_t size) {
    out.push_back({at, size});
  });
  return out;
}

std::vector<MutableByteSpan> place_part(const HandoffState& state, StateMemory memory,
                                        const engine::Place& to, uint32_t tokens, uint32_t member,
                                        uint32_t members) {
  std::vector<MutableByteSpan> out;
  for (const StateRange& range :
       ranges_of_part(state, memory.page_tokens, to, tokens, member, members))
    out.push_back(memory.bytes.subspan(range.offset, range.size));
  return out;
}

}  // namespace kern::node
