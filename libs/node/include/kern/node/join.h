#pragma once
/// How processes of one pipeline or group find each other, beside the engine's own messages: who
/// joins with which limits, and the addresses of one epoch's links. All travel on the control
/// channel. Thread safety: plain values.

#include <string>
#include <variant>
#include <vector>

#include "kern/base/bytes.h"
#include "kern/engine/executor.h"
#include "kern/engine/messages.h"
#include "kern/transport/frame.h"

namespace kern::node {

/// Frame types on a control channel.
enum class ControlType : uint16_t {
  engine = transport::kFirstMessageType,  ///< engine/wire.h
  join = transport::kFirstMessageType + 1,
};

/// First word of a stage or rank to its head.
struct MemberJoin {
  uint32_t index = 0;    ///< stage or rank
  uint32_t members = 0;  ///< stages or ranks, by its manifest
  engine::ExecutorLimits limits;
  std::string parts_address;  ///< ranks: where hand-off parts are taken
};
/// This member listens for its epoch's data link or mesh here.
struct EpochAddress {
  engine::Epoch epoch = 0;
  std::string address;
};
/// The addresses this member needs in that epoch: the next stage's, or every rank's in order.
struct EpochPeers {
  engine::Epoch epoch = 0;
  std::vector<std::string> addresses;
};
/// What a member's device thread did since it started; sent now and then.
struct MemberTimes {
  int64_t busy = 0, receiving = 0, sending = 0;  ///< nanoseconds
  uint64_t items = 0, rows = 0;
};
using JoinMessage = std::variant<MemberJoin, EpochAddress, EpochPeers, MemberTimes>;

std::vector<std::byte> encode(const JoinMessage& message);
/// Fails with kind peer.
Result<JoinMessage> decode_join(ByteSpan bytes);

/// What every member allows: the smallest of each limit; 0 means that a member has no such limit,
/// but of host memory, that it has none. Of what a place takes there, the most.
engine::ExecutorLimits tightest(engine::ExecutorLimits a, const engine::ExecutorLimits& b);

}  // namespace kern::node
