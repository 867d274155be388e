#include "kern/cuda/context.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <utility>

#include "kern/base/descriptor.h"

namespace kern::cuda {
namespace {

/// What the system says of the PCI device; -1 where it says nothing.
int node_of(const std::string& pci) {
  const std::string path = "/sys/bus/pci/devices/" + pci + "/numa_node";
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 32> text{};
  const ssize_t count = fd.is_open() ? ::read(fd.get(), text.data(), text.size()) : 0;
  int node = -1;
  if (count > 0) std::from_chars(text.data(), text.data() + count, node);
  return node;
}

Result<DeviceInfo> describe(const Driver& driver, api::Device device, int ordinal) {
  DeviceInfo info;
  info.ordinal = ordinal;
  std::array<char, 128> name{};
  KERN_TRY_VOID(
      driver.check("cuDeviceGetName", driver->device_get_name(name.data(), name.size(), device)));
  info.name = name.data();
  size_t bytes = 0;
  KERN_TRY_VOID(driver.check("cuDeviceTotalMem", driver->device_total_mem(&bytes, device)));
  info.memory_bytes = static_cast<int64_t>(bytes);
  int major = 0, minor = 0, l2 = 0, domain = 0, bus = 0, slot = 0, posix = 0, fabric = 0;
  const std::pair<api::DeviceAttribute, int*> wanted[] = {
      {api::kCapabilityMajor, &major},
      {api::kCapabilityMinor, &minor},
      {api::kMultiprocessorCount, &info.multiprocessors},
      {api::kSharedBytesMaxOptIn, &info.shared_bytes_max},
      {api::kL2CacheBytes, &l2},
      {api::kPciDomainId, &domain},
      {api::kPciBusId, &bus},
      {api::kPciDeviceId, &slot},
      {api::kPosixHandles, &posix},
      {api::kFabricHandles, &fabric},
  };
  for (const auto& [attribute, value] : wanted)
    KERN_TRY_VOID(driver.check("cuDeviceGetAttribute",
                               driver->device_get_attribute(value, attribute, device)));
  info.sm = major * 10 + minor;
  info.l2_bytes = l2;
  info.pci = fmt::format("{:04x}:{:02x}:{:02x}.0", domain, bus, slot);
  info.numa_node = node_of(info.pci);
  info.posix_handles = posix != 0;
  info.fabric_handles = fabric != 0;
  return info;
}

}  // namespace

Result<int> device_count(const Driver& driver) {
  int count = 0;
  KERN_TRY_VOID(driver.check("cuDeviceGetCount", driver->device_get_count(&count)));
  return count;
}

Result<Context> Context::open(const Driver& driver, int ordinal) {
  KERN_TRY(count, device_count(driver));
  if (ordinal < 0 || ordinal >= count)
    return fail(Kind::caller, "device {} of {} that the driver shows", ordinal, count);
  api::Device device = 0;
  KERN_TRY_VOID(driver.check("cuDeviceGet", driver->device_get(&device, ordinal)));
  KERN_TRY(info, describe(driver, device, ordinal));
  Context context(driver, std::move(info), device);
  KERN_TRY_VOID(driver.check("cuDevicePrimaryCtxRetain",
                             driver->primary_ctx_retain(&context.context_, device)));
  KERN_TRY_VOID(context.make_current());
  return context;
}

Context::Context(Context&& other) noexcept
    : driver_(other.driver_),
      info_(std::move(other.info_)),
      device_(other.device_),
      context_(std::exchange(other.context_, nullptr)) {}

Context& Context::operator=(Context&& other) noexcept {
  std::swap(driver_, other.driver_);
  std::swap(info_, other.info_);
  std::swap(device_, other.device_);
  std::swap(context_, other.context_);
  return *this;
}

Context::~Context() {
  if (context_ != nullptr) (*driver_)->primary_ctx_release(device_);
}

Result<void> Context::make_current() const {
  return driver_->check("cuCtxSetCurrent", (*driver_)->ctx_set_current(context_));
}

Result<void> Context::synchronize() const {
  return driver_->check("cuCtxSynchronize", (*driver_)->ctx_synchronize());
}

Result<int64_t> Context::free_bytes() const {
  size_t free = 0, total = 0;
  KERN_TRY_VOID(driver_->check("cuMemGetInfo", (*driver_)->mem_get_info(&free, &total)));
  return static_cast<int64_t>(free);
}

}  // namespace kern::cuda
