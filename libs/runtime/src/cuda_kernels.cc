#include "cuda_kernels.h"

#include "kern/base/assert.h"
#include "modules.h"

namespace kern::runtime {
namespace {

using What = manifest::ParamType::What;

/// Bytes of a parameter of that type in a kernel's parameter block.
size_t bytes_of(const manifest::ParamType& type) {
  switch (type.what) {
    case What::i32:
    case What::f32:
      return 4;
    case What::u8:
      return 1;
    case What::i64:
    case What::buffer:
    case What::state:
      return 8;
    case What::bytes:
      return static_cast<size_t>(type.bytes);
  }
  return 0;
}

Result<void> check_params(const cuda::Function& function, std::span<const BoundArg> args) {
  if (args.size() != function.params.size())
    return fail(Kind::kernel_artifact, "entry `{}` takes {} parameters, the launch passes {}",
                function.name, function.params.size(), args.size());
  for (size_t i = 0; i < args.size(); ++i) {
    const size_t expected = function.params[i].bytes, got = bytes_of(args[i].type);
    if (expected != got)
      return fail(Kind::kernel_artifact,
                  "entry `{}` takes {} bytes as parameter #{}, the launch passes `{}`, {} bytes",
                  function.name, expected, i, manifest::to_string(args[i].type), got);
  }
  return {};
}

cuda::Multicast scan_all(ByteSpan file) {
  auto answer = cuda::Multicast::none;
  const auto images = cuda::device_images(file);
  if (!images) return cuda::Multicast::unknown;
  for (const ByteSpan image : *images) {
    const cuda::Multicast one = cuda::scan_multicast(image);
    if (one == cuda::Multicast::found) return one;
    if (one == cuda::Multicast::unknown) answer = one;
  }
  return answer;
}

}  // namespace

Result<CudaKernels> CudaKernels::load(const manifest::Verified& manifest, const Options& options,
                                      const cuda::Context& context) {
  CudaKernels out;
  const ModuleSearch search{options.module_dirs, options.cache_dir};
  for (const manifest::Module& module : manifest->modules) {
    KERN_TRY(file, find_module(module, search));
    KERN_TRY(loaded, with_context(cuda::Module::load(context, as_bytes(file.bytes)),
                                  "module `{}` (`{}`)", module.name, file.path.string()));
    out.modules_.push_back(
        {module.name, file.path.string(), std::move(loaded), scan_all(as_bytes(file.bytes))});
  }
  return out;
}

Result<const CudaKernel*> CudaKernels::find(const LaunchSource& source) {
  const Loaded& module = modules_[source.module];
  std::unique_ptr<CudaKernel>& kernel = kernels_[{source.module, source.launch.entry}];
  if (kernel == nullptr) {
    KERN_TRY(function, with_context(module.module.find(source.launch.entry), "module `{}` (`{}`)",
                                    module.name, module.path));
    kernel = std::make_unique<CudaKernel>();
    kernel->function = std::move(function);
  }
  KERN_TRY_VOID(check_params(kernel->function, source.args));
  int64_t threads = 1;
  for (const int64_t extent : source.launch.block) threads *= extent;
  if (threads > kernel->function.threads_max)
    return fail(Kind::kernel_artifact, "a block of {} threads, entry `{}` takes at most {}",
                threads, kernel->function.name, kernel->function.threads_max);
  const bool receives_peers = std::any_of(source.args.begin(), source.args.end(),
                                          [](const BoundArg& arg) { return arg.is_peer; });
  if (receives_peers && module.multicast != cuda::Multicast::none)
    return fail(
        Kind::kernel_artifact,
        "receives a peer buffer, and its module `{}` (`{}`) {}: an entry that reaches other "
        "members' memory is built alone, as a cubin for sm_90",
        module.name, module.path,
        module.multicast == cuda::Multicast::found ? "copies by multicast"
                                                   : "cannot be searched for copies by multicast");
  return kernel.get();
}

Result<void> CudaKernels::allow(const cuda::Context& context, const LoweredProgram& program) {
  for (const Launch& launch : program.launches) {
    if (launch.kernel == nullptr) continue;
    // Only this class made it, and only here it changes.
    auto* kernel = static_cast<CudaKernel*>(const_cast<void*>(launch.kernel));
    const int64_t shared = launch.shared_bytes == nullptr ? 0 : *launch.shared_bytes;
    KERN_ASSERT(shared >= 0 && shared <= UINT32_MAX, "{} bytes of shared memory", shared);
    const std::array<uint32_t, 3> cluster = {launch.cluster[0], launch.cluster[1],
                                             launch.cluster[2]};
    const uint32_t blocks = cluster[0] * cluster[1] * cluster[2];
    const auto bytes = static_cast<uint32_t>(shared);
    if (bytes <= kernel->shared_bytes && blocks <= kernel->cluster_blocks) continue;
    kernel->shared_bytes = std::max(kernel->shared_bytes, bytes);
    kernel->cluster_blocks = std::max(kernel->cluster_blocks, blocks);
    KERN_TRY_VOID(
        with_context(cuda::allow(context, kernel->function, kernel->shared_bytes, cluster),
                     "program `{}`, call {}, op `{}`", program.name, launch.call, launch.op));
  }
  return {};
}

}  // namespace kern::runtime
