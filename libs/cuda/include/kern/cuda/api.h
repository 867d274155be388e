#pragma once
/// The part of the driver's binary interface that this project uses, declared here so that a build
/// needs no CUDA header and a program no CUDA library. Names follow the driver's own (`mem_alloc`
/// is cuMemAlloc); numbers and layouts are its ABI, compared with <cuda.h> by a test wherever that
/// header is installed.
/// Thread safety: plain types.
/// Does not: call anything.

#include <cstddef>
#include <cstdint>

namespace kern::cuda::api {

using Status = int;                  ///< CUresult; 0 is success
using Device = int;                  ///< CUdevice
using Pointer = unsigned long long;  ///< CUdeviceptr
using MemoryHandle = unsigned long long;
using Context = struct ContextTag*;
using Stream = struct StreamTag*;
using Event = struct EventTag*;
using Module = struct ModuleTag*;
using Function = struct FunctionTag*;
using Graph = struct GraphTag*;
using GraphExec = struct GraphExecTag*;

inline constexpr Status kSuccess = 0;
inline constexpr Status kInvalidValue = 1;
inline constexpr Status kOutOfMemory = 2;
inline constexpr Status kNoBinaryForGpu = 209;
inline constexpr Status kNotFound = 500;
inline constexpr Status kNotReady = 600;

enum DeviceAttribute : int {
  kMultiprocessorCount = 16,
  kPciBusId = 33,
  kPciDeviceId = 34,
  kL2CacheBytes = 38,
  kPciDomainId = 50,
  kCapabilityMajor = 75,
  kCapabilityMinor = 76,
  kSharedBytesMaxOptIn = 97,
  kPosixHandles = 103,
  kFabricHandles = 128,
};

enum FunctionAttribute : int {
  kMaxThreads = 0,
  kStaticSharedBytes = 1,
  kLocalBytes = 3,
  kRegisters = 4,
  kBinaryVersion = 6,
  kMaxDynamicSharedBytes = 8,
  kClusterMustBeSet = 10,
  kNonPortableCluster = 14,
};

enum LaunchAttributeId : int {
  kCooperative = 2,
  kClusterDimension = 4,
  kProgrammaticSerialization = 6,
};

struct LaunchAttribute {
  LaunchAttributeId id;
  char pad[4];
  union {
    char bytes[64];
    unsigned cluster[3];
    int flag;
  } value;
};
static_assert(sizeof(LaunchAttribute) == 72 && offsetof(LaunchAttribute, value) == 8);

struct LaunchConfig {
  unsigned grid[3];
  unsigned block[3];
  unsigned shared_bytes;
  Stream stream;
  LaunchAttribute* attributes;
  unsigned attribute_count;
};
static_assert(sizeof(LaunchConfig) == 56 && offsetof(LaunchConfig, stream) == 32);

struct MemoryLocation {
  int type;  ///< 1: a device
  int id;
};
inline constexpr int kLocationDevice = 1;
inline constexpr int kAllocationPinned = 1;
inline constexpr int kHandlePosixFd = 1;
inline constexpr int kHandleFabric = 8;
inline constexpr int kAccessReadWrite = 3;

struct AllocationProperties {
  int type;
  int handle_types;
  MemoryLocation location;
  void* win32_meta_data;
  struct {
    unsigned char compression;
    unsigned char gpu_direct_rdma;
    unsigned short usage;
    unsigned char reserved[4];
  } flags;
};
static_assert(sizeof(AllocationProperties) == 32);

struct AccessDescription {
  MemoryLocation location;
  int flags;
};
static_assert(sizeof(AccessDescription) == 12);

/// One side of a copy of rows.
struct RowsPlace {
  size_t x_bytes, y;
  int memory;
  void* host;
  Pointer device;
  void* array;
  size_t pitch;
};
struct RowsCopy {
  RowsPlace from, to;
  size_t row_bytes, rows;
};
static_assert(sizeof(RowsCopy) == 128 && offsetof(RowsPlace, pitch) == 48);
inline constexpr int kMemoryHost = 1, kMemoryDevice = 2;

struct FabricHandle {
  unsigned char data[64];
};

struct alignas(128) TensorMap {
  uint64_t opaque[16];
};

inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kCaptureThreadLocal = 1;
inline constexpr unsigned kHostRegisterPortable = 1, kHostRegisterDeviceMap = 2;

/// One pointer a function, all found or none: `Driver::load` fills it from libcuda, a test with
/// functions of its own.
struct Table {
  Status (*init)(unsigned flags);
  Status (*driver_get_version)(int* version);
  Status (*get_error_name)(Status, const char** text);
  Status (*get_error_string)(Status, const char** text);

