#include "gpu.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "kern/base/file.h"
#include "kern/runtime/host_gemm.h"

namespace kern_device {

namespace cuda = kern::cuda;

namespace {

constexpr size_t kGuardBytes = 256;
constexpr uint8_t kGuard = 0x5A;
constexpr size_t kCubinBytesMax = 64 << 20;

}  // namespace

void end_with(const kern::Error& error) {
  std::printf("device: %s\n", error.text().c_str());
  std::fflush(stdout);
  std::_Exit(3);
}

// ---- memory ----

Buffer::Buffer(Gpu& gpu, std::vector<std::byte> bytes) : gpu_(&gpu), host_(std::move(bytes)) {
  if (gpu.is_recording()) return;
  device_ = must(cuda::DeviceBuffer::allocate(gpu.context(), host_.size() + kGuardBytes));
  must(gpu.stream().copy_to_device(device(), host_));
  must(gpu.stream().fill(device() + host_.size(), kGuard, kGuardBytes));
  gpu.synchronize();
}

std::vector<std::byte> Buffer::download() const {
  if (!device_) return host_;
  std::vector<std::byte> out(host_.size());
  must(gpu_->stream().copy_to_host(out, device()));
  gpu_->synchronize();
  return out;
}

bool Buffer::guard_is_whole() const {
  if (!device_) return true;
  std::array<std::byte, kGuardBytes> guard;
  must(gpu_->stream().copy_to_host(guard, device() + host_.size()));
  gpu_->synchronize();
  return std::all_of(guard.begin(), guard.end(),
                     [](std::byte byte) { return byte == std::byte{kGuard}; });
}

DeviceOnly Gpu::repeated(std::span<const std::byte> pattern, int64_t bytes) {
  auto buffer = must(cuda::DeviceBuffer::allocate(context(), bytes));
  int64_t done = std::min(bytes, static_cast<int64_t>(pattern.size()));
  must(stream().copy_to_device(buffer.address(), pattern.first(done)));
  for (; done < bytes; done += std::min(done, bytes - done))
    must(stream().copy_on_device(buffer.address() + done, buffer.address(),
                                 std::min(done, bytes - done)));
  synchronize();
  return DeviceOnly(std::move(buffer));
}

// ---- launches ----

kern::Result<std::unique_ptr<Gpu>> Gpu::open(const std::filesystem::path& cubins) {
  KERN_TRY(driver, cuda::Driver::load());
  KERN_TRY(context, cuda::Context::open(*driver, 0));
  KERN_TRY(stream, cuda::Stream::create(*driver));
  auto device =
      std::make_unique<Device>(Device{std::move(driver), std::move(context), std::move(stream)});
  return std::unique_ptr<Gpu>(new Gpu(std::move(device), cubins));
}

const cuda::Function& Gpu::function(const Kernel& kernel) {
  const std::string name = kernel.module + ":" + kernel.entry;
  if (const auto found = functions_.find(name); found != functions_.end()) return found->second;
  if (!modules_.contains(kernel.module)) {
    const std::string image =
        must(kern::read_file(cubins_ / (kernel.module + ".cubin"), kCubinBytesMax));
    modules_.emplace(kernel.module, must(cuda::Module::load(context(), kern::as_bytes(image))));
  }
  return functions_.emplace(name, must(modules_.at(kernel.module).find(kernel.entry)))
      .first->second;
}

void Gpu::launch(const Kernel& kernel, const Args& args) {
  launched_.emplace(kernel.module, kernel.entry);
  if (!device_) return;
  const cuda::Function& entry = function(kernel);
  if (entry.params.size() != args.size()) {
    std::printf("device: `%s` of `%s` takes %zu parameters, got %zu\n", kernel.entry.c_str(),
                kernel.module.c_str(), entry.params.size(), args.size());
    std::_Exit(3);
  }
  std::vector<void*> params;
  for (const Arg& arg : args) params.push_back(const_cast<void*>(arg.on_device()));
  must(cuda::allow(context(), entry, kernel.shape.shared_bytes, kernel.shape.cluster));
  must(kern::with_context(cuda::launch(stream(), entry, kernel.shape, params.data()), "{}",
                          kernel.entry));
}

void run_on_host(kern_host_entry entry, std::vector<uint32_t> grid, size_t shared_bytes,
                 const Args& args) {
  grid.resize(3, 1);
  std::vector<void*> params;
  for (const Arg& arg : args) params.push_back(const_cast<void*>(arg.on_host()));
  const uint64_t blocks = uint64_t{grid[0]} * grid[1] * grid[2];
  std::atomic<uint64_t> next = 0;
  const auto work = [&] {
    std::vector<std::byte> shared(shared_bytes + 64, std::byte{0xFF});
    kern_block block = {};
    std::copy(grid.begin(), grid.end(), block.grid);
    block.shared_bytes = static_cast<uint32_t>(shared_bytes);
    block.shared = shared.data() + (64 - reinterpret_cast<uintptr_t>(shared.data()) % 64) % 64;
    block.services = &kern::runtime::host_services(kern::runtime::supported_isas().back());
    for (uint64_t at; (at = next++) < blocks;) {
      block.index[0] = at % grid[0];
      block.index[1] = at / grid[0] % grid[1];
      block.index[2] = at / grid[0] / grid[1];
      entry(&block, params.data());
    }
  };
  const uint64_t threads = std::min<uint64_t>(blocks, std::thread::hardware_concurrency());
  std::vector<std::jthread> pool;
  for (uint64_t i = 1; i < threads; ++i) pool.emplace_back(work);
  work();
}

}  // namespace kern_device
