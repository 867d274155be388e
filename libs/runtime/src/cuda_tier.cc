#include "cuda_tier.h"

#include <deque>
#include <vector>

#include "kern/base/assert.h"
#include "kern/cuda/memory.h"

namespace kern::runtime {
namespace {

cuda::api::Pointer pointer(const std::byte* address) {
  return reinterpret_cast<cuda::api::Pointer>(address);
}

class CudaTier final : public TierMemory {
 public:
  CudaTier(const cuda::Stream& main, cuda::Stream stream, cuda::Event enqueued,
           cuda::PinnedBuffer memory)
      : main_(main),
        memory_(std::move(memory)),
        stream_(std::move(stream)),
        enqueued_(std::move(enqueued)) {}

  std::byte* data() const override { return memory_.data(); }
  std::string describe() const override {
    return memory_.node() < 0 ? "page-locked, on no NUMA node of choice"
                              : fmt::format("page-locked on NUMA node {}", memory_.node());
  }

  /// Of one order on one stream: a place that one copy leaves, the next may fill.
  Result<uint64_t> start(std::span<const TierCopy> copies) override {
    KERN_TRY(mark, free_event());
    KERN_TRY_VOID(main_.record(enqueued_));
    KERN_TRY_VOID(stream_.wait(enqueued_));
    for (const TierCopy& copy : copies) KERN_TRY_VOID(enqueue(copy));
    KERN_TRY_VOID(stream_.record(mark));
    under_way_.push_back({++started_, std::move(mark)});
    return started_;
  }
  Result<void> await(uint64_t ticket) override {
    KERN_ASSERT(ticket <= started_, "ticket {} of {}", ticket, started_);
    KERN_TRY_VOID(done());
    for (const UnderWay& one : under_way_)
      if (one.ticket == ticket) return main_.wait(one.mark);
    return {};  // done
  }
  Result<uint64_t> done() override {
    while (!under_way_.empty()) {
      KERN_TRY(is_done, under_way_.front().mark.is_done());
      if (!is_done) break;
      done_ = under_way_.front().ticket;
      free_.push_back(std::move(under_way_.front().mark));
      under_way_.pop_front();
    }
    return done_;
  }
  Result<void> settle() override {
    KERN_TRY_VOID(stream_.synchronize());
    KERN_TRY_VOID(done());
    return {};
  }

 private:
  struct UnderWay {
    uint64_t ticket = 0;
    cuda::Event mark;
  };

  Result<cuda::Event> free_event() {
    if (free_.empty()) return cuda::Event::create(main_.driver());
    cuda::Event event = std::move(free_.back());
    free_.pop_back();
    return event;
  }
  Result<void> enqueue(const TierCopy& copy) const {
    const cuda::Rows rows{copy.row_bytes, copy.rows, copy.device_pitch, copy.host_pitch};
    return copy.to_host ? stream_.copy_rows_to_host(copy.host, pointer(copy.device), rows)
                        : stream_.copy_rows_to_device(pointer(copy.device), copy.host, rows);
  }

  const cuda::Stream& main_;
  cuda::PinnedBuffer memory_;
  cuda::Stream stream_;
  cuda::Event enqueued_;  ///< what stood on the main stream when a move was started
  std::deque<UnderWay> under_way_;
  std::vector<cuda::Event> free_;  ///< done with, for the next moves
  uint64_t started_ = 0, done_ = 0;
};

}  // namespace

Result<std::unique_ptr<TierMemory>> make_cuda_tier(const cuda::Context& context,
                                                   const cuda::Stream& main, int64_t bytes) {
  KERN_TRY(memory, cuda::PinnedBuffer::allocate(context, bytes));
  KERN_TRY(stream, cuda::Stream::create(context.driver()));
  KERN_TRY(enqueued, cuda::Event::create(context.driver()));
  return std::unique_ptr<TierMemory>(
      std::make_unique<CudaTier>(main, std::move(stream), std::move(enqueued), std::move(memory)));
}

}  // namespace kern::runtime
