#pragma once
/// How ranks of a group reach each other: for the host device's built-in collectives, and for a
/// GPU's peer buffers and communicators while a Runtime loads. The runtime sums in rank order by
/// itself; a PeerGroup only moves bytes.
/// Thread safety: one call at a time, from the thread that runs programs.

#include <vector>

#include "kern/base/bytes.h"
#include "kern/base/descriptor.h"

namespace kern::runtime {

/// The ranks of one group, this one included. Every member makes the same calls in the same order.
class PeerGroup {
 public:
  virtual ~PeerGroup() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Sends `send` to every member; `receive` holds size() blocks of send.size() bytes, in rank
  /// order, own block included. Fails with kind peer when a member is lost or the deadline passes.
  virtual Result<void> all_gather(ByteSpan send, MutableByteSpan receive) = 0;
  /// `send` holds size() equal blocks, block i for member i; `receive` the block of each member for
  /// this rank, in rank order.
  virtual Result<void> all_to_all(ByteSpan send, MutableByteSpan receive) = 0;
  /// A descriptor of every member's file, in rank order, own one included; the members share one
  /// machine. Kind manifest where these peers pass none.
  virtual Result<std::vector<Descriptor>> all_gather_descriptors(Descriptor mine);
};

}  // namespace kern::runtime
