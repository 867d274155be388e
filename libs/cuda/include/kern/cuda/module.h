#pragma once
/// Device code: out of a cubin, a fatbin, or a host library that carries fatbins.
/// Thread safety: one thread at a time. Ownership: functions die with their Module.
/// Does not: run a byte of host code, compile, or check a hash (the caller has).

#include <string>
#include <vector>

#include "kern/base/bytes.h"
#include "kern/cuda/context.h"

namespace kern::cuda {

/// The device images of a file, as views into it: a cubin or a fatbin is one; of an ELF host
/// library, every fatbin of its sections `.nv_fatbin`, in the file's order. Every length is checked
/// against the file. Kind kernel_artifact when there is none, or two sections share a byte.
Result<std::vector<ByteSpan>> device_images(ByteSpan file);

/// What a look at the machine code says of bulk copies with `.MULTICAST`, which write the shared
/// memory of several blocks at once and must not read another device's memory.
enum class Multicast : uint8_t {
  none,
  found,
  unknown,  ///< code for another machine than sm_90, compressed, or not machine code
};
/// Of one image of `device_images`. Of sm_90 the encodings are known: UTMALDG and UBLKCP, told by
/// the low nine bits of an instruction, with bit 75 set.
Multicast scan_multicast(ByteSpan image);

/// Where a parameter lies in a kernel's parameter block.
struct ParamPlace {
  size_t offset = 0, bytes = 0;
  friend bool operator==(const ParamPlace&, const ParamPlace&) = default;
};

/// A kernel of a module, and what the driver says of it.
struct Function {
  api::Function raw = nullptr;
  std::string name;
  std::vector<ParamPlace> params;
  int registers = 0;
  int threads_max = 0;  ///< a block
  int static_shared_bytes = 0;
  int local_bytes = 0;  ///< a thread
  int binary_sm = 0;    ///< of the code that runs: 90
};

class Module {
 public:
  /// Loads every image that has code for this device. Kind kernel_artifact, with the driver's
  /// words, when none has.
  static Result<Module> load(const Context& context, ByteSpan file);
  Module(Module&& other) noexcept;
  Module& operator=(Module&& other) noexcept;
  ~Module();

  /// Kind kernel_artifact when no image has the entry.
  Result<Function> find(const std::string& entry) const;
  /// A `__device__` variable: its address and size. Kind kernel_artifact when there is none.
  struct Global {
    api::Pointer address = 0;
    int64_t bytes = 0;
  };
  Result<Global> global(const std::string& name) const;

 private:
  explicit Module(const Driver& driver) : driver_(&driver) {}

  const Driver* driver_;
  std::vector<api::Module> modules_;  ///< one an image
};

}  // namespace kern::cuda
