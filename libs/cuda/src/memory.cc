#include "kern/cuda/memory.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace kern::cuda {
namespace {

constexpr int64_t kPage = 4096;
constexpr size_t kHugePage = size_t{2} << 20;
// Of the kernel's memory policies; its header is not installed everywhere.
constexpr int kPolicyPreferred = 1;
constexpr int kNodesMax = 1024;

/// Asks for the pages of a fresh map from one node; whether the system agreed.
bool bind_to_node(std::byte* data, size_t bytes, int node) {
  if (node < 0 || node >= kNodesMax) return false;
  std::array<unsigned long, kNodesMax / (8 * sizeof(unsigned long))> mask{};
  mask[static_cast<size_t>(node) / 64] = 1UL << (node % 64);
  return ::syscall(SYS_mbind, data, bytes, kPolicyPreferred, mask.data(), kNodesMax, 0) == 0;
}

/// A fresh map that begins at a multiple of `alignment`, or null.
std::byte* map_aligned(size_t bytes, size_t alignment) {
  const size_t more = bytes + alignment - static_cast<size_t>(kPage);
  void* mapped = ::mmap(nullptr, more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* const data = static_cast<std::byte*>(mapped);
  const size_t before = (alignment - reinterpret_cast<uintptr_t>(mapped) % alignment) % alignment;
  if (before > 0) ::munmap(data, before);
  if (more > before + bytes) ::munmap(data + before + bytes, more - before - bytes);
  return data + before;
}

}  // namespace

Result<DeviceBuffer> DeviceBuffer::allocate(const Context& context, int64_t bytes) {
  const Driver& driver = context.driver();
  DeviceBuffer buffer;
  const api::Status status =
      driver->mem_alloc(&buffer.address_, static_cast<size_t>(std::max<int64_t>(bytes, 1)));
  if (status != api::kSuccess) {
    const auto free = context.free_bytes();
    return with_context(
        Result<DeviceBuffer>(tl::unexpected(driver.check("cuMemAlloc", status).error())),
        "{} bytes of device memory, {} are free", bytes, free ? *free : -1);
  }
  buffer.driver_ = &driver;
  buffer.bytes_ = bytes;
  return buffer;
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : driver_(std::exchange(other.driver_, nullptr)),
      address_(std::exchange(other.address_, 0)),
      bytes_(std::exchange(other.bytes_, 0)) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(driver_, other.driver_);
  std::swap(address_, other.address_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

DeviceBuffer::~DeviceBuffer() {
  if (driver_ != nullptr) (*driver_)->mem_free(address_);
}

Result<PinnedBuffer> PinnedBuffer::allocate(const Context& context, int64_t bytes) {
  const Driver& driver = context.driver();
  const auto rounded =
      static_cast<size_t>((std::max<int64_t>(bytes, 1) + kPage - 1) / kPage * kPage);
  const bool is_large = rounded >= kHugePage;
  std::byte* const data = map_aligned(rounded, is_large ? kHugePage : static_cast<size_t>(kPage));
  if (data == nullptr)
    return fail(Kind::device, "{} bytes of host memory: {}", bytes, std::strerror(errno));
  const int node = context.info().numa_node;
  const bool bound = bind_to_node(data, rounded, node);
  // A system without large pages goes on with small ones.
  if (is_large) (void)::madvise(data, rounded, MADV_HUGEPAGE);
  // The driver locks pages under a lock of its own; they are made before, so that threads that
  // allocate side by side do not wait for each other.
  for (size_t at = 0; at < rounded; at += static_cast<size_t>(kPage))
    const_cast<volatile std::byte&>(data[at]) = std::byte{0};
  const unsigned flags = api::kHostRegisterPortable | api::kHostRegisterDeviceMap;
  const auto locked =
      driver.check("cuMemHostRegister", driver->mem_host_register(data, rounded, flags));
  if (!locked) {
    ::munmap(data, rounded);
    return with_context(Result<PinnedBuffer>(tl::unexpected(locked.error())),
                        "{} bytes of page-locked memory", bytes);
  }
  PinnedBuffer buffer;
  buffer.driver_ = &driver;
  buffer.data_ = data;
  buffer.bytes_ = bytes;
  buffer.node_ = bound ? node : -1;
  return buffer;
}

PinnedBuffer::PinnedBuffer(PinnedBuffer&& other) noexcept
    : driver_(std::exchange(other.driver_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      node_(std::exchange(other.node_, -1)) {}

PinnedBuffer& PinnedBuffer::operator=(PinnedBuffer&& other) noexcept {
  std::swap(driver_, other.driver_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(node_, other.node_);
  return *this;
}

PinnedBuffer::~PinnedBuffer() {
  if (driver_ == nullptr) return;
  (*driver_)->mem_host_unregister(data_);
  ::munmap(data_, static_cast<size_t>((std::max<int64_t>(bytes_, 1) + kPage - 1) / kPage * kPage));
}

Result<api::Pointer> PinnedBuffer::device_address() const {
  api::Pointer address = 0;
  KERN_TRY_VOID(driver_->check("cuMemHostGetDevicePointer",
                               (*driver_)->mem_host_get_device_pointer(&address, data_, 0)));
  return address;
}

}  // namespace kern::cuda
