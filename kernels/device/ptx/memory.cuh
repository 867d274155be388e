#pragma once
/// 16-byte global accesses with a caching hint, and requests that bring lines into L2 early.

#include <stdint.h>

namespace kern {

/// Data that is read once: does not displace what L1 holds. Must not be written by this launch.
__device__ __forceinline__ uint4 load_once(const void* from) {
  uint4 value;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from));
  return value;
}

/// The same of an array whose neighbouring 256 bytes are read soon: memory is asked for all of them
/// at once, where single pieces of 64 bytes would cost it a row each.
__device__ __forceinline__ uint4 load_once_ahead(const void* from) {
  uint4 value;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from));
  return value;
}

/// Data that several warps or rows read.
__device__ __forceinline__ uint4 load_shared(const void* from) {
  return __ldg(static_cast<const uint4*>(from));
}

/// Written once, read by a later launch.
__device__ __forceinline__ void store(void* to, const uint4& value) {
  *static_cast<uint4*>(to) = value;
}

__device__ __forceinline__ void prefetch_l2(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

}  // namespace kern
