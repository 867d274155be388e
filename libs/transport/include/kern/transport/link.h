#pragma once
/// A data link between two stages: the named tensors of one item after another, in order.
/// Used from the device thread. A post never blocks; completion is asked for; shutdown is explicit
/// and wakes every waiter. What was posted on one side must be posted alike on the other: item,
/// names and sizes are compared before a byte is used.
/// Thread safety: one thread posts and waits; shutdown may come from any thread.
/// Ownership: posted memory belongs to the link until its ticket is done or the link is shut down
/// or broken; after any of these the link does not touch it again.
/// Does not: know devices or what a tensor means.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kern/base/bytes.h"
#include "kern/base/clock.h"

namespace kern::transport {

/// Counts up per direction, from 1.
using Ticket = uint64_t;

/// One tensor to send, in pieces that follow each other on the wire.
struct OutTensor {
  std::string name;
  std::vector<ByteSpan> pieces;
};

/// Where one tensor lands.
struct InTensor {
  std::string name;
  std::vector<MutableByteSpan> pieces;
};

inline constexpr size_t kTensorsPerItemMax = 256;
inline constexpr size_t kTensorNameBytesMax = 128;
inline constexpr size_t kPostsMax = 64;  ///< not done, per direction

class Link {
 public:
  virtual ~Link() = default;
  /// Starts sending `item`. Fails with kind busy at kPostsMax, peer on a broken link.
  virtual Result<Ticket> post_send(uint64_t item, std::vector<OutTensor> tensors) = 0;
  /// Starts receiving `item`, which must be the next one the other side sends.
  virtual Result<Ticket> post_receive(uint64_t item, std::vector<InTensor> tensors) = 0;
  /// True when that post and all before it are done, false when `timeout` passed first (0: only
  /// asks). Fails with kind peer on a broken link or after shutdown.
  virtual Result<bool> wait_send(Ticket ticket, TimeNs timeout) = 0;
  virtual Result<bool> wait_receive(Ticket ticket, TimeNs timeout) = 0;
  /// Ends the link: every waiter and later call fails with `reason`.
  virtual void shutdown(const std::string& reason) = 0;
};

}  // namespace kern::transport
