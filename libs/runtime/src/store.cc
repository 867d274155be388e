#include "store.h"

#include <cstring>

#include "kern/base/assert.h"

namespace kern::runtime {

using manifest::Buffer;
using manifest::BufferKind;
using manifest::Verified;

Result<Store> Store::create(const Verified& manifest, Layout layout) {
  Store store;
  store.layout_ = std::move(layout);
  for (size_t i = 0; i < manifest->states.size(); ++i) {
    KERN_TRY(memory, with_context(Memory::zeroed(store.state_bytes(i)), "state `{}`",
                                  manifest->states[i].name));
    store.addresses_.states.push_back(memory.data());
    store.states_.push_back(std::move(memory));
  }
  const std::vector<Buffer>& buffers = manifest->buffers;
  store.owned_.resize(buffers.size());
  store.addresses_.buffers.assign(buffers.size(), nullptr);
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (!has_own_memory(buffers[i])) continue;
    KERN_TRY(memory,
             with_context(Memory::zeroed(manifest.bytes_max(i)), "buffer `{}`", buffers[i].name));
    store.addresses_.buffers[i] = memory.data();
    store.owned_[i] = std::move(memory);
  }
  KERN_TRY(arena, Memory::zeroed(store.layout_.arena_bytes));
  store.addresses_.arena = arena.data();
  store.arena_ = std::move(arena);
  return store;
}

/// A group of one rank: the only member's address is its own.
void Store::point_peers(const Verified& manifest) {
  for (size_t i = 0; i < manifest->buffers.size(); ++i) {
    const Buffer& peer = manifest->buffers[i];
    if (peer.kind != BufferKind::peer) continue;
    const std::byte* target = nullptr;
    if (const auto of = manifest.index().buffers.find(peer.of)) target = addresses_.buffers[*of];
    if (const auto of = manifest.index().states.find(peer.of)) target = addresses_.states[*of];
    KERN_ASSERT(target != nullptr, "peer buffer `{}` of `{}`", peer.name, peer.of);
    KERN_ASSERT(manifest.bytes_max(i) == sizeof(target), "peer buffer `{}`", peer.name);
    std::memcpy(owned_[i].data(), &target, sizeof(target));
  }
}

void Store::set_bound(size_t index, BoundBytes bytes) {
  KERN_ASSERT(bytes.data != nullptr, "buffer #{}", index);
  owned_[index] = std::move(bytes.owned);
  // Weights are read-only by the manifest's own rules, which verify has proved.
  addresses_.buffers[index] = const_cast<std::byte*>(bytes.data);
}

void Store::release(size_t index) {
  owned_[index] = Memory();
  addresses_.buffers[index] = nullptr;
}

}  // namespace kern::runtime
