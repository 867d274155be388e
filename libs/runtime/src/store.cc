#include "store.h"

#include "kern/base/assert.h"
#include "kern/base/checked.h"

namespace kern::runtime {
namespace {

using manifest::Buffer;
using manifest::BufferKind;
using manifest::Verified;

constexpr int64_t kStagedAlignment = 256;

/// Names whose memory the other members of a group map.
std::set<std::string, std::less<>> reached_names(const Verified& manifest) {
  std::set<std::string, std::less<>> names;
  for (const Buffer& buffer : manifest->buffers)
    if (buffer.kind == BufferKind::peer && manifest.group(buffer.group)->size > 1)
      names.insert(buffer.of);
  return names;
}

}  // namespace

Result<Store> Store::create(const Verified& manifest, Layout layout, Device& device) {
  Store store;
  store.layout_ = std::move(layout);
  store.reached_ = reached_names(manifest);
  for (size_t i = 0; i < manifest->states.size(); ++i) {
    const std::string& name = manifest->states[i].name;
    KERN_TRY(block, with_context(device.allocate(store.state_bytes(i), store.reach_of(name)),
                                 "state `{}`", name));
    store.addresses_.states.push_back(block.address);
    store.states_.push_back(std::move(block));
  }
  const std::vector<Buffer>& buffers = manifest->buffers;
  store.owned_.resize(buffers.size());
  store.addresses_.buffers.assign(buffers.size(), nullptr);
  store.addresses_.views.assign(buffers.size(), nullptr);
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (!has_own_memory(buffers[i]) || is_staged(buffers[i]) || buffers[i].kind == BufferKind::peer)
      continue;
    KERN_TRY(block,
             with_context(device.allocate(manifest.bytes_max(i), store.reach_of(buffers[i].name)),
                          "buffer `{}`", buffers[i].name));
    store.addresses_.buffers[i] = block.address;
    store.owned_[i] = std::move(block);
  }
  KERN_TRY_VOID(with_context(store.stage(manifest, device), "inputs and outputs"));
  KERN_TRY(arena, with_context(device.allocate(store.layout_.arena_bytes, Reach::own),
                               "workspaces and scratch"));
  store.addresses_.arena = arena.address;
  store.arena_ = std::move(arena);
  return store;
}

Result<void> Store::stage(const Verified& manifest, Device& device) {
  std::vector<int64_t> places(manifest->buffers.size(), -1);
  int64_t bytes = 0, compared_bytes = 0;
  for (const bool compared : {true, false}) {
    for (size_t i = 0; i < places.size(); ++i) {
      const Buffer& buffer = manifest->buffers[i];
      if (!is_staged(buffer) || is_compared(buffer, manifest.bytes_max(i)) != compared) continue;
      places[i] = bytes;
      bytes += round_up(manifest.bytes_max(i), kStagedAlignment);
    }
    if (compared) compared_bytes = bytes;
  }
  if (bytes == 0) return {};
  KERN_TRY(staged, device.allocate_staged(bytes, compared_bytes));
  staged_ = std::move(staged);
  for (size_t i = 0; i < places.size(); ++i) {
    if (places[i] < 0) continue;
    addresses_.buffers[i] = staged_.device + places[i];
    addresses_.views[i] = staged_.host + places[i];
  }
  return {};
}

Result<void> Store::point_peers(const Verified& manifest, Device& device,
                                const std::map<std::string, PeerGroup*>& peers) {
  for (size_t i = 0; i < manifest->buffers.size(); ++i) {
    const Buffer& peer = manifest->buffers[i];
    if (peer.kind != BufferKind::peer) continue;
    Block own;  // seen, not owned
    int64_t bytes = 0;
    if (const auto of = manifest.index().buffers.find(peer.of)) {
      own.address = addresses_.buffers[*of];
      bytes = manifest.bytes_max(*of);
    }
    if (const auto of = manifest.index().states.find(peer.of)) {
      own.address = addresses_.states[*of];
      bytes = layout_.state_bytes[*of];
    }
    KERN_ASSERT(own.address != nullptr, "peer buffer `{}` of `{}`", peer.name, peer.of);
    const auto group = peers.find(peer.group);
    const bool alone = manifest.group(peer.group)->size == 1 || group == peers.end();
    KERN_TRY(table, with_context(device.share(own, bytes, alone ? nullptr : group->second),
                                 "peer buffer `{}`", peer.name));
    addresses_.buffers[i] = table.address;
    owned_[i] = std::move(table);
  }
  return {};
}

void Store::set_bound(size_t index, Block block) {
  KERN_ASSERT(block.address != nullptr, "buffer #{}", index);
  addresses_.buffers[index] = block.address;
  owned_[index] = std::move(block);
}

void Store::release(size_t index) {
  owned_[index] = {};
  addresses_.buffers[index] = nullptr;
}

}  // namespace kern::runtime
