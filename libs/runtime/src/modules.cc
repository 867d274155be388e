#include "modules.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "kern/base/assert.h"
#include "kern/base/descriptor.h"
#include "kern/base/file.h"
#include "kern/base/sha256.h"

namespace kern::runtime {
namespace {

constexpr size_t kModuleBytesMax = size_t{1} << 30;

/// `hf:org/repo/path@rev`, a URL or a plain name: what the file is called.
std::string file_name_of(std::string source) {
  if (source.starts_with("hf:")) source = source.substr(0, source.find('@'));
  const size_t slash = source.find_last_of('/');
  return slash == std::string::npos ? source : source.substr(slash + 1);
}

Result<Descriptor> sealed_copy(const std::string& name, std::string_view bytes) {
  Descriptor fd(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd.get() < 0) return fail(Kind::device, "no memory file: {}", std::strerror(errno));
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd.get(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail(Kind::device, "no memory for a module: {}", std::strerror(errno));
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  constexpr int kSeals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
  if (::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0)
    return fail(Kind::device, "a module's memory is not sealed: {}", std::strerror(errno));
  return fd;
}

/// The loader tells objects apart by name before it looks at them, and an object that did not
/// unload would answer to a descriptor number used again. Takes numbers until one is free in that
/// sense.
Result<std::pair<Dylib, Descriptor>> open_sealed(Descriptor fd) {
  std::vector<Descriptor> taken;
  for (;;) {
    const std::string path = fmt::format("/proc/self/fd/{}", fd.get());
    void* known = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (known == nullptr) {
      KERN_TRY(dylib, Dylib::open(path));
      return std::pair(std::move(dylib), std::move(fd));
    }
    ::dlclose(known);
    Descriptor next(::fcntl(fd.get(), F_DUPFD_CLOEXEC, fd.get() + 1));
    if (next.get() < 0) return fail(Kind::device, "no descriptor: {}", std::strerror(errno));
    taken.push_back(std::move(fd));
    fd = std::move(next);
  }
}

}  // namespace

LoadedModule::LoadedModule(LoadedModule&& other) noexcept
    : name_(std::move(other.name_)),
      path_(std::move(other.path_)),
      dylib_(std::move(other.dylib_)),
      fd_(std::exchange(other.fd_, -1)) {}

LoadedModule& LoadedModule::operator=(LoadedModule&& other) noexcept {
  std::swap(name_, other.name_);
  std::swap(path_, other.path_);
  std::swap(dylib_, other.dylib_);
  std::swap(fd_, other.fd_);
  return *this;
}

LoadedModule::~LoadedModule() {
  if (fd_ >= 0) ::close(fd_);
}

Result<ModuleFile> find_module(const manifest::Module& module, const ModuleSearch& search) {
  std::vector<std::filesystem::path> places;
  for (const std::filesystem::path& dir : search.dirs) {
    places.push_back(dir / file_name_of(module.source));
    places.push_back(dir / module.sha256);
  }
  if (!search.cache_dir.empty()) places.push_back(search.cache_dir / "blobs" / module.sha256);
  std::string seen;
  for (const std::filesystem::path& place : places) {
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(place, ignored)) {
      seen += fmt::format("; `{}` is not there", place.string());
      continue;
    }
    KERN_TRY(bytes, read_file(place, kModuleBytesMax));
    const std::string hash = to_hex(sha256(as_bytes(bytes)));
    if (hash == module.sha256) return ModuleFile{place, std::move(bytes)};
    seen += fmt::format("; `{}` has sha256 {}", place.string(), hash);
  }
  if (places.empty()) seen = "; no folder to look in was given";
  return fail(Kind::kernel_artifact, "module `{}`: no file with sha256 {}{}", module.name,
              module.sha256, seen);
}

Result<LoadedModule> LoadedModule::load(const manifest::Module& module,
                                        const ModuleSearch& search) {
  KERN_TRY(file, find_module(module, search));
  KERN_TRY(fd, sealed_copy(module.name, file.bytes));
  auto opened = open_sealed(std::move(fd));
  if (!opened)
    return fail(Kind::kernel_artifact, "module `{}`: `{}` does not load: {}", module.name,
                file.path.string(), opened.error().text());
  auto& [dylib, held] = *opened;
  return LoadedModule(module.name, file.path, std::move(dylib), held.release());
}

Result<kern_host_entry> LoadedModule::find(const std::string& entry) const {
  void* symbol = dylib_.find(entry);
  if (symbol == nullptr)
    return fail(Kind::kernel_artifact, "module `{}` (`{}`) has no entry `{}`", name_,
                path_.string(), entry);
  return reinterpret_cast<kern_host_entry>(symbol);
}

}  // namespace kern::runtime
