#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "kern/base/assert.h"
#include "kern/base/checked.h"

namespace kern::runtime {
namespace {
constexpr size_t kPageBytes = 4096;
constexpr size_t kHugeBytes = 8 << 20;

size_t machine_bytes() {
  return static_cast<size_t>(::sysconf(_SC_PHYS_PAGES)) *
         static_cast<size_t>(::sysconf(_SC_PAGESIZE));
}
}  // namespace

Result<Memory> Memory::zeroed(int64_t bytes) {
  KERN_ASSERT(bytes >= 0, "{} bytes", bytes);
  const size_t size = round_up(std::max<size_t>(static_cast<size_t>(bytes), 1), kPageBytes);
  // The system would promise more than there is, and end the process when it is touched.
  if (size > machine_bytes())
    return fail(Kind::device, "no memory for {} bytes: this machine has {}", bytes,
                machine_bytes());
  void* at = ::mmap(nullptr, size, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED)
    return fail(Kind::device, "no memory for {} bytes: {}", bytes, std::strerror(errno));
  if (size >= kHugeBytes) ::madvise(at, size, MADV_HUGEPAGE);  // a hint; refusal costs nothing
  return Memory(static_cast<std::byte*>(at), size);
}

Memory::~Memory() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

}  // namespace kern::runtime
