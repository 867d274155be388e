#pragma once
/// The bytes of a hand-off: which of a stage's state memory makes a rank's part, and where a part
/// lies in a rank's own state memory. Both sides derive it from the declared shards alone.
/// Thread safety: free functions; the caller keeps the state memory in place.

#include <vector>

#include "kern/base/bytes.h"
#include "kern/engine/messages.h"
#include "kern/manifest/verify.h"
#include "kern/runtime/runtime.h"

namespace kern::node {

/// What a group says of its states, from its manifest. Host and fixed states do not travel.
std::vector<engine::HandoffState> describe_states(const manifest::Verified& manifest);

/// One process's memory of a state, or a copy of one sequence's part of it.
struct StateMemory {
  MutableByteSpan bytes;
  int64_t page_tokens = 64;
};

/// A state of a runtime whose memory this process does not see, as a hand-off takes it: one
/// sequence's pages, or its slot, copied out and counted from 0.
struct StateImage {
  std::vector<std::byte> bytes;
  engine::Place place;
};
/// Of a sequence of `tokens` tokens; `bytes` is the stage's own of a token or a line.
Result<StateImage> copy_out(runtime::Runtime& runtime, const engine::HandoffState& state,
                            int64_t bytes, int64_t page_tokens, const engine::Place& from,
                            uint32_t tokens);

/// A part as pieces of a stage's memory, and packed rows where a rank's rows do not lie together.
struct CutPart {
  std::vector<std::byte> packed;  ///< what `pieces` may point into
  std::vector<ByteSpan> pieces;
};

/// The member's part of one state of a sequence of `tokens` tokens. The stage's own state is whole.
/// Fails with kind peer when the group's declaration does not fit the stage's state.
Result<CutPart> cut_part(const engine::HandoffState& state, int64_t stage_bytes, StateMemory memory,
                         const engine::Place& from, uint32_t tokens, uint32_t member,
                         uint32_t members);

/// Part of a state's memory.
struct StateRange {
  int64_t offset = 0, size = 0;
};
/// Where the member's own part of a state lies, in the order of the part's bytes.
std::vector<StateRange> ranges_of_part(const engine::HandoffState& state, int64_t page_tokens,
                                       const engine::Place& to, uint32_t tokens, uint32_t member,
                                       uint32_t members);
/// The same as memory of this process.
std::vector<MutableByteSpan> place_part(const engine::HandoffState& state, StateMemory memory,
                                        const engine::Place& to, uint32_t tokens, uint32_t member,
                                        uint32_t members);

}  // namespace kern::node
