#pragma once
/// The ranks of a group whose processes share one machine, over Unix sockets: they meet at a name,
/// rank 0 in the middle, and may hand each other descriptors. What a GPU's ranks use while they
/// load, to map each other's memory, and by which they hear later that one is no more.
/// Thread safety: one thread at a time, as every PeerGroup. Determinism: sockets keep rank order.
/// Failure: a member that is lost or late is kind peer, and the group is of no more use.
/// Does not: leave the machine, or speak with processes of another user.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kern/base/clock.h"
#include "kern/runtime/peers.h"

namespace kern::node {

class MachineGroup final : public runtime::PeerGroup {
 public:
  /// Returns when all `size` ranks have come to the name. Kinds: peer when they have not within
  /// `timeout` or disagree about the size, caller when another process holds rank 0 there, io.
  static Result<std::unique_ptr<MachineGroup>> join(const std::string& name, int rank, int size,
                                                    TimeNs timeout);

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Result<void> all_gather(ByteSpan send, MutableByteSpan receive) override;
  Result<void> all_to_all(ByteSpan send, MutableByteSpan receive) override;
  Result<std::vector<Descriptor>> all_gather_descriptors(Descriptor mine) override;
  /// A rank whose process has ended, or dropped the group; does not wait. Rank 0 sees all, the
  /// others see rank 0.
  std::optional<int> gone() const;

  MachineGroup(int rank, int size) : rank_(rank), size_(size) {}  ///< for `join`

 private:
  Result<void> listen(const std::string& name, TimeNs timeout);
  Result<void> dial(const std::string& name, TimeNs timeout);

  int rank_, size_;
  /// Rank 0: every member by rank, its own closed. Others: rank 0 alone.
  std::vector<Descriptor> links_;
};

}  // namespace kern::node
