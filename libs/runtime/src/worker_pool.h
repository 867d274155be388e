#pragma once
/// A fixed set of threads that share one loop at a time.
/// The calling thread works too. Which worker takes which piece is not determined, so a piece must
/// write only what no other piece touches.
/// Thread safety: `run` from one thread at a time.

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace kern::runtime {

class WorkerPool {
 public:
  /// `threads` counts the calling one; at least 1.
  explicit WorkerPool(int threads);
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;
  ~WorkerPool();

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  /// Calls body(worker, begin, end) until [0, count) is covered, in pieces of `grain`, and returns
  /// when all are done. Allocates nothing.
  template <class Body>
  void run(int64_t count, int64_t grain, Body& body) {
    if (workers_.empty() || count <= grain) {
      body(0, int64_t{0}, count);
      return;
    }
    run_shared(count, grain, &body, [](void* context, int worker, int64_t begin, int64_t end) {
      (*static_cast<Body*>(context))(worker, begin, end);
    });
  }

 private:
  using Call = void (*)(void* context, int worker, int64_t begin, int64_t end);
  // The loop in progress: its number above, the next piece below. kClosed in the low half means
  // that the fields are being written.
  static constexpr uint64_t kClosed = 0xFFFFFFFFu;

  void run_shared(int64_t count, int64_t grain, void* context, Call call);
  void take_pieces(int worker);
  void live(int worker);

  std::atomic<uint64_t> ticket_{kClosed};
  std::atomic<int64_t> count_{0}, grain_{1};
  std::atomic<void*> context_{nullptr};
  std::atomic<Call> call_{nullptr};
  std::atomic<int64_t> left_{0};   // elements not yet done
  std::atomic<uint32_t> bell_{0};  // rung once a loop
  std::atomic<uint32_t> sleepers_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

}  // namespace kern::runtime
