#include "cuda_tier.h"

#include <algorithm>
#include <deque>
#include <vector>

#include "kern/base/assert.h"
#include "kern/cuda/memory.h"

namespace kern::runtime {
namespace {

cuda::api::Pointer pointer(const std::byte* address) {
  return reinterpret_cast<cuda::api::Pointer>(address);
}

// A step's own small copies stand in line with the tier's in the engine of their direction,
// whatever their streams. So no more than this is given to it at a time: a millisecond of a fast
// link.
constexpr int64_t kAheadBytes = int64_t{64} << 20;
constexpr int64_t kPieceBytes = kAheadBytes / 4;

class CudaTier final : public TierMemory {
 public:
  CudaTier(const cuda::Stream& main, cuda::Stream stream, cuda::PinnedBuffer memory)
      : main_(main), memory_(std::move(memory)), stream_(std::move(stream)) {}

  std::byte* data() const override { return memory_.data(); }
  std::string describe() const override {
    return memory_.node() < 0 ? "page-locked, on no NUMA node of choice"
                              : fmt::format("page-locked on NUMA node {}", memory_.node());
  }

  Result<uint64_t> start(std::span<const TierCopy> copies) override {
    KERN_TRY(behind, free_event());
    KERN_TRY_VOID(main_.record(behind));
    waiting_.push_back({++started_, std::move(behind), {copies.begin(), copies.end()}});
    KERN_TRY_VOID(go_on());
    return started_;
  }
  Result<void> await(uint64_t ticket) override {
    KERN_ASSERT(ticket <= started_, "ticket {} of {}", ticket, started_);
    KERN_TRY_VOID(done());
    while (!waiting_.empty() && waiting_.front().ticket <= ticket) KERN_TRY_VOID(enqueue_piece());
    for (const UnderWay& one : under_way_)
      if (one.ends == ticket) return main_.wait(one.mark);
    return {};  // done
  }
  Result<uint64_t> done() override {
    while (!under_way_.empty()) {
      KERN_TRY(is_done, under_way_.front().mark.is_done());
      if (!is_done) break;
      take_back();
    }
    KERN_TRY_VOID(go_on());
    return done_;
  }
  Result<void> settle() override {
    while (!waiting_.empty()) KERN_TRY_VOID(enqueue_piece());
    KERN_TRY_VOID(stream_.synchronize());
    while (!under_way_.empty()) take_back();
    return {};
  }

 private:
  /// A move of which something is not enqueued yet: from row `row` of `copies[next]` on.
  struct Waiting {
    uint64_t ticket = 0;
    cuda::Event behind;  ///< what stood on the main stream when it was started
    std::vector<TierCopy> copies;
    size_t next = 0;
    int64_t row = 0;
  };
  struct UnderWay {
    uint64_t ends = 0;  ///< the ticket whose last piece this is; else 0
    int64_t bytes = 0;
    cuda::Event mark;
  };

  Result<cuda::Event> free_event() {
    if (free_.empty()) return cuda::Event::create(main_.driver());
    cuda::Event event = std::move(free_.back());
    free_.pop_back();
    return event;
  }
  void take_back() {
    UnderWay& first = under_way_.front();
    if (first.ends != 0) done_ = first.ends;
    ahead_bytes_ -= first.bytes;
    free_.push_back(std::move(first.mark));
    under_way_.pop_front();
  }
  Result<void> go_on() {
    while (!waiting_.empty() && ahead_bytes_ < kAheadBytes) KERN_TRY_VOID(enqueue_piece());
    return {};
  }

  /// About kPieceBytes of the first move that waits. All are of one order on one stream: a place
  /// that one copy leaves, the next may fill.
  Result<void> enqueue_piece() {
    Waiting& move = waiting_.front();
    KERN_TRY(mark, free_event());
    if (move.next == 0 && move.row == 0) KERN_TRY_VOID(stream_.wait(move.behind));
    int64_t bytes = 0;
    while (move.next < move.copies.size() && bytes < kPieceBytes) {
      const TierCopy& copy = move.copies[move.next];
      const int64_t fit = std::max<int64_t>((kPieceBytes - bytes) / copy.row_bytes, 1);
      const int64_t rows = std::min(fit, copy.rows - move.row);
      KERN_TRY_VOID(enqueue(copy, move.row, rows));
      bytes += rows * copy.row_bytes;
      move.row += rows;
      if (move.row == copy.rows) ++move.next, move.row = 0;
    }
    KERN_TRY_VOID(stream_.record(mark));
    ahead_bytes_ += bytes;
    const bool is_last = move.next == move.copies.size();
    under_way_.push_back({is_last ? move.ticket : 0, bytes, std::move(mark)});
    if (is_last) {
      free_.push_back(std::move(move.behind));
      waiting_.pop_front();
    }
    return {};
  }
  Result<void> enqueue(const TierCopy& copy, int64_t row, int64_t rows) const {
    const cuda::Rows of{copy.row_bytes, rows, copy.device_pitch, copy.host_pitch};
    std::byte* const host = copy.host + row * copy.host_pitch;
    const cuda::api::Pointer device = pointer(copy.device + row * copy.device_pitch);
    return copy.to_host ? stream_.copy_rows_to_host(host, device, of)
                        : stream_.copy_rows_to_device(device, host, of);
  }

  const cuda::Stream& main_;
  cuda::PinnedBuffer memory_;
  cuda::Stream stream_;
  std::deque<Waiting> waiting_;
  std::deque<UnderWay> under_way_;
  std::vector<cuda::Event> free_;  ///< done with, for the next moves
  int64_t ahead_bytes_ = 0;        ///< of what is under way
  uint64_t started_ = 0, done_ = 0;
};

}  // namespace

Result<std::unique_ptr<TierMemory>> make_cuda_tier(const cuda::Context& context,
                                                   const cuda::Stream& main, int64_t bytes) {
  KERN_TRY(memory, cuda::PinnedBuffer::allocate(context, bytes));
  KERN_TRY(stream, cuda::Stream::create(context.driver()));
  return std::unique_ptr<TierMemory>(
      std::make_unique<CudaTier>(main, std::move(stream), std::move(memory)));
}

}  // namespace kern::runtime
