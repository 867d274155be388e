#pragma once
/// What a Runtime runs on, and all that differs between the host and a GPU: memory, kernels,
/// built-ins, and how a flat list of launches is worked off. Whatever is above it (names, vars,
/// liveness, lowering) is the same for both. Addresses are the device's own; only `Staged::host`
/// may be read by this process.
/// Thread safety: one thread at a time; `enter` first where that thread may be a new one.

#include <memory>

#include "bind.h"
#include "kern/base/log.h"
#include "kern/runtime/runtime.h"
#include "target.h"
#include "tier_memory.h"

namespace kern::runtime {

/// Gives memory back when it goes.
struct Owned {
  virtual ~Owned() = default;
};

struct Block {
  std::byte* address = nullptr;
  std::unique_ptr<Owned> owner;  ///< null: somebody else's
};

/// Memory that the caller fills or reads at `host`, and kernels at `device`.
struct Staged {
  std::byte* host = nullptr;
  std::byte* device = nullptr;
  std::unique_ptr<Owned> owner;
};

/// Who reaches a block beside this process.
enum class Reach : uint8_t { own, peers };

class Device : public Target {
 public:
  /// Makes the device the calling thread's.
  virtual Result<void> enter() = 0;
  /// For the line that a load logs: "host device: 4 threads, avx2".
  virtual std::string describe() const = 0;

  // ---- memory: all of it zeroed; kind device when there is no more ----
  virtual Result<Block> allocate(int64_t bytes, Reach reach) = 0;
  /// Called once: every input, inout and output lies in it, those whose changes are told by
  /// comparing in its first `compared_bytes`.
  virtual Result<Staged> allocate_staged(int64_t bytes, int64_t compared_bytes) = 0;
  /// A weight or source out of the checkpoint. It may still be on its way when this returns, but is
  /// there for whatever is enqueued later.
  virtual Result<Block> bind(const manifest::Buffer& buffer, const WeightPlan& plan,
                             Reach reach) = 0;
  /// The table of every member's address of a block, in rank order; `own` was allocated with
  /// Reach::peers where the group has other members. `group` is null for a group of one.
  virtual Result<Block> share(const Block& own, int64_t bytes, PeerGroup* group) = 0;
  virtual Result<void> copy(std::byte* to, const std::byte* from, int64_t bytes) = 0;
  virtual Result<void> zero(std::byte* at, int64_t bytes) = 0;
  /// Apart from what is enqueued, and from any thread: of memory that no enqueued work touches.
  virtual Result<void> read(MutableByteSpan to, const std::byte* from) = 0;
  virtual Result<void> write(std::byte* to, ByteSpan from) = 0;
  /// Host memory for a tier. Kind device when there is none to be had.
  virtual Result<std::unique_ptr<TierMemory>> make_tier(int64_t bytes) = 0;
  /// Whether addresses may be read by this process.
  virtual bool is_host() const = 0;

  // ---- running ----
  /// Makes room for what the program needs beside its arena; its cells are at the vars' bounds.
  virtual Result<void> reserve(const LoweredProgram& program) = 0;
  /// Its values have been evaluated, and `vars` are those of the manifest's vars: inputs in,
  /// launches, outputs out.
  virtual Result<void> enqueue(LoweredProgram& program, std::span<const int64_t> vars) = 0;
  /// The same in two halves, each with its own end to wait for (Runtime::launch).
  virtual Result<void> launch(LoweredProgram& program, std::span<const int64_t> vars) = 0;
  virtual Result<void> read_back(const LoweredProgram& program) = 0;
  virtual Result<void> wait_inputs() = 0;
  virtual Result<bool> outputs_are_here() = 0;
  virtual Result<void> wait_outputs() = 0;
  /// Captures it at its present values, unless that was done or it is never captured.
  virtual Result<void> capture(LoweredProgram& program, std::span<const int64_t> vars) = 0;
  /// `enqueue` and `synchronize`, and how long each launch took.
  virtual Result<std::vector<LaunchTime>> run_timed(LoweredProgram& program) = 0;
  /// Waits for all that was enqueued, copies included.
  virtual Result<void> synchronize() = 0;
  /// Gives back what only loading needs.
  virtual void end_load() {}
};

}  // namespace kern::runtime
