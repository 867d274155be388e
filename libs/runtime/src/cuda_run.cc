#include "cuda_run.h"

#include <algorithm>
#include <cstring>

#include "cuda_kernels.h"
#include "kern/base/assert.h"

namespace kern::runtime {
namespace {

/// Changed ranges closer than this go in one copy: a copy costs about as much as so many bytes.
constexpr size_t kGapBytes = 64 << 10;
/// Inputs are compared in pieces of this size.
constexpr size_t kCompareBytes = 256;

cuda::api::Pointer pointer(const std::byte* address) {
  return reinterpret_cast<cuda::api::Pointer>(address);
}

Result<void> enqueue_kernel(const cuda::Stream& stream, const Launch& launch) {
  cuda::LaunchShape shape;
  for (size_t axis = 0; axis < 3; ++axis) {
    const Cell extent = *launch.grid[axis];
    if (extent == 0) return {};  // no block
    KERN_ASSERT(extent > 0 && extent <= INT32_MAX, "op `{}`: a grid of {}", launch.op, extent);
    shape.grid[axis] = static_cast<uint32_t>(extent);
    shape.block[axis] = launch.block[axis];
    shape.cluster[axis] = launch.cluster[axis];
  }
  if (launch.shared_bytes != nullptr)
    shape.shared_bytes = static_cast<uint32_t>(*launch.shared_bytes);
  shape.pdl = launch.pdl;
  const auto* kernel = static_cast<const CudaKernel*>(launch.kernel);
  return cuda::launch(stream, kernel->function, shape, launch.args);
}

/// A watched buffer as it stands, in memory of this process.
Result<void> show(const cuda::Stream& stream, const LoweredProgram::Watch& watch) {
  std::vector<std::byte> bytes(watch.bytes.size());
  KERN_TRY_VOID(stream.copy_to_host(bytes, pointer(watch.bytes.data())));
  KERN_TRY_VOID(stream.synchronize());
  watch.see(bytes);
  return {};
}

}  // namespace

// ---- what the caller fills and reads ----

/// From the first to the last piece that differs from what was sent; empty when none does.
Staging::Range Staging::changed(const Transfer& transfer) const {
  const auto first = static_cast<size_t>(transfer.host - host_.data());
  const size_t last = first + static_cast<size_t>(transfer.bytes());
  KERN_ASSERT(last <= sent_.size(), "{} of {} bytes of inputs", last, sent_.size());
  const auto differs = [&](size_t at) {
    const size_t size = std::min(kCompareBytes, last - at);
    return std::memcmp(host_.data() + at, sent_.data() + at, size) != 0;
  };
  Range range{last, last};
  for (size_t at = first; at < last; at += kCompareBytes) {
    if (!differs(at)) continue;
    if (range.begin == last) range.begin = at;
    range.end = std::min(at + kCompareBytes, last);
  }
  return range;
}

Result<void> Staging::upload(const cuda::Stream& stream, const LoweredProgram& program) {
  ranges_.clear();
  for (const Transfer& transfer : program.uploads) {
    if (transfer.changes_only) {
      const Range range = changed(transfer);
      if (range.begin != range.end) ranges_.push_back(range);
    } else {
      KERN_TRY_VOID(stream.copy_to_device(pointer(transfer.device),
                                          {transfer.host, static_cast<size_t>(transfer.bytes())}));
    }
  }
  std::sort(ranges_.begin(), ranges_.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  for (size_t i = 0; i < ranges_.size();) {
    Range range = ranges_[i++];
    while (i < ranges_.size() && ranges_[i].begin - range.end < kGapBytes)
      range.end = ranges_[i++].end;
    const size_t size = range.end - range.begin;
    std::memcpy(sent_.data() + range.begin, host_.data() + range.begin, size);
    KERN_TRY_VOID(
        stream.copy_to_device(pointer(device() + range.begin), {host_.data() + range.begin, size}));
  }
  return {};
}

Result<void> Staging::download(const cuda::Stream& stream, const LoweredProgram& program) const {
  for (const Transfer& transfer : program.downloads)
    KERN_TRY_VOID(stream.copy_to_host({transfer.host, static_cast<size_t>(transfer.bytes())},
                                      pointer(transfer.device)));
  return {};
}

// ---- beside the main stream ----

Result<std::unique_ptr<SideCopies>> SideCopies::create(const cuda::Context& context) {
  KERN_TRY(stream, cuda::Stream::create(context.driver()));
  KERN_TRY(piece, cuda::PinnedBuffer::allocate(context, kPieceBytes));
  return std::make_unique<SideCopies>(context, std::move(stream), std::move(piece));
}

Result<void> SideCopies::read(MutableByteSpan to, cuda::api::Pointer from) {
  const std::lock_guard lock(mutex_);
  KERN_TRY_VOID(context_.make_current());
  while (!to.empty()) {
    const size_t size = std::min<size_t>(to.size(), kPieceBytes);
    const MutableByteSpan room = piece_.bytes().first(size);
    KERN_TRY_VOID(stream_.copy_to_host(room, from));
    KERN_TRY_VOID(stream_.synchronize());
    std::memcpy(to.data(), room.data(), size);
    to = to.subspan(size);
    from += size;
  }
  return {};
}

Result<void> SideCopies::write(cuda::api::Pointer to, ByteSpan from) {
  const std::lock_guard lock(mutex_);
  KERN_TRY_VOID(context_.make_current());
  while (!from.empty()) {
    const size_t size = std::min<size_t>(from.size(), kPieceBytes);
    const MutableByteSpan room = piece_.bytes().first(size);
    std::memcpy(room.data(), from.data(), size);
    KERN_TRY_VOID(stream_.copy_to_device(to, room));
    KERN_TRY_VOID(stream_.synchronize());
    from = from.subspan(size);
    to += size;
  }
  return {};
}

// ---- graphs ----

const cuda::Graph* GraphCache::find(const Key& key, bool& wants) {
  const auto found = by_key_.find(key);
  if (found != by_key_.end()) {
    kept_.splice(kept_.begin(), kept_, found->second);
    return &found->second->graph;
  }
  if (met_.size() >= kMetMax && !met_.contains(key)) met_.clear();
  wants = ++met_[key] > 1;
  return nullptr;
}

const cuda::Graph& GraphCache::keep(Key key, cuda::Graph graph) {
  if (kept_.size() >= graphs_max_) {
    by_key_.erase(kept_.back().key);
    kept_.pop_back();
  }
  met_.erase(key);
  kept_.push_front({key, std::move(graph)});
  by_key_[std::move(key)] = kept_.begin();
  return kept_.front().graph;
}

// ---- launches ----

Result<LaunchMarks> LaunchMarks::create(const cuda::Driver& driver, const LoweredProgram& program) {
  LaunchMarks marks;
  for (size_t i = 0; i <= program.launches.size(); ++i) {
    KERN_TRY(event, cuda::Event::create(driver, cuda::Event::Timing::on));
    marks.events_.push_back(std::move(event));
  }
  marks.times_.reserve(program.launches.size());
  return marks;
}

Result<void> LaunchMarks::mark(const cuda::Stream& stream, size_t call, size_t launch) {
  times_.push_back({call, launch, 0});
  return stream.record(events_[times_.size()]);
}

Result<std::vector<LaunchTime>> LaunchMarks::read() {
  for (size_t i = 0; i < times_.size(); ++i) {
    KERN_TRY(milliseconds, events_[i + 1].milliseconds_since(events_[i]));
    times_[i].milliseconds = milliseconds;
  }
  return std::move(times_);
}

Result<void> enqueue_launches(const cuda::Stream& stream, const LoweredProgram& program,
                              LaunchMarks* marks) {
  auto watch = program.watches.begin();
  size_t of_call = 0;  // the launch's position in its call
  if (marks != nullptr) KERN_TRY_VOID(marks->begin(stream));
  for (size_t i = 0; i < program.launches.size(); ++i) {
    const Launch& launch = program.launches[i];
    of_call = i > 0 && program.launches[i - 1].call == launch.call ? of_call + 1 : 0;
    if (launch.is_on()) {
      auto done =
          launch.kernel != nullptr ? enqueue_kernel(stream, launch) : launch.built_in->run(launch);
      if (!done)
        return with_context(std::move(done), "program `{}`, call {}, op `{}`", program.name,
                            launch.call, launch.op);
      if (marks != nullptr) KERN_TRY_VOID(marks->mark(stream, launch.call, of_call));
    }
    if (watch == program.watches.end()) continue;
    if (i + 1 < program.launches.size() && program.launches[i + 1].call == launch.call) continue;
    for (; watch != program.watches.end() && watch->call <= launch.call; ++watch)
      KERN_TRY_VOID(show(stream, *watch));
  }
  return {};
}

}  // namespace kern::runtime
