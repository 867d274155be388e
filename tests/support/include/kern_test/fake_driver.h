#pragma once
// A CUDA driver that needs no device: every function is recorded, and done at once in this
// process's own memory. A device address is a host address, a kernel is a function of the test's,
// a captured graph is replayed. It can be told to fail any call, and it knows what was not given
// back. Memory shared by descriptor is a memory file, so two processes really share it.
// One at a time: functions of a C table know no object, so they find the one that stands. Threads
// may share it; a kernel runs alone.

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kern/cuda/driver.h"

namespace kern_test {

/// The i-th parameter that a launch passed to a fake kernel.
template <class T>
T param(void* const* params, size_t i) {
  T value;
  std::memcpy(&value, params[i], sizeof(value));
  return value;
}

// A kernel: the sizes of its parameters, and what it does once a launch. `config.attributes` may be
// looked at.
struct FakeKernel {
  std::vector<size_t> param_bytes;
  std::function<void(const kern::cuda::api::LaunchConfig& config, void* const* params)> run;
};

class FakeDriver {
 public:
  FakeDriver();
  FakeDriver(const FakeDriver&) = delete;
  FakeDriver& operator=(const FakeDriver&) = delete;
  ~FakeDriver();

  const kern::cuda::Driver& driver() const { return *driver_; }

  // Entries of every module that is loaded from now on; places follow the C rules of alignment.
  std::map<std::string, FakeKernel> kernels;
  int sm = 90;
  bool posix_handles = true;
  std::function<float()> milliseconds = [] { return 1.f; };  // between two events
  size_t memory_bytes = size_t{1} << 34;                     // an allocation beyond it fails

  // Every call since the last `take_calls`, with the arguments that matter:
  // "cuMemAlloc 64", "cuLaunchKernelEx scale grid 2,1,1 block 32,1,1 stream 1".
  std::vector<std::string> take_calls();
  // Those whose name begins so, leaving the record alone.
  std::vector<std::string> calls_of(const std::string& name) const;
  // The next call of that name, or the nth from now, answers with `status` and does nothing.
  void fail(const std::string& name, kern::cuda::api::Status status, int nth = 1);
  // Records a call that another fake stands for, and answers as `fail` asked.
  kern::cuda::api::Status note(const std::string& name, const std::string& detail = {});
  // What was made and not given back: "stream", "memory 64", one line each.
  std::vector<std::string> live() const;

  struct State;
  State& state() { return *state_; }

 private:
  std::unique_ptr<State> state_;
  std::unique_ptr<const kern::cuda::Driver> driver_;
};

// A cubin for sm_90 with that machine code, as small as a file can be that is taken for one.
std::string fake_cubin(const std::string& code = {});

}  // namespace kern_test
