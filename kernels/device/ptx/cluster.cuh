#pragma once
/// Blocks of one cluster: their barrier, and each other's shared memory.

#include <stdint.h>

namespace kern {

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

/// Everything that a block of the cluster wrote before it is seen by every block after it.
__device__ __forceinline__ void cluster_sync() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

/// The address, in block `rank` of the cluster, of what lies at `mine` in this one.
__device__ __forceinline__ uint32_t in_block(const void* mine, uint32_t rank) {
  uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(address)
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(mine))), "r"(rank));
  return address;
}
__device__ __forceinline__ uint32_t read_u32(uint32_t address) {
  uint32_t value;
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}
__device__ __forceinline__ uint64_t read_u64(uint32_t address) {
  uint64_t value;
  asm volatile("ld.shared::cluster.u64 %0, [%1];" : "=l"(value) : "r"(address) : "memory");
  return value;
}

}  // namespace kern
