#include "worker_pool.h"

#include <immintrin.h>

#include <algorithm>

#include "kern/base/assert.h"
#include "kern/base/checked.h"

namespace kern::runtime {
namespace {
// About ten microseconds: longer than the gap between two launches, shorter than anyone minds.
constexpr int kSpins = 400;
}  // namespace

WorkerPool::WorkerPool(int threads) {
  KERN_ASSERT(threads >= 1, "{} threads", threads);
  workers_.reserve(static_cast<size_t>(threads) - 1);
  for (int worker = 1; worker < threads; ++worker)
    workers_.emplace_back([this, worker] { live(worker); });
}

WorkerPool::~WorkerPool() {
  stop_.store(true);
  bell_.fetch_add(1);
  bell_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void WorkerPool::run_shared(int64_t count, int64_t grain, void* context, Call call) {
  KERN_ASSERT(count > 0 && grain > 0 && ceil_div(count, grain) < static_cast<int64_t>(kClosed));
  KERN_ASSERT(left_.load(std::memory_order_relaxed) == 0, "one loop at a time");
  const uint64_t number = (ticket_.load(std::memory_order_relaxed) >> 32) + 1;
  ticket_.store(number << 32 | kClosed);
  count_.store(count);
  grain_.store(grain);
  context_.store(context);
  call_.store(call);
  left_.store(count);
  ticket_.store(number << 32);
  bell_.fetch_add(1);
  if (sleepers_.load() != 0) bell_.notify_all();
  take_pieces(0);
  for (int spin = 0; left_.load(std::memory_order_acquire) != 0; ++spin) {
    if (spin < kSpins)
      _mm_pause();
    else
      std::this_thread::yield();
  }
}

void WorkerPool::take_pieces(int worker) {
  uint64_t ticket = ticket_.load();
  for (;;) {
    const auto piece = static_cast<int64_t>(ticket & kClosed);
    // The fields belong to the loop that `ticket` names: the exchange fails if it has moved on.
    const int64_t count = count_.load(), grain = grain_.load();
    void* const context = context_.load();
    const Call call = call_.load();
    const int64_t begin = piece * grain;
    if (static_cast<uint64_t>(piece) == kClosed || begin >= count) return;
    if (!ticket_.compare_exchange_weak(ticket, ticket + 1)) continue;
    const int64_t end = std::min(begin + grain, count);
    call(context, worker, begin, end);
    left_.fetch_sub(end - begin, std::memory_order_acq_rel);
    ticket = ticket_.load();
  }
}

void WorkerPool::live(int worker) {
  uint32_t heard = 0;
  while (!stop_.load()) {
    take_pieces(worker);
    int spin = 0;
    while (bell_.load() == heard && spin < kSpins) {
      _mm_pause();
      ++spin;
    }
    if (bell_.load() == heard) {
      sleepers_.fetch_add(1);
      bell_.wait(heard);
      sleepers_.fetch_sub(1);
    }
    heard = bell_.load();
  }
}

}  // namespace kern::runtime
