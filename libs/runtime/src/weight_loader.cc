#include "weight_loader.h"

#include <algorithm>
#include <mutex>
#include <optional>

namespace kern::runtime {
namespace {

constexpr TimeNs kReportEvery = 5 * kSecondNs;

double gigabytes(int64_t bytes) {
  return static_cast<double>(bytes) * 1e-9;
}

}  // namespace

void WeightLoader::add(cuda::api::Pointer to, const WeightPlan& plan) {
  for (int64_t begin = 0; begin < plan.bytes(); begin += kSliceBytes)
    slices_.push_back({tasks_.size(), begin, std::min(kSliceBytes, plan.bytes() - begin)});
  tasks_.push_back({to, plan});
}

Result<std::unique_ptr<WeightLoader::Lane>> WeightLoader::open_lane() const {
  const cuda::Driver& driver = context_.driver();
  KERN_TRY(stream, cuda::Stream::create(driver));
  KERN_TRY(room, cuda::PinnedBuffer::allocate(context_, 2 * kSliceBytes));
  KERN_TRY(first_passed, cuda::Event::create(driver));
  KERN_TRY(second_passed, cuda::Event::create(driver));
  return std::make_unique<Lane>(Lane{
      std::move(stream), std::move(room), {std::move(first_passed), std::move(second_passed)}});
}

Result<void> WeightLoader::move(std::unique_ptr<Lane>& lane, const Slice& slice) {
  if (lane == nullptr) {  // each thread its own: locking memory takes as long as copying it
    KERN_TRY(opened, open_lane());
    lane = std::move(opened);
  }
  const size_t which = lane->next++ % 2;
  KERN_TRY_VOID(lane->passed[which].synchronize());
  const Task& task = tasks_[slice.task];
  const MutableByteSpan room = lane->piece(which).first(static_cast<size_t>(slice.bytes));
  task.plan.copy(slice.begin, room);
  KERN_TRY_VOID(lane->stream.copy_to_device(task.to + static_cast<uint64_t>(slice.begin), room));
  return lane->stream.record(lane->passed[which]);
}

void WeightLoader::report() {
  if (clock_.now() - reported_ < kReportEvery) return;
  reported_ = clock_.now();
  log_.info("weights: {:.1f} GB so far, {:.1f} GB/s", gigabytes(bytes_),
            seconds() > 0 ? gigabytes(bytes_) / seconds() : 0);
}

Result<void> WeightLoader::flush(const cuda::Stream& after) {
  if (slices_.empty()) return {};
  const TimeNs start = clock_.now();
  if (reported_ == 0) reported_ = start;
  std::mutex mutex;
  std::optional<Error> failed;
  auto body = [&](int worker, int64_t begin, int64_t end) {
    auto done = context_.make_current();
    for (int64_t i = begin; i < end && done; ++i)
      done = move(lanes_[static_cast<size_t>(worker)], slices_[static_cast<size_t>(i)]);
    const std::lock_guard lock(mutex);
    if (!done && !failed) failed = std::move(done.error());
  };
  pool_.run(static_cast<int64_t>(slices_.size()), 1, body);
  for (const Slice& slice : slices_) bytes_ += slice.bytes;
  slices_.clear();
  tasks_.clear();
  if (failed) return tl::unexpected(std::move(*failed));
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    if (lane == nullptr) continue;
    for (const cuda::Event& passed : lane->passed) KERN_TRY_VOID(after.wait(passed));
  }
  time_ += clock_.now() - start;
  report();
  return {};
}

void WeightLoader::end() {
  const TimeNs start = clock_.now();
  // Pinned memory is not given back under a copy, also after a failure.
  for (std::unique_ptr<Lane>& lane : lanes_) {
    if (lane != nullptr) (void)lane->stream.synchronize();
  }
  time_ += clock_.now() - start;
  for (std::unique_ptr<Lane>& lane : lanes_) lane.reset();
}

}  // namespace kern::runtime
