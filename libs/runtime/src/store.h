#pragma once
/// A device's memory for every state and buffer of a layout. What callers fill or read lies in one
/// staged block, small inputs first, so that a device may move many of them at once.

#include <set>
#include <vector>

#include "device.h"
#include "layout.h"

namespace kern::runtime {

class Store {
 public:
  /// Allocates everything but weights, sources and peer tables. Kind device when there is no more.
  static Result<Store> create(const manifest::Verified& manifest, Layout layout, Device& device);

  const Layout& layout() const { return layout_; }
  const Addresses& addresses() const { return addresses_; }
  const Capacity& capacity() const { return layout_.capacity; }
  std::byte* state(size_t index) const { return addresses_.states[index]; }
  int64_t state_bytes(size_t index) const { return layout_.state_bytes[index]; }

  /// Who must reach a buffer's or state's memory, by name.
  Reach reach_of(const std::string& name) const {
    return reached_.contains(name) ? Reach::peers : Reach::own;
  }
  /// Hands a weight's or source's bytes over; `release` frees a source's.
  void set_bound(size_t index, Block block);
  void release(size_t index);
  /// Fills peer buffers, once everything they hold addresses of is there. Kind peer.
  Result<void> point_peers(const manifest::Verified& manifest, Device& device,
                           const std::map<std::string, PeerGroup*>& peers);

 private:
  Result<void> stage(const manifest::Verified& manifest, Device& device);

  Layout layout_;
  Addresses addresses_;
  std::set<std::string, std::less<>> reached_;
  std::vector<Block> states_;
  std::vector<Block> owned_;  ///< by buffer
  Staged staged_;
  Block arena_;
};

}  // namespace kern::runtime
