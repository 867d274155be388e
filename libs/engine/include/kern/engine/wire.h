#pragma once
/// Messages as bytes, and back from bytes nobody trusts. A message is a u16 type and its fields,
/// little-endian; every count is bounded by WireLimits and by the bytes that are there before
/// anything is allocated. A message that does not decode is a `peer` error that names its type.
/// Thread safety: free functions.
/// Does not: frame, sign or send; nor check that numbers inside make sense to the receiver.

#include <cstddef>
#include <vector>

#include "kern/base/bytes.h"
#include "kern/engine/messages.h"

namespace kern::engine {

/// Compared in the handshake of every link; both ends must have the same.
inline constexpr uint16_t kWireVersion = 2;

/// Bounds on counts in one message.
struct WireLimits {
  size_t slices_max = 4096;
  size_t tokens_max = 1 << 22;  ///< of one slice
  size_t pages_max = 1 << 22;   ///< of one sequence
  size_t copies_max = 1 << 22;  ///< and slots to zero, and moves
  size_t top_logprobs_max = 64;
  size_t stop_tokens_max = 1024;
  size_t ranks_max = 1024;
  size_t states_max = 1 << 16;
  size_t segments_max = 64;
  size_t text_bytes_max = 4096;  ///< a name, an address, a reason
};

/// The first two bytes of every message. A number, once used, never changes its meaning.
enum class MessageType : uint16_t {
  reset_epoch = 1,
  run_item = 2,
  send_state = 3,
  cancel_send = 4,
  group_up = 5,
  group_gone = 6,
  epoch_ready = 16,
  item_done = 17,
  parts_sent = 18,
  ask = 32,
  begin = 33,
  abort = 34,
  group_hello = 48,
  granted = 49,
  refused = 50,
  landed = 51,
  step_tokens = 52,
  ended = 53,
  released = 54,
  expect_parts = 64,
  stop_expecting = 65,
  rank_landed = 80,
  rank_expecting = 81,
  part_header = 96,
  part_taken = 97,
};

std::vector<std::byte> encode(const StageCommand& message);
std::vector<std::byte> encode(const StageReport& message);
std::vector<std::byte> encode(const GroupCommand& message);
std::vector<std::byte> encode(const GroupReport& message);
std::vector<std::byte> encode(const RankCommand& message);
std::vector<std::byte> encode(const RankReport& message);
std::vector<std::byte> encode(const PartHeader& message);
std::vector<std::byte> encode(const PartTaken& message);

Result<StageCommand> decode_stage_command(ByteSpan bytes, const WireLimits& limits);
Result<StageReport> decode_stage_report(ByteSpan bytes, const WireLimits& limits);
Result<GroupCommand> decode_group_command(ByteSpan bytes, const WireLimits& limits);
Result<GroupReport> decode_group_report(ByteSpan bytes, const WireLimits& limits);
Result<RankCommand> decode_rank_command(ByteSpan bytes, const WireLimits& limits);
Result<RankReport> decode_rank_report(ByteSpan bytes, const WireLimits& limits);
Result<PartHeader> decode_part_header(ByteSpan bytes, const WireLimits& limits);
Result<PartTaken> decode_part_taken(ByteSpan bytes, const WireLimits& limits);

/// An item alone, for recordings and tests.
std::vector<std::byte> encode(const Item& item);
Result<Item> decode_item(ByteSpan bytes, const WireLimits& limits);

}  // namespace kern::engine
