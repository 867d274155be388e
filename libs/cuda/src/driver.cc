#include "kern/cuda/driver.h"

#include <dlfcn.h>

#include <array>
#include <cstring>

namespace kern::cuda {
namespace {

using api::Table;

/// A function's name, the version whose signature api.h declares, and its place in the table.
struct Row {
  const char* name;
  int version;
  size_t place;
};

constexpr std::array kRows = {
    Row{"cuInit", 2000, offsetof(Table, init)},
    Row{"cuDriverGetVersion", 2020, offsetof(Table, driver_get_version)},
    Row{"cuGetErrorName", 6000, offsetof(Table, get_error_name)},
    Row{"cuGetErrorString", 6000, offsetof(Table, get_error_string)},
    Row{"cuDeviceGet", 2000, offsetof(Table, device_get)},
    Row{"cuDeviceGetCount", 2000, offsetof(Table, device_get_count)},
    Row{"cuDeviceGetName", 2000, offsetof(Table, device_get_name)},
    Row{"cuDeviceGetAttribute", 2000, offsetof(Table, device_get_attribute)},
    Row{"cuDeviceTotalMem", 3020, offsetof(Table, device_total_mem)},
    Row{"cuDevicePrimaryCtxRetain", 7000, offsetof(Table, primary_ctx_retain)},
    Row{"cuDevicePrimaryCtxRelease", 11000, offsetof(Table, primary_ctx_release)},
    Row{"cuCtxSetCurrent", 4000, offsetof(Table, ctx_set_current)},
    Row{"cuCtxSynchronize", 2000, offsetof(Table, ctx_synchronize)},
    Row{"cuStreamCreate", 2000, offsetof(Table, stream_create)},
    Row{"cuStreamDestroy", 4000, offsetof(Table, stream_destroy)},
    Row{"cuStreamSynchronize", 2000, offsetof(Table, stream_synchronize)},
    Row{"cuStreamQuery", 2000, offsetof(Table, stream_query)},
    Row{"cuStreamWaitEvent", 3020, offsetof(Table, stream_wait_event)},
    Row{"cuStreamBeginCapture", 10010, offsetof(Table, stream_begin_capture)},
    Row{"cuStreamEndCapture", 10000, offsetof(Table, stream_end_capture)},
    Row{"cuEventCreate", 2000, offsetof(Table, event_create)},
    Row{"cuEventDestroy", 4000, offsetof(Table, event_destroy)},
    Row{"cuEventRecord", 2000, offsetof(Table, event_record)},
    Row{"cuEventQuery", 2000, offsetof(Table, event_query)},
    Row{"cuEventSynchronize", 2000, offsetof(Table, event_synchronize)},
    Row{"cuEventElapsedTime", 2000, offsetof(Table, event_elapsed_time)},
    Row{"cuMemGetInfo", 3020, offsetof(Table, mem_get_info)},
    Row{"cuMemAlloc", 3020, offsetof(Table, mem_alloc)},
    Row{"cuMemFree", 3020, offsetof(Table, mem_free)},
    Row{"cuMemHostRegister", 6050, offsetof(Table, mem_host_register)},
    Row{"cuMemHostUnregister", 4000, offsetof(Table, mem_host_unregister)},
    Row{"cuMemHostGetDevicePointer", 3020, offsetof(Table, mem_host_get_device_pointer)},
    Row{"cuMemcpyHtoDAsync", 3020, offsetof(Table, memcpy_h_to_d_async)},
    Row{"cuMemcpyDtoHAsync", 3020, offsetof(Table, memcpy_d_to_h_async)},
    Row{"cuMemcpyDtoDAsync", 3020, offsetof(Table, memcpy_d_to_d_async)},
    Row{"cuMemcpy2DAsync", 3020, offsetof(Table, memcpy_2d_async)},
    Row{"cuMemsetD8Async", 3020, offsetof(Table, memset_d8_async)},
    Row{"cuModuleLoadData", 2000, offsetof(Table, module_load_data)},
    Row{"cuModuleUnload", 2000, offsetof(Table, module_unload)},
    Row{"cuModuleGetFunction", 2000, offsetof(Table, module_get_function)},
    Row{"cuModuleGetGlobal", 3020, offsetof(Table, module_get_global)},
    Row{"cuFuncGetAttribute", 2020, offsetof(Table, func_get_attribute)},
    Row{"cuFuncSetAttribute", 9000, offsetof(Table, func_set_attribute)},
    Row{"cuFuncGetParamInfo", 12040, offsetof(Table, func_get_param_info)},
    Row{"cuLaunchKernelEx", 11060, offsetof(Table, launch_kernel_ex)},
    Row{"cuGraphInstantiateWithFlags", 11040, offsetof(Table, graph_instantiate)},
    Row{"cuGraphLaunch", 10000, offsetof(Table, graph_launch)},
    Row{"cuGraphUpload", 11010, offsetof(Table, graph_upload)},
    Row{"cuGraphDestroy", 10000, offsetof(Table, graph_destroy)},
    Row{"cuGraphExecDestroy", 10000, offsetof(Table, graph_exec_destroy)},
    Row{"cuMemGetAllocationGranularity", 10020, offsetof(Table, mem_get_allocation_granularity)},
    Row{"cuMemCreate", 10020, offsetof(Table, mem_create)},
    Row{"cuMemRelease", 10020, offsetof(Table, mem_release)},
    Row{"cuMemAddressReserve", 10020, offsetof(Table, mem_address_reserve)},
    Row{"cuMemAddressFree", 10020, offsetof(Table, mem_address_free)},
    Row{"cuMemMap", 10020, offsetof(Table, mem_map)},
    Row{"cuMemUnmap", 10020, offsetof(Table, mem_unmap)},
    Row{"cuMemSetAccess", 10020, offsetof(Table, mem_set_access)},
    Row{"cuMemExportToShareableHandle", 10020, offsetof(Table, mem_export)},
    Row{"cuMemImportFromShareableHandle", 10020, offsetof(Table, mem_import)},
    Row{"cuTensorMapEncodeTiled", 12000, offsetof(Table, tensor_map_encode_tiled)},
};
static_assert(sizeof(Table) == kRows.size() * sizeof(void*), "every function is looked up");

/// cuGetProcAddress as of CUDA 12.0.
using FindFunction = api::Status (*)(const char* name, void** function, int version,
                                     unsigned long long flags, int* found);

}  // namespace

Result<std::unique_ptr<const Driver>> Driver::load() {
  // Never closed: the library keeps threads and exit handlers of its own.
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) return fail(Kind::device, "no CUDA driver: {}", ::dlerror());
  const auto find = reinterpret_cast<FindFunction>(::dlsym(library, "cuGetProcAddress_v2"));
  if (find == nullptr)
    return fail(Kind::device, "the CUDA driver is older than 12.4: it has no cuGetProcAddress_v2");
  Table table{};
  for (const Row& row : kRows) {
    void* function = nullptr;
    int found = 0;
    if (find(row.name, &function, row.version, 0, &found) != api::kSuccess || function == nullptr)
      return fail(Kind::device, "the CUDA driver is older than 12.4: it has no {}", row.name);
    std::memcpy(reinterpret_cast<char*>(&table) + row.place, &function, sizeof(function));
  }
  auto driver = std::make_unique<const Driver>(table);
  KERN_TRY_VOID(driver->check("cuInit", table.init(0)));
  int version = 0;
  KERN_TRY_VOID(driver->check("cuDriverGetVersion", table.driver_get_version(&version)));
  if (version < kDriverVersionMin)
    return fail(Kind::device, "the CUDA driver is of version {}.{}, expected at least 12.4",
                version / 1000, version % 1000 / 10);
  return driver;
}

Result<void> Driver::failed(const char* call, api::Status status) const {
  const char* name = nullptr;
  const char* text = nullptr;
  table_.get_error_name(status, &name);
  table_.get_error_string(status, &text);
  return fail(Kind::device, "{}: {} ({}, {})", call, text == nullptr ? "unknown error" : text,
              name == nullptr ? "?" : name, status);
}

}  // namespace kern::cuda
