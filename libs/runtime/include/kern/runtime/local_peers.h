#pragma once
/// A group whose ranks are threads of one process: for tests, and for a command that runs every
/// rank of a manifest by itself. Thread safety: each member is used by one thread; the members may
/// run at once. Ownership: members belong to their LocalGroup, which outlives the Runtimes that use
/// them. Does not: cross a process, or wait for a member that said it has left.

#include <memory>

#include "kern/runtime/peers.h"

namespace kern::runtime {

class LocalGroup {
 public:
  explicit LocalGroup(int size);
  LocalGroup(const LocalGroup&) = delete;
  LocalGroup& operator=(const LocalGroup&) = delete;
  ~LocalGroup();

  PeerGroup& member(int rank);
  /// Says that this rank makes no more calls: whoever waits for it, now or later, fails with kind
  /// peer. To be called on every way out.
  void leave(int rank);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kern::runtime
