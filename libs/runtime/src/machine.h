#pragma once
/// What runs launches: the workers, their shared memory, and room for gathered blocks.

#include <vector>

#include "kern/runtime/host_gemm.h"
#include "memory.h"
#include "program.h"
#include "worker_pool.h"

namespace kern::runtime {

class Machine {
 public:
  explicit Machine(int threads) : isa_(supported_isas().back()), pool_(threads) {}

  /// Makes room for the largest launch of a program; called at load only.
  Result<void> reserve(int64_t shared_bytes, int64_t collective_bytes);
  /// Runs every launch in order. The program's values have been evaluated. Adds to `times` how long
  /// each took.
  Result<void> run(const LoweredProgram& program, std::vector<LaunchTime>* times = nullptr);

  Isa isa() const { return isa_; }
  WorkerPool& pool() { return pool_; }
  int threads() const { return pool_.threads(); }
  MutableByteSpan collective_room() const {
    return {collective_.data(), static_cast<size_t>(collective_bytes_)};
  }

 private:
  void run_grid(const Launch& launch);
  Result<void> run_one(const LoweredProgram& program, const Launch& launch);

  Isa isa_;
  WorkerPool pool_;
  std::vector<Memory> shared_;  ///< one a worker
  Memory collective_;
  int64_t shared_bytes_ = 0, collective_bytes_ = 0;
};

}  // namespace kern::runtime
