#pragma once
/// The adapter from the engine's items to a runtime's programs: it fills every input by the role
/// that the manifest's protocol gives it, picks the program by phase, and reads the tokens back.
/// Thread safety: one thread calls run and touches the crossing buffers.
/// Ownership: the Runtime must outlive the executor; the manifest need not.
/// Does not: decide anything, split an item, move bytes between processes, or know a buffer's name
/// beyond what the protocol tells.

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kern/engine/executor.h"
#include "kern/manifest/protocol.h"
#include "kern/runtime/runtime.h"

namespace kern::node {

struct ExecutorOptions {
  runtime::Capacity capacity;                        ///< as the Runtime was loaded with
  std::map<std::string, runtime::PeerGroup*> peers;  ///< likewise
  int64_t rows_max = 0;                              ///< of a prefill item; 0: the manifest's bound
  int64_t seqs_max = 0;                              ///< of any item; 0: the manifest's bound
};

/// A buffer that a pipeline stage takes from the one before or hands to the one after.
struct Crossing {
  std::string name;
  MutableByteSpan bytes;      ///< at the vars' bounds
  int64_t bytes_per_row = 0;  ///< 0: it does not grow with rows
  int64_t bytes_per_seq = 0;  ///< 0: it does not grow with sequences

  /// The front part that an item of so many rows and sequences fills.
  MutableByteSpan valid(int64_t rows, int64_t seqs) const;
};

/// Rows of all slices together.
int64_t rows_of(const engine::Item& item);

class RuntimeExecutor final : public engine::Executor {
 public:
  /// Kind manifest when no program serves sequences or an input's role is one this executor does
  /// not fill; caller when the limits asked for exceed the manifest's.
  static Result<std::unique_ptr<RuntimeExecutor>> create(const manifest::Verified& manifest,
                                                         runtime::Runtime& runtime,
                                                         const ExecutorOptions& options);
  ~RuntimeExecutor() override;

  const engine::ExecutorLimits& limits() const;
  /// What must stand in the runtime before `run`, and what stands there after it. One process that
  /// runs a whole manifest has neither.
  std::span<const Crossing> received() const;
  std::span<const Crossing> sent() const;

  /// Starts an item's moves to and from host memory, ahead of `run`, which does it otherwise: while
  /// a stage waits for what the stage before makes. Kind caller when this process has no host tier.
  Result<void> start_moves(const engine::Item& item);
  /// Waits for every move and forgets their items, whose ids may then come again.
  Result<void> settle();

  /// Starts moves, waits for those that the item comes after; zeroes and copies, fills, runs,
  /// reads. Kind caller, with nothing run, when the item does not
  /// fit the program, its pages or its slots. `start` and `finish`, with nothing else started.
  Result<engine::ItemResult> run(const engine::Item& item) override;

  /// The same in halves, so that an item is started before the one ahead of it has ended: at most
  /// `kStartedMax` at once, finished in the order of their start. What crosses to another process
  /// is no part of this: a stage runs its items.
  static constexpr size_t kStartedMax = 2;
  Result<void> start(const engine::Item& item);
  /// Whether `finish` of the oldest would not wait.
  Result<bool> is_done();
  Result<engine::ItemResult> finish();
  size_t started() const;

  /// Captures every step of the limits (a number of sequences each) where the manifest lets them be
  /// captured and nothing but that number tells them apart; how many there are.
  Result<int64_t> capture_steps();

 private:
  struct State;

 public:
  explicit RuntimeExecutor(std::unique_ptr<State> state);  ///< for `create`

 private:
  std::unique_ptr<State> state_;
};

}  // namespace kern::node
