#include "kern/cuda/vmm.h"

#include <algorithm>
#include <utility>

#include "kern/base/checked.h"

namespace kern::cuda {
namespace {

api::AllocationProperties properties_of(const Context& context, Share share) {
  api::AllocationProperties out = {};
  out.type = api::kAllocationPinned;
  out.handle_types = share == Share::fabric ? api::kHandleFabric : api::kHandlePosixFd;
  out.location = {api::kLocationDevice, context.info().ordinal};
  return out;
}

Result<int64_t> granularity_of(const Context& context, const api::AllocationProperties& of) {
  size_t bytes = 0;
  KERN_TRY_VOID(
      context.driver().check("cuMemGetAllocationGranularity",
                             context.driver()->mem_get_allocation_granularity(&bytes, &of, 0)));
  return static_cast<int64_t>(std::max<size_t>(bytes, 1));
}

}  // namespace

Result<SharedMemory> SharedMemory::create(const Context& context, int64_t bytes, Share share) {
  const DeviceInfo& info = context.info();
  if (share == Share::fabric ? !info.fabric_handles : !info.posix_handles)
    return fail(Kind::device, "device {} ({}) shares no memory by {}", info.ordinal, info.name,
                share == Share::fabric ? "fabric handle" : "file descriptor");
  const api::AllocationProperties properties = properties_of(context, share);
  KERN_TRY(granularity, granularity_of(context, properties));
  SharedMemory memory;
  memory.driver_ = &context.driver();
  memory.bytes_ = bytes;
  memory.mapped_bytes_ = round_up(std::max<int64_t>(bytes, 1), granularity);
  const auto created = context.driver().check(
      "cuMemCreate",
      context.driver()->mem_create(&memory.handle_, static_cast<size_t>(memory.mapped_bytes_),
                                   &properties, 0));
  if (!created) {
    const auto free = context.free_bytes();
    return with_context(Result<SharedMemory>(tl::unexpected(created.error())),
                        "{} bytes of shared device memory, {} are free", memory.mapped_bytes_,
                        free ? *free : -1);
  }
  memory.has_handle_ = true;
  KERN_TRY_VOID(memory.map(context, granularity));
  return memory;
}

Result<SharedMemory> SharedMemory::import(const Context& context, const Descriptor& fd,
                                          int64_t bytes) {
  KERN_TRY(granularity, granularity_of(context, properties_of(context, Share::posix_fd)));
  SharedMemory memory;
  memory.driver_ = &context.driver();
  memory.bytes_ = bytes;
  memory.mapped_bytes_ = round_up(std::max<int64_t>(bytes, 1), granularity);
  // The descriptor travels in the pointer's place.
  void* const handle = reinterpret_cast<void*>(static_cast<intptr_t>(fd.get()));
  KERN_TRY_VOID(context.driver().check(
      "cuMemImportFromShareableHandle",
      context.driver()->mem_import(&memory.handle_, handle, api::kHandlePosixFd)));
  memory.has_handle_ = true;
  KERN_TRY_VOID(memory.map(context, granularity));
  return memory;
}

Result<SharedMemory> SharedMemory::import(const Context& context, const api::FabricHandle& handle,
                                          int64_t bytes) {
  KERN_TRY(granularity, granularity_of(context, properties_of(context, Share::fabric)));
  SharedMemory memory;
  memory.driver_ = &context.driver();
  memory.bytes_ = bytes;
  memory.mapped_bytes_ = round_up(std::max<int64_t>(bytes, 1), granularity);
  api::FabricHandle copy = handle;
  KERN_TRY_VOID(context.driver().check(
      "cuMemImportFromShareableHandle",
      context.driver()->mem_import(&memory.handle_, &copy, api::kHandleFabric)));
  memory.has_handle_ = true;
  KERN_TRY_VOID(memory.map(context, granularity));
  return memory;
}

Result<void> SharedMemory::map(const Context& context, int64_t granularity) {
  const Driver& driver = *driver_;
  const auto size = static_cast<size_t>(mapped_bytes_);
  KERN_TRY_VOID(driver.check(
      "cuMemAddressReserve",
      driver->mem_address_reserve(&address_, size, static_cast<size_t>(granularity), 0, 0)));
  KERN_TRY_VOID(driver.check("cuMemMap", driver->mem_map(address_, size, 0, handle_, 0)));
  is_mapped_ = true;
  const api::AccessDescription access = {{api::kLocationDevice, context.info().ordinal},
                                         api::kAccessReadWrite};
  return driver.check("cuMemSetAccess", driver->mem_set_access(address_, size, &access, 1));
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept {
  *this = std::move(other);
}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(driver_, other.driver_);
  std::swap(handle_, other.handle_);
  std::swap(has_handle_, other.has_handle_);
  std::swap(is_mapped_, other.is_mapped_);
  std::swap(address_, other.address_);
  std::swap(bytes_, other.bytes_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  return *this;
}

SharedMemory::~SharedMemory() {
  if (driver_ == nullptr) return;
  const auto size = static_cast<size_t>(mapped_bytes_);
  if (is_mapped_) (*driver_)->mem_unmap(address_, size);
  if (address_ != 0) (*driver_)->mem_address_free(address_, size);
  if (has_handle_) (*driver_)->mem_release(handle_);
}

Result<Descriptor> SharedMemory::export_fd() const {
  int fd = -1;
  KERN_TRY_VOID(driver_->check("cuMemExportToShareableHandle",
                               (*driver_)->mem_export(&fd, handle_, api::kHandlePosixFd, 0)));
  return Descriptor(fd);
}

Result<api::FabricHandle> SharedMemory::export_fabric() const {
  api::FabricHandle handle = {};
  KERN_TRY_VOID(driver_->check("cuMemExportToShareableHandle",
                               (*driver_)->mem_export(&handle, handle_, api::kHandleFabric, 0)));
  return handle;
}

}  // namespace kern::cuda
