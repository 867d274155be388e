#pragma once
// An NCCL that needs no device: ranks are threads of this process that meet in each collective, and
// bytes move in its own memory, sums in rank order. Calls are recorded by the fake driver that
// stands, so that one record holds both in their order, and fail as that is told.
// One at a time, within the life of a FakeDriver.

#include <memory>

#include "kern/cuda/nccl.h"
#include "kern_test/fake_driver.h"

namespace kern_test {

class FakeNccl {
 public:
  explicit FakeNccl(FakeDriver& driver);
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;
  ~FakeNccl();

  const kern::cuda::Nccl& nccl() const { return *nccl_; }
  // From now on nobody waits for another rank and no byte moves: calls are recorded only.
  void record_only();
  // A rank is gone: who waits for it goes on with nothing, and learns why by asking.
  void lose_a_rank();
  // Communicators made and not given back.
  int live() const;
  // Groups of calls that were begun and not ended, by the calling thread.
  int open_groups() const;

  struct State;
  State& state() { return *state_; }

 private:
  std::unique_ptr<State> state_;
  std::unique_ptr<const kern::cuda::Nccl> nccl_;
};

}  // namespace kern_test
