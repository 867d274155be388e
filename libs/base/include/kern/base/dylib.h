#pragma once
/// A shared object opened at run time.
/// Ownership: closing happens on destruction; symbols must not outlive it.

#include <filesystem>
#include <string>

#include "kern/base/result.h"

namespace kern {

class Dylib {
 public:
  /// Opens `path` with local symbols, resolved now. Fails with kind io and the loader's words.
  static Result<Dylib> open(const std::filesystem::path& path);
  Dylib(Dylib&& other) noexcept;
  Dylib& operator=(Dylib&& other) noexcept;
  ~Dylib();

  /// The address of `name`, or null.
  void* find(const std::string& name) const;

 private:
  explicit Dylib(void* handle) : handle_(handle) {}
  void* handle_;
};

}  // namespace kern
