#pragma once
/// A decode group's collectives over a transport::Mesh: the runtime's PeerGroup of every rank.
/// Thread safety: as PeerGroup, one call at a time from the device thread; shutdown from any.
/// Failure: a lost, late or out-of-step rank is kind peer, and the group is then broken for good.

#include <memory>
#include <string>

#include "kern/runtime/peers.h"
#include "kern/transport/mesh.h"

namespace kern::node {

class PeerMesh : public runtime::PeerGroup {
 public:
  explicit PeerMesh(std::unique_ptr<transport::Mesh> mesh);
  ~PeerMesh() override;

  int rank() const override;
  int size() const override;
  Result<void> all_gather(ByteSpan send, MutableByteSpan receive) override;
  Result<void> all_to_all(ByteSpan send, MutableByteSpan receive) override;
  /// Fails the running call and every later one, from any thread.
  void shutdown(const std::string& reason);

 private:
  std::unique_ptr<transport::Mesh> mesh_;
};

}  // namespace kern::node
