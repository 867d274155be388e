#include "kern/base/dylib.h"

#include <dlfcn.h>

#include <utility>

namespace kern {

Result<Dylib> Dylib::open(const std::filesystem::path& path) {
  void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr)
    return fail(Kind::io, "`{}` does not load: {}", path.string(), ::dlerror());
  return Dylib(handle);
}

Dylib::Dylib(Dylib&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}

Dylib& Dylib::operator=(Dylib&& other) noexcept {
  std::swap(handle_, other.handle_);
  return *this;
}

Dylib::~Dylib() {
  if (handle_ != nullptr) ::dlclose(handle_);
}

void* Dylib::find(const std::string& name) const {
  return ::dlsym(handle_, name.c_str());
}

}  // namespace kern