  Status (*device_get)(Device*, int ordinal);
  Status (*device_get_count)(int*);
  Status (*device_get_name)(char* name, int length, Device);
  Status (*device_get_attribute)(int* value, int attribute, Device);
  Status (*device_total_mem)(size_t* bytes, Device);
  Status (*primary_ctx_retain)(Context*, Device);
  Status (*primary_ctx_release)(Device);
  Status (*ctx_set_current)(Context);
  Status (*ctx_synchronize)();

  Status (*stream_create)(Stream*, unsigned flags);
  Status (*stream_destroy)(Stream);
  Status (*stream_synchronize)(Stream);
  Status (*stream_query)(Stream);
  Status (*stream_wait_event)(Stream, Event, unsigned flags);
  Status (*stream_begin_capture)(Stream, unsigned mode);
  Status (*stream_end_capture)(Stream, Graph*);
  Status (*event_create)(Event*, unsigned flags);
  Status (*event_destroy)(Event);
  Status (*event_record)(Event, Stream);
  Status (*event_query)(Event);
  Status (*event_synchronize)(Event);
  Status (*event_elapsed_time)(float* milliseconds, Event first, Event last);

  Status (*mem_get_info)(size_t* free, size_t* total);
  Status (*mem_alloc)(Pointer*, size_t bytes);
  Status (*mem_free)(Pointer);
  Status (*mem_host_register)(void*, size_t bytes, unsigned flags);
  Status (*mem_host_unregister)(void*);
  Status (*mem_host_get_device_pointer)(Pointer*, void*, unsigned flags);
  Status (*memcpy_h_to_d_async)(Pointer to, const void* from, size_t bytes, Stream);
  Status (*memcpy_d_to_h_async)(void* to, Pointer from, size_t bytes, Stream);
  Status (*memcpy_d_to_d_async)(Pointer to, Pointer from, size_t bytes, Stream);
  Status (*memcpy_2d_async)(const RowsCopy*, Stream);
  Status (*memset_d8_async)(Pointer to, unsigned char value, size_t bytes, Stream);

  Status (*module_load_data)(Module*, const void* image);
  Status (*module_unload)(Module);
  Status (*module_get_function)(Function*, Module, const char* name);
  Status (*module_get_global)(Pointer*, size_t* bytes, Module, const char* name);
  Status (*func_get_attribute)(int* value, int attribute, Function);
  Status (*func_set_attribute)(Function, int attribute, int value);
  Status (*func_get_param_info)(Function, size_t index, size_t* offset, size_t* bytes);
  Status (*launch_kernel_ex)(const LaunchConfig*, Function, void** params, void** extra);

  Status (*graph_instantiate)(GraphExec*, Graph, unsigned long long flags);
  Status (*graph_launch)(GraphExec, Stream);
  Status (*graph_upload)(GraphExec, Stream);
  Status (*graph_destroy)(Graph);
  Status (*graph_exec_destroy)(GraphExec);

  Status (*mem_get_allocation_granularity)(size_t*, const AllocationProperties*, int option);
  Status (*mem_create)(MemoryHandle*, size_t bytes, const AllocationProperties*,
                       unsigned long long flags);
  Status (*mem_release)(MemoryHandle);
  Status (*mem_address_reserve)(Pointer*, size_t bytes, size_t alignment, Pointer wanted,
                                unsigned long long flags);
  Status (*mem_address_free)(Pointer, size_t bytes);
  Status (*mem_map)(Pointer, size_t bytes, size_t offset, MemoryHandle, unsigned long long flags);
  Status (*mem_unmap)(Pointer, size_t bytes);
  Status (*mem_set_access)(Pointer, size_t bytes, const AccessDescription*, size_t count);
  Status (*mem_export)(void* handle, MemoryHandle, int type, unsigned long long flags);
  Status (*mem_import)(MemoryHandle*, void* handle, int type);

  Status (*tensor_map_encode_tiled)(TensorMap*, int dtype, uint32_t rank, void* address,
                                    const uint64_t* dims, const uint64_t* strides,
                                    const uint32_t* box, const uint32_t* element_strides,
                                    int interleave, int swizzle, int l2_promotion, int oob_fill);
};

}  // namespace kern::cuda::api
