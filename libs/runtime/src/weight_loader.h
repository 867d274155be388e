#pragma once
/// Weights from the checkpoint's maps to a device: threads put ranges together in pinned memory
/// while earlier ranges are on their way, each thread on a stream of its own.
/// Thread safety: one thread at a time. Ownership: the checkpoint's maps outlive `flush`.

#include <memory>
#include <vector>

#include "bind.h"
#include "kern/base/clock.h"
#include "kern/base/log.h"
#include "kern/cuda/memory.h"
#include "kern/cuda/stream.h"
#include "worker_pool.h"

namespace kern::runtime {

class WeightLoader {
 public:
  /// Bytes that one copy moves at most, and so each of a thread's two pieces of pinned memory.
  static constexpr int64_t kSliceBytes = int64_t{2} << 20;

  WeightLoader(const cuda::Context& context, int threads, Log log)
      : context_(context), log_(std::move(log)), pool_(threads) {}
  ~WeightLoader() { end(); }

  /// Notes that the bytes of a plan go to an address; nothing moves yet.
  void add(cuda::api::Pointer to, const WeightPlan& plan);
  /// Moves all that was noted; `after` is ordered behind it. Kind device.
  Result<void> flush(const cuda::Stream& after);
  /// Gives pinned memory and streams back.
  void end();

  int64_t bytes() const { return bytes_; }
  double seconds() const { return static_cast<double>(time_) / kSecondNs; }

 private:
  /// A thread's two pieces, used in turn.
  struct Lane {
    cuda::Stream stream;
    cuda::PinnedBuffer pieces[2];
    cuda::Event passed[2];
    uint64_t next = 0;
  };
  struct Task {
    cuda::api::Pointer to;
    WeightPlan plan;
  };
  struct Slice {
    size_t task;
    int64_t begin, bytes;
  };

  Result<void> open_lanes();
  Result<void> move(Lane& lane, const Slice& slice);
  void report();

  const cuda::Context& context_;
  Log log_;
  WorkerPool pool_;
  std::vector<std::unique_ptr<Lane>> lanes_;  ///< by worker
  std::vector<Task> tasks_;
  std::vector<Slice> slices_;
  SystemClock clock_;
  int64_t bytes_ = 0, time_ = 0;
  TimeNs reported_ = 0;
};

}  // namespace kern::runtime
