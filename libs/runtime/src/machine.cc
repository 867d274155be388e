#include "machine.h"

#include <algorithm>

#include "kern/base/assert.h"
#include "kern/base/clock.h"

namespace kern::runtime {
namespace {

// Pieces a worker: enough to even out blocks of unequal cost, few enough to claim cheaply.
constexpr int64_t kPiecesPerWorker = 8;

}  // namespace

Result<void> Machine::reserve(int64_t shared_bytes, int64_t collective_bytes) {
  if (shared_.empty() || shared_bytes > shared_bytes_) {
    shared_.clear();
    for (int worker = 0; worker < pool_.threads(); ++worker) {
      KERN_TRY(memory, Memory::zeroed(shared_bytes));
      shared_.push_back(std::move(memory));
    }
    shared_bytes_ = shared_bytes;
  }
  if (collective_bytes > collective_bytes_) {
    KERN_TRY(memory, Memory::zeroed(collective_bytes));
    collective_ = std::move(memory);
    collective_bytes_ = collective_bytes;
  }
  return {};
}

void Machine::run_grid(const Launch& launch) {
  kern_block shape = {};
  int64_t blocks = 1;
  for (int axis = 0; axis < 3; ++axis) {
    shape.grid[axis] = static_cast<uint32_t>(*launch.grid[axis]);
    shape.block[axis] = launch.block[axis];
    blocks *= *launch.grid[axis];
  }
  if (blocks == 0) return;
  shape.shared_bytes = launch.shared_bytes ? static_cast<uint32_t>(*launch.shared_bytes) : 0;
  KERN_ASSERT(blocks > 0 && shape.shared_bytes <= shared_bytes_, "{} blocks, {} shared bytes",
              blocks, shape.shared_bytes);
  shape.services = &host_services(isa_);
  const auto entry = reinterpret_cast<kern_host_entry>(const_cast<void*>(launch.kernel));
  auto body = [&](int worker, int64_t begin, int64_t end) {
    kern_block block = shape;
    block.shared = shared_[static_cast<size_t>(worker)].data();
    const uint64_t wide = shape.grid[0], plane = wide * shape.grid[1];
    for (int64_t at = begin; at < end; ++at) {
      const auto place = static_cast<uint64_t>(at);
      block.index[0] = static_cast<uint32_t>(place % wide);
      block.index[1] = static_cast<uint32_t>(place % plane / wide);
      block.index[2] = static_cast<uint32_t>(place / plane);
      entry(&block, launch.args);
    }
  };
  pool_.run(blocks, std::max<int64_t>(1, blocks / (pool_.threads() * kPiecesPerWorker)), body);
}

Result<void> Machine::run_one(const LoweredProgram& program, const Launch& launch) {
  if (launch.kernel == nullptr)
    return with_context(launch.built_in->run(launch), "program `{}`, call {}, op `{}`",
                        program.name, launch.call, launch.op);
  run_grid(launch);
  return {};
}

Result<void> Machine::run(const LoweredProgram& program, std::vector<LaunchTime>* times) {
  const SystemClock clock;
  auto watch = program.watches.begin();
  size_t of_call = 0;  // the launch's position in its call
  for (size_t i = 0; i < program.launches.size(); ++i) {
    const Launch& launch = program.launches[i];
    of_call = i > 0 && program.launches[i - 1].call == launch.call ? of_call + 1 : 0;
    if (launch.is_on()) {
      const TimeNs start = times != nullptr ? clock.now() : 0;
      KERN_TRY_VOID(run_one(program, launch));
      if (times != nullptr)
        times->push_back(
            {launch.call, of_call, static_cast<double>(clock.now() - start) / kMillisecondNs});
    }
    if (watch == program.watches.end()) continue;
    if (i + 1 < program.launches.size() && program.launches[i + 1].call == launch.call) continue;
    while (watch != program.watches.end() && watch->call <= launch.call) {
      watch->see(watch->bytes);
      ++watch;
    }
  }
  return {};
}

}  // namespace kern::runtime
