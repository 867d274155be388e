#pragma once
/// The host device's memory: every state and buffer of a layout, in this process.

#include <vector>

#include "bind.h"
#include "layout.h"
#include "memory.h"

namespace kern::runtime {

class Store {
 public:
  /// Allocates everything but weights and sources. Kind device when there is no more.
  static Result<Store> create(const manifest::Verified& manifest, Layout layout);

  const Layout& layout() const { return layout_; }
  const Addresses& addresses() const { return addresses_; }
  /// The address of a buffer in a program, null for an unbound source.
  std::byte* buffer(size_t index, const ProgramPlaces& places) const {
    return addresses_.buffer(index, places);
  }
  std::byte* state(size_t index) const { return addresses_.states[index]; }
  int64_t state_bytes(size_t index) const { return layout_.state_bytes[index]; }
  const ProgramPlaces& places(size_t program) const { return layout_.programs[program]; }
  const Capacity& capacity() const { return layout_.capacity; }
  int64_t bytes_total() const { return layout_.bytes; }

  /// Hands a weight's or source's bytes over; `release` frees a source's.
  void set_bound(size_t index, BoundBytes bytes);
  void release(size_t index);
  /// Fills peer buffers, once everything they hold addresses of is there.
  void point_peers(const manifest::Verified& manifest);

 private:
  Layout layout_;
  Addresses addresses_;
  std::vector<Memory> states_;
  std::vector<Memory> owned_;
  Memory arena_;
};

}  // namespace kern::runtime
