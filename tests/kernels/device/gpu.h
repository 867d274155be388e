#pragma once
/// The device under test, and memory that it shares with the host twins.
/// A device error ends the process with the driver's words: after one, nothing it says counts.
/// Thread safety: one thread.

#include <filesystem>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "kern/cuda/event.h"
#include "kern/cuda/graph.h"
#include "kern/cuda/launch.h"
#include "kern/cuda/memory.h"
#include "kern/cuda/tensormap.h"
#include "kern/runtime/host_module.h"

namespace kern_device {

using Bf16 = std::vector<uint16_t>;
using F32 = std::vector<float>;
using I32 = std::vector<int32_t>;
using U8 = std::vector<uint8_t>;

/// Prints the error and ends the process, or hands out the value.
[[noreturn]] void end_with(const kern::Error& error);
template <class T>
T must(kern::Result<T> result) {
  if (!result) end_with(result.error());
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

class Gpu;

/// Bytes on both devices: equal when made, then each device's own results. Behind the device's copy
/// stand guard bytes, so that a write past the end is seen.
class Buffer {
 public:
  Buffer(Gpu& gpu, std::vector<std::byte> bytes);
  template <class T>
  Buffer(Gpu& gpu, const std::vector<T>& values)
      : Buffer(gpu, std::vector<std::byte>(std::as_bytes(std::span(values)).begin(),
                                           std::as_bytes(std::span(values)).end())) {}

  /// What the host twin sees and writes.
  std::byte* host() { return host_.data(); }
  template <class T>
  std::vector<T> from_host() const {
    return values<T>(host_);
  }
  /// What the device holds now.
  template <class T>
  std::vector<T> from_device() const {
    return values<T>(download());
  }
  kern::cuda::api::Pointer device() const { return device_ ? device_->address() : 0; }
  size_t bytes() const { return host_.size(); }
  bool guard_is_whole() const;

 private:
  template <class T>
  static std::vector<T> values(const std::vector<std::byte>& bytes) {
    std::vector<T> out(bytes.size() / sizeof(T));
    std::memcpy(out.data(), bytes.data(), out.size() * sizeof(T));
    return out;
  }
  std::vector<std::byte> download() const;

  Gpu* gpu_;
  std::vector<std::byte> host_;
  std::optional<kern::cuda::DeviceBuffer> device_;  // none where launches are only recorded
};

/// Something the device alone holds: a bench's operand.
class DeviceOnly {
 public:
  explicit DeviceOnly(kern::cuda::DeviceBuffer buffer) : buffer_(std::move(buffer)) {}
  kern::cuda::api::Pointer device() const { return buffer_.address(); }

 private:
  kern::cuda::DeviceBuffer buffer_;
};

/// One argument of a launch: a buffer from byte `offset` on, or a scalar.
class Arg {
 public:
  Arg(Buffer& buffer, size_t offset = 0)
      : host_(buffer.host() + offset), device_(buffer.device() + offset) {}
  Arg(const DeviceOnly& buffer) : device_(buffer.device()) {}
  static Arg i32(int64_t value) {
    Arg arg;
    arg.scalar_ = static_cast<int32_t>(value);
    return arg;
  }
  /// A tensor map, which the device alone reads.
  static Arg map(const kern::cuda::api::TensorMap& value) {
    Arg arg;
    arg.scalar_ = value;
    return arg;
  }
  static Arg f32(double value) {
    Arg arg;
    arg.scalar_ = static_cast<float>(value);
    return arg;
  }
  /// Where a launch on the host, or the device, reads the parameter.
  const void* on_host() const { return is_scalar() ? scalar() : &host_; }
  const void* on_device() const { return is_scalar() ? scalar() : &device_; }

 private:
  Arg() = default;
  bool is_scalar() const { return !std::holds_alternative<std::monostate>(scalar_); }
  const void* scalar() const {
    if (const auto* value = std::get_if<int32_t>(&scalar_)) return value;
    if (const auto* value = std::get_if<kern::cuda::api::TensorMap>(&scalar_)) return value;
    return std::get_if<float>(&scalar_);
  }

  std::byte* host_ = nullptr;
  kern::cuda::api::Pointer device_ = 0;
  std::variant<std::monostate, int32_t, float, kern::cuda::api::TensorMap> scalar_;
};

inline Arg i32(int64_t value) {
  return Arg::i32(value);
}
inline Arg f32(double value) {
  return Arg::f32(value);
}

using Args = std::vector<Arg>;

/// Which entry of which module, over what geometry.
struct Kernel {
  std::string module;  ///< key in k3/kernels.toml
  std::string entry;
  kern::cuda::LaunchShape shape;
};

class Gpu {
 public:
  /// The first device, with modules out of `cubins`. Kind device without one.
  static kern::Result<std::unique_ptr<Gpu>> open(const std::filesystem::path& cubins);
  /// No device: launches are recorded, and what the device holds is what the twin left.
  static std::unique_ptr<Gpu> recording() { return std::unique_ptr<Gpu>(new Gpu(nullptr, {})); }

  void launch(const Kernel& kernel, const Args& args);
  void synchronize() {
    if (device_) must(device_->stream.synchronize());
  }

  /// Memory of random bits (of `pattern` repeated), for a bench.
  DeviceOnly repeated(std::span<const std::byte> pattern, int64_t bytes);

  Arg tensormap(kern::cuda::api::Pointer address, const kern::cuda::TensormapShape& shape) {
    if (!device_) return Arg::map({});
    return Arg::map(must(kern::cuda::encode_tensormap(*device_->driver, address, shape)));
  }

  bool is_recording() const { return device_ == nullptr; }
  const kern::cuda::Context& context() const { return device_->context; }
  const kern::cuda::Stream& stream() const { return device_->stream; }
  /// Every (module, entry) that was launched.
  const std::set<std::pair<std::string, std::string>>& launched() const { return launched_; }

 private:
  struct Device {
    std::unique_ptr<const kern::cuda::Driver> driver;
    kern::cuda::Context context;
    kern::cuda::Stream stream;
  };
  Gpu(std::unique_ptr<Device> device, std::filesystem::path cubins)
      : device_(std::move(device)), cubins_(std::move(cubins)) {}
  const kern::cuda::Function& function(const Kernel& kernel);

  std::unique_ptr<Device> device_;
  std::filesystem::path cubins_;
  std::map<std::string, kern::cuda::Module> modules_;
  std::map<std::string, kern::cuda::Function> functions_;
  std::set<std::pair<std::string, std::string>> launched_;
};

/// Runs an entry of a host module over its grid, the blocks dealt to every processor.
void run_on_host(kern_host_entry entry, std::vector<uint32_t> grid, size_t shared_bytes,
                 const Args& args);

}  // namespace kern_device
