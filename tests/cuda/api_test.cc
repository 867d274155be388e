// The driver's interface as this project declares it, against <cuda.h>. Compiled where the
// toolkit's header is installed; layouts are compared by the compiler.
#include "kern/cuda/api.h"

#include <cuda.h>

#include <catch2/catch.hpp>

namespace api = kern::cuda::api;

static_assert(sizeof(api::Pointer) == sizeof(CUdeviceptr));
static_assert(sizeof(api::MemoryHandle) == sizeof(CUmemGenericAllocationHandle));
static_assert(sizeof(api::Device) == sizeof(CUdevice));
static_assert(sizeof(api::Status) == sizeof(CUresult));

static_assert(sizeof(api::LaunchConfig) == sizeof(CUlaunchConfig));
static_assert(offsetof(api::LaunchConfig, grid) == offsetof(CUlaunchConfig, gridDimX));
static_assert(offsetof(api::LaunchConfig, block) == offsetof(CUlaunchConfig, blockDimX));
static_assert(offsetof(api::LaunchConfig, shared_bytes) ==
              offsetof(CUlaunchConfig, sharedMemBytes));
static_assert(offsetof(api::LaunchConfig, stream) == offsetof(CUlaunchConfig, hStream));
static_assert(offsetof(api::LaunchConfig, attributes) == offsetof(CUlaunchConfig, attrs));
static_assert(offsetof(api::LaunchConfig, attribute_count) == offsetof(CUlaunchConfig, numAttrs));
static_assert(sizeof(api::LaunchAttribute) == sizeof(CUlaunchAttribute));
static_assert(offsetof(api::LaunchAttribute, value) == offsetof(CUlaunchAttribute, value));
static_assert(sizeof(api::LaunchAttribute::value) == sizeof(CUlaunchAttributeValue));
static_assert(offsetof(CUlaunchAttributeValue, clusterDim) == 0);

static_assert(sizeof(api::AllocationProperties) == sizeof(CUmemAllocationProp));
static_assert(offsetof(api::AllocationProperties, handle_types) ==
              offsetof(CUmemAllocationProp, requestedHandleTypes));
static_assert(offsetof(api::AllocationProperties, location) ==
              offsetof(CUmemAllocationProp, location));
static_assert(offsetof(api::AllocationProperties, flags) ==
              offsetof(CUmemAllocationProp, allocFlags));
static_assert(sizeof(api::AccessDescription) == sizeof(CUmemAccessDesc));
static_assert(offsetof(api::AccessDescription, flags) == offsetof(CUmemAccessDesc, flags));
static_assert(sizeof(api::RowsCopy) == sizeof(CUDA_MEMCPY2D));
static_assert(offsetof(api::RowsCopy, from.memory) == offsetof(CUDA_MEMCPY2D, srcMemoryType));
static_assert(offsetof(api::RowsCopy, from.host) == offsetof(CUDA_MEMCPY2D, srcHost));
static_assert(offsetof(api::RowsCopy, from.device) == offsetof(CUDA_MEMCPY2D, srcDevice));
static_assert(offsetof(api::RowsCopy, from.pitch) == offsetof(CUDA_MEMCPY2D, srcPitch));
static_assert(offsetof(api::RowsCopy, to.memory) == offsetof(CUDA_MEMCPY2D, dstMemoryType));
static_assert(offsetof(api::RowsCopy, to.host) == offsetof(CUDA_MEMCPY2D, dstHost));
static_assert(offsetof(api::RowsCopy, to.device) == offsetof(CUDA_MEMCPY2D, dstDevice));
static_assert(offsetof(api::RowsCopy, to.pitch) == offsetof(CUDA_MEMCPY2D, dstPitch));
static_assert(offsetof(api::RowsCopy, row_bytes) == offsetof(CUDA_MEMCPY2D, WidthInBytes));
static_assert(offsetof(api::RowsCopy, rows) == offsetof(CUDA_MEMCPY2D, Height));
static_assert(sizeof(api::FabricHandle) == sizeof(CUmemFabricHandle));
static_assert(sizeof(api::TensorMap) == sizeof(CUtensorMap));

TEST_CASE("numbers of the driver's interface are those of its header", "[cuda][api]") {
  const std::pair<int, int> pairs[] = {
      {api::kSuccess, CUDA_SUCCESS},
      {api::kInvalidValue, CUDA_ERROR_INVALID_VALUE},
      {api::kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY},
      {api::kNoBinaryForGpu, CUDA_ERROR_NO_BINARY_FOR_GPU},
      {api::kNotFound, CUDA_ERROR_NOT_FOUND},
      {api::kNotReady, CUDA_ERROR_NOT_READY},
      {api::kMultiprocessorCount, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT},
      {api::kPciBusId, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID},
      {api::kPciDeviceId, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID},
      {api::kPciDomainId, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID},
      {api::kL2CacheBytes, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE},
      {api::kCapabilityMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR},
      {api::kCapabilityMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR},
      {api::kSharedBytesMaxOptIn, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN},
      {api::kPosixHandles, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED},
      {api::kFabricHandles, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED},
      {api::kMaxThreads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK},
      {api::kStaticSharedBytes, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES},
      {api::kLocalBytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES},
      {api::kRegisters, CU_FUNC_ATTRIBUTE_NUM_REGS},
      {api::kBinaryVersion, CU_FUNC_ATTRIBUTE_BINARY_VERSION},
      {api::kMaxDynamicSharedBytes, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES},
      {api::kClusterMustBeSet, CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET},
      {api::kNonPortableCluster, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED},
      {api::kCooperative, CU_LAUNCH_ATTRIBUTE_COOPERATIVE},
      {api::kClusterDimension, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION},
      {api::kProgrammaticSerialization, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION},
      {api::kLocationDevice, CU_MEM_LOCATION_TYPE_DEVICE},
      {api::kAllocationPinned, CU_MEM_ALLOCATION_TYPE_PINNED},
      {api::kHandlePosixFd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR},
      {api::kHandleFabric, CU_MEM_HANDLE_TYPE_FABRIC},
      {api::kAccessReadWrite, CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
      {api::kStreamNonBlocking, CU_STREAM_NON_BLOCKING},
      {api::kEventDisableTiming, CU_EVENT_DISABLE_TIMING},
      {api::kCaptureThreadLocal, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL},
      {api::kMemoryHost, CU_MEMORYTYPE_HOST},
      {api::kMemoryDevice, CU_MEMORYTYPE_DEVICE},
      {api::kHostRegisterPortable, CU_MEMHOSTREGISTER_PORTABLE},
      {api::kHostRegisterDeviceMap, CU_MEMHOSTREGISTER_DEVICEMAP},
  };
  for (const auto& [ours, theirs] : pairs) CHECK(ours == theirs);
}
