// Any bytes as a safetensors file. Whoever opens has tensors that lie inside the data, do not
// overlap, and are as large as dtype and shape say.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

#include "kern/base/assert.h"
#include "kern/safetensors/shard.h"

namespace {

/// One file in memory, written anew for each input.
int file_with(const uint8_t* data, size_t size) {
  static const int fd = ::memfd_create("fuzz", MFD_CLOEXEC);
  KERN_ASSERT(fd >= 0 && ::ftruncate(fd, 0) == 0);
  for (size_t at = 0; at < size;) {
    const ssize_t n = ::pwrite(fd, data + at, size - at, static_cast<off_t>(at));
    KERN_ASSERT(n > 0, "no memory for {} bytes", size);
    at += static_cast<size_t>(n);
  }
  return fd;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const int fd = file_with(data, size);
  const auto shard = kern::safetensors::Shard::open(fmt::format("/proc/self/fd/{}", fd));
  if (!shard) {
    KERN_ASSERT(!shard.error().message.empty());
    return 0;
  }
  const std::byte* end = nullptr;
  size_t sum = 0;
  for (const auto& tensor : shard->tensors()) {
    KERN_ASSERT(!tensor.name.empty() || tensor.bytes.size() <= size);
    const auto bytes = kern::safetensors::bytes_of_tensor(tensor.dtype, tensor.shape);
    KERN_ASSERT(bytes && static_cast<size_t>(*bytes) == tensor.bytes.size(), "tensor `{}`",
                tensor.name);
    sum += tensor.bytes.size();
    if (tensor.bytes.empty()) continue;
    KERN_ASSERT(end == nullptr || tensor.bytes.data() == end, "a gap before `{}`", tensor.name);
    end = tensor.bytes.data() + tensor.bytes.size();
    // touches the first and the last byte of the map
    KERN_ASSERT(tensor.bytes.front() == tensor.bytes.front() &&
                tensor.bytes.back() == tensor.bytes.back());
  }
  KERN_ASSERT(sum + 8 <= size, "{} bytes of tensors in a file of {}", sum, size);
  return 0;
}
