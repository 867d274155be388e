#include "kern/node/peer_mesh.h"

#include "kern/base/assert.h"
#include "kern/transport/mesh.h"

namespace kern::node {

PeerMesh::~PeerMesh() = default;

std::shared_ptr<transport::Mesh> PeerMesh::current() {
  const std::lock_guard lock(mutex_);
  return mesh_;
}

Result<void> PeerMesh::all_gather(ByteSpan send, MutableByteSpan receive) {
  const auto mesh = current();
  if (!mesh) return fail(Kind::peer, "the group's mesh is not formed");
  return mesh->all_gather(send, receive);
}

Result<void> PeerMesh::all_to_all(ByteSpan send, MutableByteSpan receive) {
  const auto mesh = current();
  if (!mesh) return fail(Kind::peer, "the group's mesh is not formed");
  return mesh->all_to_all(send, receive);
}

void PeerMesh::set(std::unique_ptr<transport::Mesh> mesh) {
  KERN_ASSERT(mesh->rank() == rank_ && mesh->size() == size_);
  const std::lock_guard lock(mutex_);
  mesh_ = std::move(mesh);
}

void PeerMesh::shutdown(const std::string& reason) {
  std::shared_ptr<transport::Mesh> mesh;
  {
    const std::lock_guard lock(mutex_);
    mesh = std::move(mesh_);
  }
  if (mesh) mesh->shutdown(reason);
}

}  // namespace kern::node
