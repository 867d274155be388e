// Both bulk copies that write the shared memory of several blocks at once: what the scan of
// libs/cuda must find. Compiled for the scan's test and never launched.
#include <stdint.h>

struct alignas(64) Map {
  uint64_t words[16];
};
extern "C" __global__ void probe_multicast_tile(const __grid_constant__ Map map, int x, int y) {
  extern __shared__ __align__(128) uint8_t room[];
  const auto tile = static_cast<uint32_t>(__cvta_generic_to_shared(room));
  const uint16_t mask = 3;
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::"
      "cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(tile),
      "l"(&map), "r"(x), "r"(y), "r"(tile + 64), "h"(mask)
      : "memory");
}
extern "C" __global__ void probe_multicast_bulk(const void* from, int bytes) {
  extern __shared__ __align__(128) uint8_t room[];
  const auto tile = static_cast<uint32_t>(__cvta_generic_to_shared(room));
  const uint16_t mask = 3;
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1], %2, [%3], %4;" ::"r"(tile),
      "l"(from), "r"(bytes), "r"(tile + 64), "h"(mask)
      : "memory");
}
