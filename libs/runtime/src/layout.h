#pragma once
/// How much memory a manifest takes at a capacity, and where in the arena its short-lived part
/// lies, before there is a byte of it; and, once there is, where everything lies.
/// Thread safety: pure functions over plain values.
/// Determinism: the same manifest and capacity give the same layout.
/// Does not: allocate, or know which device does.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kern/base/result.h"
#include "kern/manifest/verify.h"
#include "kern/runtime/runtime.h"

namespace kern::runtime {

/// Places in the arena of one program.
struct ProgramPlaces {
  std::vector<int64_t> buffers;               ///< by buffer; -1: not in the arena
  std::vector<std::vector<int64_t>> scratch;  ///< by call, then by the op's scratch
  int64_t bytes = 0;
};

struct Layout {
  Capacity capacity;
  std::vector<int64_t> state_bytes;     ///< by state
  std::vector<ProgramPlaces> programs;  ///< all of them share one arena in turn
  int64_t arena_bytes = 0;
  int64_t bytes = 0;  ///< states, buffers with memory of their own, and the arena
};

/// Kinds: caller for a capacity that does not fit the manifest, manifest for what no device has
/// (more than 64 bits count) or the manifest's own device has not.
Result<Layout> lay_out(const manifest::Verified& manifest, const Capacity& capacity);

/// Whether a buffer shares the arena; whether it has memory of its own from load on. Weights and
/// sources do neither: their bytes come from the checkpoint.
bool is_short_lived(const manifest::Buffer& buffer);
bool has_own_memory(const manifest::Buffer& buffer);
/// Whether a caller fills or reads it.
bool is_staged(const manifest::Buffer& buffer);
/// Whether it is an input so small that comparing it costs less than sending it again.
bool is_compared(const manifest::Buffer& buffer, int64_t bytes_max);

/// Addresses on the device. Lowering adds to them and looks behind none.
struct Addresses {
  std::vector<std::byte*> states;   ///< by state
  std::vector<std::byte*> buffers;  ///< by buffer; null: in the arena, or not bound
  std::byte* arena = nullptr;
  std::vector<std::byte*> views;  ///< by buffer: the caller's own view; null: none

  /// Where the caller fills or reads a buffer; null for one that only programs see.
  std::byte* host_view(size_t index) const { return index < views.size() ? views[index] : nullptr; }
  /// The address of a buffer in a program with these places; null for an unbound source.
  std::byte* buffer(size_t index, const ProgramPlaces& places) const {
    if (buffers[index] != nullptr) return buffers[index];
    const bool placed = index < places.buffers.size() && places.buffers[index] >= 0;
    return placed ? arena + places.buffers[index] : nullptr;
  }
};

}  // namespace kern::runtime
