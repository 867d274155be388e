#pragma once
/// Where every buffer and state of a manifest lies: what lives as long as the Runtime has memory of
/// its own, what lives for a call has a place in the arena that all programs share in turn.

#include <vector>

#include "bind.h"
#include "kern/manifest/verify.h"
#include "kern/runtime/runtime.h"
#include "memory.h"

namespace kern::runtime {

/// Places in the arena of one program.
struct ProgramPlaces {
  std::vector<int64_t> buffers;               ///< by buffer; -1: not in the arena
  std::vector<std::vector<int64_t>> scratch;  ///< by call, then by the op's scratch
  int64_t bytes = 0;
};

/// Liveness over the calls; pure.
ProgramPlaces plan_program(const manifest::Verified& manifest, const manifest::Program& program);

/// Whether a buffer shares the arena.
bool is_short_lived(const manifest::Buffer& buffer);

class Store {
 public:
  /// Allocates everything but weights and sources. Kinds: caller for a capacity that does not fit
  /// the manifest, manifest for memory this device has not, device when there is no more.
  static Result<Store> create(const manifest::Verified& manifest, const Capacity& capacity);

  /// The address of a buffer in a program, null for an unbound source.
  std::byte* buffer(size_t index, const ProgramPlaces& places) const;
  std::byte* state(size_t index) const { return states_[index].data(); }
  int64_t state_bytes(size_t index) const { return state_bytes_[index]; }
  const ProgramPlaces& places(size_t program) const { return places_[program]; }
  const Capacity& capacity() const { return capacity_; }
  std::byte* arena() const { return arena_.data(); }
  int64_t arena_bytes() const { return arena_bytes_; }
  int64_t bytes_total() const { return bytes_total_; }

  /// Hands a weight's or source's bytes over; `release` frees a source's.
  void set_bound(size_t index, BoundBytes bytes);
  void release(size_t index);

 private:
  Result<void> allocate_states(const manifest::Verified& manifest);
  Result<void> allocate_buffers(const manifest::Verified& manifest);
  Result<void> allocate_peer(const manifest::Verified& manifest, size_t index);

  Capacity capacity_;
  std::vector<Memory> states_;
  std::vector<int64_t> state_bytes_;
  std::vector<Memory> owned_;
  std::vector<std::byte*> fixed_;  ///< null: in the arena, or not bound
  std::vector<ProgramPlaces> places_;
  Memory arena_;
  int64_t arena_bytes_ = 0, bytes_total_ = 0;
};

}  // namespace kern::runtime
