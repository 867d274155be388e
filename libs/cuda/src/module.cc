#include "kern/cuda/module.h"

#include <cstring>
#include <utility>

#include "kern/cuda/launch.h"

namespace kern::cuda {
namespace {

/// More than a kernel can have: its parameters take at most 32 KiB.
constexpr size_t kParamsMax = 32768;

Result<Function> describe(const Driver& driver, api::Function raw, const std::string& name) {
  Function function;
  function.raw = raw;
  function.name = name;
  const std::pair<api::FunctionAttribute, int*> wanted[] = {
      {api::kRegisters, &function.registers},
      {api::kMaxThreads, &function.threads_max},
      {api::kStaticSharedBytes, &function.static_shared_bytes},
      {api::kLocalBytes, &function.local_bytes},
      {api::kBinaryVersion, &function.binary_sm},
  };
  for (const auto& [attribute, value] : wanted)
    KERN_TRY_VOID(
        driver.check("cuFuncGetAttribute", driver->func_get_attribute(value, attribute, raw)));
  for (size_t i = 0; i < kParamsMax; ++i) {
    ParamPlace place;
    const api::Status status = driver->func_get_param_info(raw, i, &place.offset, &place.bytes);
    if (status == api::kInvalidValue) break;  // there is no i-th
    KERN_TRY_VOID(driver.check("cuFuncGetParamInfo", status));
    function.params.push_back(place);
  }
  return function;
}

}  // namespace

Result<Module> Module::load(const Context& context, ByteSpan file) {
  KERN_TRY(images, device_images(file));
  const Driver& driver = context.driver();
  Module module(driver);
  Result<void> last = fail(Kind::kernel_artifact, "no device image");
  for (const ByteSpan image : images) {
    // The driver takes no length and wants its own alignment.
    std::vector<uint64_t> aligned((image.size() + 7) / 8, 0);
    std::memcpy(aligned.data(), image.data(), image.size());
    api::Module raw = nullptr;
    const auto loaded =
        driver.check("cuModuleLoadData", driver->module_load_data(&raw, aligned.data()));
    if (loaded)
      module.modules_.push_back(raw);
    else
      last = loaded;
  }
  if (!module.modules_.empty()) return module;
  return fail(Kind::kernel_artifact, "none of {} device images loads on device {} ({}, sm_{}): {}",
              images.size(), context.info().ordinal, context.info().name, context.info().sm,
              last.error().message);
}

Module::Module(Module&& other) noexcept
    : driver_(other.driver_), modules_(std::exchange(other.modules_, {})) {}

Module& Module::operator=(Module&& other) noexcept {
  std::swap(driver_, other.driver_);
  std::swap(modules_, other.modules_);
  return *this;
}

Module::~Module() {
  for (api::Module module : modules_) (*driver_)->module_unload(module);
}

Result<Function> Module::find(const std::string& entry) const {
  for (api::Module module : modules_) {
    api::Function raw = nullptr;
    const api::Status status = (*driver_)->module_get_function(&raw, module, entry.c_str());
    if (status == api::kNotFound) continue;
    KERN_TRY_VOID(driver_->check("cuModuleGetFunction", status));
    return with_context(describe(*driver_, raw, entry), "entry `{}`", entry);
  }
  return fail(Kind::kernel_artifact, "no entry `{}`", entry);
}

Result<Module::Global> Module::global(const std::string& name) const {
  for (api::Module module : modules_) {
    api::Pointer address = 0;
    size_t bytes = 0;
    const api::Status status =
        (*driver_)->module_get_global(&address, &bytes, module, name.c_str());
    if (status == api::kNotFound) continue;
    KERN_TRY_VOID(driver_->check("cuModuleGetGlobal", status));
    return Global{address, static_cast<int64_t>(bytes)};
  }
  return fail(Kind::kernel_artifact, "no variable `{}`", name);
}

// ---- launches ----

Result<void> allow(const Context& context, const Function& function, uint32_t shared_bytes,
                   const std::array<uint32_t, 3>& cluster) {
  constexpr uint32_t kSharedDefault = 48 * 1024, kClusterPortable = 8;
  const Driver& driver = context.driver();
  const int64_t most =
      int64_t{context.info().shared_bytes_max} - int64_t{function.static_shared_bytes};
  if (shared_bytes > most)
    return fail(Kind::kernel_artifact,
                "entry `{}` asks for {} bytes of shared memory a block, device {} has {} beside "
                "its {} static ones",
                function.name, shared_bytes, context.info().ordinal, most,
                function.static_shared_bytes);
  if (shared_bytes + static_cast<uint32_t>(function.static_shared_bytes) > kSharedDefault)
    KERN_TRY_VOID(driver.check("cuFuncSetAttribute",
                               driver->func_set_attribute(function.raw, api::kMaxDynamicSharedBytes,
                                                          static_cast<int>(shared_bytes))));
  if (cluster[0] * cluster[1] * cluster[2] > kClusterPortable)
    KERN_TRY_VOID(
        driver.check("cuFuncSetAttribute",
                     driver->func_set_attribute(function.raw, api::kNonPortableCluster, 1)));
  return {};
}

Result<void> launch(const Stream& stream, const Function& function, const LaunchShape& shape,
                    void* const* params) {
  api::LaunchAttribute attributes[3] = {};
  api::LaunchConfig config = {};
  for (size_t axis = 0; axis < 3; ++axis) {
    config.grid[axis] = shape.grid[axis];
    config.block[axis] = shape.block[axis];
  }
  config.shared_bytes = shape.shared_bytes;
  config.stream = stream.raw();
  config.attributes = attributes;
  const auto add = [&](api::LaunchAttributeId id) -> auto& {
    api::LaunchAttribute& attribute = attributes[config.attribute_count++];
    attribute.id = id;
    return attribute.value;
  };
  if (shape.cluster[0] * shape.cluster[1] * shape.cluster[2] > 1) {
    auto& value = add(api::kClusterDimension);
    for (size_t axis = 0; axis < 3; ++axis) value.cluster[axis] = shape.cluster[axis];
  }
  if (shape.pdl) add(api::kProgrammaticSerialization).flag = 1;
  if (shape.cooperative) add(api::kCooperative).flag = 1;
  const Driver& driver = stream.driver();
  // The driver only reads them.
  return driver.check(
      "cuLaunchKernelEx",
      driver->launch_kernel_ex(&config, function.raw, const_cast<void**>(params), nullptr));
}

}  // namespace kern::cuda
