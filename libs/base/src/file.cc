#include "kern/base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "kern/base/descriptor.h"

namespace kern {
namespace {

Result<size_t> regular_size(int fd, const std::filesystem::path& path) {
  struct stat info {};
  if (::fstat(fd, &info) != 0)
    return fail(Kind::io, "`{}`: {}", path.string(), std::strerror(errno));
  if (!S_ISREG(info.st_mode)) return fail(Kind::io, "`{}` is not a regular file", path.string());
  return static_cast<size_t>(info.st_size);
}

/// To read; a pipe that nobody writes to, or a device, is opened at once too, and then refused.
Descriptor open_to_read(const std::filesystem::path& path) {
  return Descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
}

}  // namespace

Result<std::string> read_file(const std::filesystem::path& path, size_t bytes_max) {
  const Descriptor fd = open_to_read(path);
  if (fd.get() < 0) return fail(Kind::io, "`{}`: {}", path.string(), std::strerror(errno));
  KERN_TRY(size, regular_size(fd.get(), path));
  if (size > bytes_max)
    return fail(Kind::io, "`{}` has {} bytes, expected at most {}", path.string(), size, bytes_max);
  std::string out(size, '\0');
  size_t at = 0;
  while (at < size) {
    const ssize_t n = ::read(fd.get(), out.data() + at, size - at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail(Kind::io, "`{}`: {}", path.string(), std::strerror(errno));
    if (n == 0) return fail(Kind::io, "`{}` shrank while it was read", path.string());
    at += static_cast<size_t>(n);
  }
  return out;
}

Result<void> write_file(const std::filesystem::path& path, ByteSpan bytes) {
  const std::filesystem::path partial = path.string() + ".partial." + std::to_string(::getpid());
  {
    const Descriptor fd(::open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (fd.get() < 0) return fail(Kind::io, "`{}`: {}", partial.string(), std::strerror(errno));
    size_t at = 0;
    while (at < bytes.size()) {
      const ssize_t n = ::write(fd.get(), bytes.data() + at, bytes.size() - at);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) {
        const int why = errno;
        ::unlink(partial.c_str());
        return fail(Kind::io, "`{}`: {}", partial.string(), std::strerror(why));
      }
      at += static_cast<size_t>(n);
    }
  }
  if (::rename(partial.c_str(), path.c_str()) != 0) {
    const int why = errno;
    ::unlink(partial.c_str());
    return fail(Kind::io, "`{}`: {}", path.string(), std::strerror(why));
  }
  return {};
}

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  const Descriptor fd = open_to_read(path);
  if (fd.get() < 0) return fail(Kind::io, "`{}`: {}", path.string(), std::strerror(errno));
  KERN_TRY(size, regular_size(fd.get(), path));
  if (size == 0) return MappedFile(nullptr, 0);
  void* at = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (at == MAP_FAILED) return fail(Kind::io, "`{}`: {}", path.string(), std::strerror(errno));
  return MappedFile(static_cast<const std::byte*>(at), size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace kern
