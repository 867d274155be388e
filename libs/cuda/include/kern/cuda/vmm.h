#pragma once
/// Device memory that another process, or another address of this one, can map.
/// Thread safety: plain owner. Ownership: unmapped and given back with the object; memory lives as
/// long as any process holds it or a descriptor of it. Bytes are rounded up to the device's
/// granularity, 2 MiB on today's. Does not: send descriptors (descriptors.h), or use multicast.

#include <optional>

#include "kern/base/bytes.h"
#include "kern/base/descriptor.h"
#include "kern/cuda/context.h"

namespace kern::cuda {

/// How memory leaves a process.
enum class Share : uint8_t {
  posix_fd,  ///< within a machine
  fabric,    ///< between machines of one fabric, where the device has it
};

class SharedMemory {
 public:
  SharedMemory() = default;
  /// Reserves, maps and opens for reading and writing by the context's device; not cleared.
  static Result<SharedMemory> create(const Context& context, int64_t bytes,
                                     Share share = Share::posix_fd);
  /// Maps what another process exported; `bytes` as it was created with.
  static Result<SharedMemory> import(const Context& context, const Descriptor& fd, int64_t bytes);
  static Result<SharedMemory> import(const Context& context, const api::FabricHandle& handle,
                                     int64_t bytes);
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  /// What to give to another process.
  Result<Descriptor> export_fd() const;
  Result<api::FabricHandle> export_fabric() const;

  api::Pointer address() const { return address_; }
  int64_t bytes() const { return bytes_; }  ///< as asked for
  int64_t mapped_bytes() const { return mapped_bytes_; }

 private:
  Result<void> map(const Context& context, int64_t granularity);

  const Driver* driver_ = nullptr;
  api::MemoryHandle handle_ = 0;
  bool has_handle_ = false, is_mapped_ = false;
  api::Pointer address_ = 0;
  int64_t bytes_ = 0, mapped_bytes_ = 0;
};

}  // namespace kern::cuda
