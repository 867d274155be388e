#pragma once
/// What lowering asks of a device: the handle of a kernel, a built-in with its arguments checked, a
/// tensormap's bytes. A device answers with what runs; a plan with stand-ins.
/// Thread safety: one thread at a time.

#include <memory>
#include <span>
#include <string_view>

#include "kern/manifest/verify.h"
#include "kern/runtime/peers.h"
#include "program.h"

namespace kern::runtime {

/// One argument of a launch, resolved.
struct BoundArg {
  const Cell* cell = nullptr;  ///< of a pack: its bytes
  manifest::ParamType type;
  std::string_view group;  ///< of a rank
  std::string_view name;   ///< of what a pointer points at
  int64_t bytes_left = 0;  ///< behind a pointer
  bool varies = false;     ///< a number that vars change
  bool is_peer = false;    ///< a table of the members' addresses, or a pack that holds one
};

/// A launch as the manifest has it, with what its names mean here.
struct LaunchSource {
  const manifest::Launch& launch;
  std::span<const BoundArg> args;
  size_t module = 0;           ///< kernels: position in the manifest
  int64_t group_size = 1;      ///< built-ins with a rank among their args
  PeerGroup* group = nullptr;  ///< null: a group of one

  /// Of a built-in, without `extern:`.
  std::string_view built_in_name() const {
    return std::string_view(launch.entry).substr(sizeof("extern:") - 1);
  }
};

/// A built-in, and the bytes of gathered blocks that it needs room for.
struct LoweredBuiltIn {
  std::unique_ptr<BuiltIn> run;  ///< null in a plan
  int64_t collective_bytes = 0;
};

class Target {
 public:
  virtual ~Target() = default;
  /// Kind kernel_artifact for an entry that is missing or takes other parameters, manifest for what
  /// this device has not.
  virtual Result<const void*> kernel(const LaunchSource& source) = 0;
  /// Checks the number and types of its arguments, and what it touches at the vars' bounds (the
  /// cells hold them). Kind manifest, naming the built-in and not the op.
  virtual Result<LoweredBuiltIn> built_in(const LaunchSource& source) = 0;
  /// The 128 bytes of a tensormap over `bytes` bytes at an address.
  virtual Result<void> tensormap(const manifest::Tensormap& map, const std::byte* address,
                                 int64_t bytes, std::byte* to) = 0;
};

}  // namespace kern::runtime
