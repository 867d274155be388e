#pragma once
/// The order in which a device works. Everything that is enqueued goes through a Stream.
/// Thread safety: one thread at a time. Ownership: host memory that a copy reads or writes stays
/// until the stream has passed it; destruction waits for nothing.
/// Does not: synchronize by itself; an error of earlier work may come back from a later call.

#include "kern/base/bytes.h"
#include "kern/cuda/event.h"

namespace kern::cuda {

class Graph;

/// Rows of equal length, as far apart as the pitches say (at least a row).
struct Rows {
  int64_t row_bytes = 0;
  int64_t count = 1;
  int64_t device_pitch = 0, host_pitch = 0;
};

class Stream {
 public:
  /// Ordered with no other stream, the null stream included.
  static Result<Stream> create(const Driver& driver);
  Stream(Stream&& other) noexcept;
  Stream& operator=(Stream&& other) noexcept;
  ~Stream();

  /// Copies of `from.size()` (`to.size()`, `bytes`) bytes; of no bytes is no call.
  Result<void> copy_to_device(api::Pointer to, ByteSpan from) const;
  Result<void> copy_to_host(MutableByteSpan to, api::Pointer from) const;
  /// Many rows in one call; one row, or rows that lie close in both memories, is a plain copy.
  Result<void> copy_rows_to_device(api::Pointer to, const std::byte* from, const Rows& rows) const;
  Result<void> copy_rows_to_host(std::byte* to, api::Pointer from, const Rows& rows) const;
  Result<void> copy_on_device(api::Pointer to, api::Pointer from, int64_t bytes) const;
  Result<void> fill(api::Pointer to, uint8_t value, int64_t bytes) const;
  Result<void> record(const Event& event) const;
  Result<void> wait(const Event& event) const;
  Result<void> synchronize() const;
  /// Whether everything enqueued is done.
  Result<bool> is_idle() const;

  /// Until `end_capture`, what this thread enqueues is recorded and not done.
  Result<void> begin_capture() const;
  Result<Graph> end_capture() const;

  const Driver& driver() const { return *driver_; }
  api::Stream raw() const { return stream_; }

 private:
  Stream(const Driver& driver, api::Stream stream) : driver_(&driver), stream_(stream) {}

  const Driver* driver_;
  api::Stream stream_;
};

}  // namespace kern::cuda
