#pragma once
/// Collectives over the ranks of a group on GPUs: through NCCL, one communicator a group.
/// Thread safety: one thread at a time.
/// Does not: sum in rank order; a built-in that promises that is refused before it comes here.

#include <map>

#include "kern/cuda/nccl.h"
#include "target.h"

namespace kern::runtime {

enum class Collective : uint8_t { all_reduce, all_gather, reduce_scatter, all_to_all };

class CudaCollectives {
 public:
  /// `nccl` is a caller's, null: the machine's own, looked for when the first group needs it.
  CudaCollectives(const cuda::Stream& stream, const cuda::Nccl* nccl, cuda::NcclMulticast multicast)
      : stream_(stream), nccl_(nccl), multicast_(multicast) {}

  /// The built-in of a launch. Every member of the group makes the same calls in the same order:
  /// the first makes the communicator, for which rank 0 hands its id round. Kind device where a
  /// member has no NCCL, which every member then says; peer.
  Result<std::unique_ptr<BuiltIn>> lower(Collective what, cuda::ElementType type,
                                         std::string_view group_name, PeerGroup& group);

  /// Waits for the stream, and asks meanwhile whether a member was lost: kind peer then, and what
  /// waits on the device for it ends.
  Result<void> synchronize();
  /// The same for an event of the stream.
  Result<void> wait(const cuda::Event& event);
  bool has_groups() const { return !by_group_.empty(); }
  /// Asks whether a member was lost.
  Result<void> look() { return by_group_.empty() ? Result<void>() : poll(); }

 private:
  Result<cuda::Communicator*> communicator(std::string_view group_name, PeerGroup& group);
  Result<void> find_nccl();
  Result<void> poll();

  const cuda::Stream& stream_;
  const cuda::Nccl* nccl_;
  cuda::NcclMulticast multicast_;
  std::unique_ptr<const cuda::Nccl> own_;
  std::map<std::string, cuda::Communicator, std::less<>> by_group_;
};

}  // namespace kern::runtime
