#pragma once
/// How a lowered program is worked off on a stream: what changed of its inputs goes in, launches
/// follow, one by one or as a captured graph, and what the caller reads comes back.
/// Thread safety: one thread at a time.

#include <algorithm>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "device.h"
#include "kern/cuda/graph.h"
#include "kern/cuda/memory.h"

namespace kern::runtime {

/// Small inputs as the device has them, so that only what the caller changed goes over the link.
class Staging {
 public:
  Staging() = default;
  Staging(cuda::PinnedBuffer host, cuda::DeviceBuffer device, int64_t compared_bytes)
      : host_(std::move(host)), device_(std::move(device)) {
    sent_.assign(static_cast<size_t>(compared_bytes), std::byte{0});
  }

  std::byte* host() const { return host_.data(); }
  std::byte* device() const { return reinterpret_cast<std::byte*>(device_.address()); }
  Result<void> upload(const cuda::Stream& stream, const LoweredProgram& program);
  Result<void> download(const cuda::Stream& stream, const LoweredProgram& program) const;

 private:
  struct Range {
    size_t begin = 0, end = 0;  ///< bytes of the staged block
  };
  Range changed(const Transfer& transfer) const;

  cuda::PinnedBuffer host_;
  cuda::DeviceBuffer device_;
  std::vector<std::byte> sent_;  ///< both sides begin as zeros
  std::vector<Range> ranges_;    ///< kept for its memory
};

/// Bytes in and out of device memory beside the work of the main stream: on a stream of its own,
/// through a pinned piece.
/// Thread safety: any thread.
class SideCopies {
 public:
  static constexpr int64_t kPieceBytes = int64_t{4} << 20;
  static Result<std::unique_ptr<SideCopies>> create(const cuda::Context& context);
  SideCopies(const cuda::Context& context, cuda::Stream stream, cuda::PinnedBuffer piece)
      : context_(context), stream_(std::move(stream)), piece_(std::move(piece)) {}

  Result<void> read(MutableByteSpan to, cuda::api::Pointer from);
  Result<void> write(cuda::api::Pointer to, ByteSpan from);

 private:
  const cuda::Context& context_;
  std::mutex mutex_;
  cuda::Stream stream_;
  cuda::PinnedBuffer piece_;
};

/// Captured programs by their vars. The first run of an assignment is eager, the second captures:
/// an assignment that never comes again, such as a context that grows with every step, costs
/// nothing.
class GraphCache {
 public:
  /// At most `most` graphs are kept; the one used longest ago goes first.
  explicit GraphCache(size_t most) : graphs_max_(std::max<size_t>(most, 1)) {}

  /// Most assignments remembered as met once.
  static constexpr size_t kMetMax = 1024;

  using Key = std::pair<const LoweredProgram*, std::vector<int64_t>>;
  /// The graph of an assignment, or null; then `wants` says whether to capture this run.
  const cuda::Graph* find(const Key& key, bool& wants);
  const cuda::Graph& keep(Key key, cuda::Graph graph);

 private:
  struct Kept {
    Key key;
    cuda::Graph graph;
  };
  size_t graphs_max_;
  std::list<Kept> kept_;  ///< last used first
  std::map<Key, std::list<Kept>::iterator> by_key_;
  std::map<Key, int> met_;
};

/// Events between the launches of one run.
class LaunchMarks {
 public:
  /// Makes all events beforehand, so that marking costs as little as it can.
  static Result<LaunchMarks> create(const cuda::Driver& driver, const LoweredProgram& program);
  /// Where the time of the first launch begins.
  Result<void> begin(const cuda::Stream& stream) const { return stream.record(events_[0]); }
  Result<void> mark(const cuda::Stream& stream, size_t call, size_t launch);
  /// Once the stream has passed them all.
  Result<std::vector<LaunchTime>> read();

 private:
  std::vector<cuda::Event> events_;
  std::vector<LaunchTime> times_;  ///< events_[i + 1] ends times_[i]
};

/// Enqueues the launches whose `when` holds; after each, the mark. Watched calls are waited for and
/// shown.
Result<void> enqueue_launches(const cuda::Stream& stream, const LoweredProgram& program,
                              LaunchMarks* marks = nullptr);

}  // namespace kern::runtime
