#pragma once
/// Device memory, and host memory that a device copies from and to at full rate.
/// Thread safety: plain owners. Ownership: freed with the object; nothing enqueued may still use
/// it. Does not: clear memory (fill it), or share it (see vmm.h).

#include "kern/base/bytes.h"
#include "kern/cuda/context.h"

namespace kern::cuda {

class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  /// Kind device, with the bytes asked for and those free. Zero bytes are one.
  static Result<DeviceBuffer> allocate(const Context& context, int64_t bytes);
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  ~DeviceBuffer();

  api::Pointer address() const { return address_; }  ///< a multiple of 256
  int64_t bytes() const { return bytes_; }

 private:
  const Driver* driver_ = nullptr;
  api::Pointer address_ = 0;
  int64_t bytes_ = 0;
};

/// Zeroed, page-locked host memory. Its pages are asked from the device's own NUMA node before they
/// are locked, because a copy from another socket's memory runs at a fraction of the rate; where
/// the system does not allow that, they come from wherever they come, and `node` says -1. From 2
/// MiB on they are large pages where the system has them, which are locked in a fraction of the
/// time.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  static Result<PinnedBuffer> allocate(const Context& context, int64_t bytes);
  PinnedBuffer(PinnedBuffer&& other) noexcept;
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept;
  ~PinnedBuffer();

  std::byte* data() const { return data_; }
  int64_t size() const { return bytes_; }
  MutableByteSpan bytes() const { return {data_, static_cast<size_t>(bytes_)}; }
  /// The same memory as the device sees it.
  Result<api::Pointer> device_address() const;
  int node() const { return node_; }  ///< that its pages were bound to; -1: none

 private:
  const Driver* driver_ = nullptr;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  int node_ = -1;
};

}  // namespace kern::cuda
