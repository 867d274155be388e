#pragma once
/// The runtime's collectives over a transport mesh that is made anew for each epoch of a group.
/// Thread safety: collectives and `set` on the device thread; `shutdown` from any thread.
/// Failure: without a mesh, or after shutdown, every collective is kind peer.

#include <memory>
#include <mutex>
#include <string>

#include "kern/runtime/peers.h"

namespace kern::transport {
class Mesh;
}

namespace kern::node {

class PeerMesh : public runtime::PeerGroup {
 public:
  PeerMesh(int rank, int size) : rank_(rank), size_(size) {}
  ~PeerMesh() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Result<void> all_gather(ByteSpan send, MutableByteSpan receive) override;
  Result<void> all_to_all(ByteSpan send, MutableByteSpan receive) override;

  /// The mesh of a new epoch; its rank and size are this group's.
  void set(std::unique_ptr<transport::Mesh> mesh);
  /// Wakes and fails the collective under way, and every later one until the next `set`.
  void shutdown(const std::string& reason);

 private:
  std::shared_ptr<transport::Mesh> current();

  const int rank_, size_;
  std::mutex mutex_;  ///< of the pointer
  std::shared_ptr<transport::Mesh> mesh_;
};

}  // namespace kern::node
