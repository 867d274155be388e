#include "kern/node/peer_mesh.h"

#include "kern/base/assert.h"

namespace kern::node {

PeerMesh::PeerMesh(std::unique_ptr<transport::Mesh> mesh) : mesh_(std::move(mesh)) {
  KERN_ASSERT(mesh_ != nullptr);
}
PeerMesh::~PeerMesh() = default;

int PeerMesh::rank() const { return mesh_->rank(); }
int PeerMesh::size() const { return mesh_->size(); }

Result<void> PeerMesh::all_gather(ByteSpan send, MutableByteSpan receive) {
  return with_context(mesh_->all_gather(send, receive), "rank {}", rank());
}

Result<void> PeerMesh::all_to_all(ByteSpan send, MutableByteSpan receive) {
  return with_context(mesh_->all_to_all(send, receive), "rank {}", rank());
}

void PeerMesh::shutdown(const std::string& reason) { mesh_->shutdown(reason); }

}  // namespace kern::node
