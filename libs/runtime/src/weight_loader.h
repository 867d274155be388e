#pragma once
/// Weights from the checkpoint's maps to a device: threads put ranges together in pinned memory
/// while earlier ranges are on their way, each thread on a stream of its own. A copy costs the link
/// some 3 us besides its bytes, so pieces are large; and the first touch of a mapped page costs a
/// thread as much as half the page's copy, so threads are many.
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
  static constexpr int64_t kSliceBytes = int64_t{4} << 20;

  WeightLoader(const cuda::Context& context, int threads, Log log)
      : context_(context),
        log_(std::move(log)),
        pool_(threads),
        lanes_(static_cast<size_t>(pool_.threads())) {}
  ~WeightLoader() { end(); }

  /// Notes that the bytes of a plan go to an address; nothing moves yet.
  void add(cuda::api::Pointer to, const WeightPlan& plan);
  /// Moves all that was noted; `after` is ordered behind it. Kind device.
  Result<void> flush(const cuda::Stream& after);
  /// Waits for the last copies, and gives pinned memory and streams back.
  void end();

  int64_t bytes() const { return bytes_; }
  double seconds() const { return static_cast<double>(time_) / kSecondNs; }

 private:
  /// A thread's two pieces, used in turn.
  struct Lane {
    cuda::Stream stream;
    cuda::PinnedBuffer room;
    MutableByteSpan piece(size_t which) const {
      return room.bytes().subspan(which * kSliceBytes, kSliceBytes);
    }
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

  Result<std::unique_ptr<Lane>> open_lane() const;
  Result<void> move(std::unique_ptr<Lane>& lane, const Slice& slice);
  void report();

  const cuda::Context& context_;
  Log log_;
  WorkerPool pool_;
  std::vector<std::unique_ptr<Lane>> lanes_;  ///< by worker; null: it had nothing to do yet
  std::vector<Task> tasks_;
  std::vector<Slice> slices_;
  SystemClock clock_;
  int64_t bytes_ = 0, time_ = 0;
  TimeNs reported_ = 0;
};

}  // namespace kern::runtime
