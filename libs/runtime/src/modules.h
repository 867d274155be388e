#pragma once
/// The pinned modules of a manifest. The bytes that are hashed are the bytes that run: a file is
/// read once and hashed; a shared object is then loaded from sealed memory, so changing the file
/// afterwards changes nothing.

#include <filesystem>
#include <string>
#include <vector>

#include "kern/base/dylib.h"
#include "kern/manifest/types.h"
#include "kern/runtime/host_module.h"

namespace kern::runtime {

/// Where modules are looked for, in this order.
struct ModuleSearch {
  std::vector<std::filesystem::path> dirs;  ///< by file name, then by hash
  std::filesystem::path cache_dir;          ///< `blobs/<sha256>`; empty: none
};

/// The bytes with the pinned hash, and where they were found.
struct ModuleFile {
  std::filesystem::path path;
  std::string bytes;
};

/// Kind kernel_artifact, naming the module, the places looked at and what was found there.
Result<ModuleFile> find_module(const manifest::Module& module, const ModuleSearch& search);

class LoadedModule {
 public:
  /// A module of the host device. Kind kernel_artifact.
  static Result<LoadedModule> load(const manifest::Module& module, const ModuleSearch& search);
  LoadedModule(LoadedModule&& other) noexcept;
  LoadedModule& operator=(LoadedModule&& other) noexcept;
  ~LoadedModule();

  /// The entry, or a kernel_artifact error that names it.
  Result<kern_host_entry> find(const std::string& entry) const;
  const std::filesystem::path& path() const { return path_; }

 private:
  LoadedModule(std::string name, std::filesystem::path path, Dylib dylib, int fd)
      : name_(std::move(name)), path_(std::move(path)), dylib_(std::move(dylib)), fd_(fd) {}

  std::string name_;
  std::filesystem::path path_;  ///< where the bytes came from
  Dylib dylib_;
  int fd_;  ///< kept open: the loader knows the object by this descriptor's name
};

}  // namespace kern::runtime
