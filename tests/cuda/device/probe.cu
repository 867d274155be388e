// Kernels that show whether a driver does what libs/cuda asks of it; tests/README.md says how they
// are built and where they go.
#include <stdint.h>

extern "C" __global__ void probe_scale(const float* x, float* y, float a, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i];
}

// A parameter by value with holes, as a manifest's pack is.
struct Pack {
  uint64_t out;
  int32_t first;
  uint8_t small;
  float real;
};
extern "C" __global__ void probe_pack(const __grid_constant__ Pack pack, int64_t wide) {
  auto* out = reinterpret_cast<double*>(pack.out);
  out[0] = pack.first;
  out[1] = pack.small;
  out[2] = pack.real;
  out[3] = static_cast<double>(wide);
}

// The last byte of a block's dynamic shared memory is there.
extern "C" __global__ void probe_shared(uint8_t* out, int bytes) {
  extern __shared__ uint8_t room[];
  room[bytes - 1] = 42;
  __syncthreads();
  if (threadIdx.x == 0) out[blockIdx.x] = room[bytes - 1];
}

// The block's place in its cluster.
extern "C" __global__ void probe_cluster(int* out) {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (threadIdx.x == 0) out[blockIdx.x] = static_cast<int>(rank);
}

// Adds 1 after the launch ahead has finished; without the wait it could read too early.
extern "C" __global__ void probe_after(int* at) {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  if (threadIdx.x == 0) *at += 1;
}
// Takes a while, then writes.
extern "C" __global__ void probe_slow(int* at, int value) {
  asm volatile("griddepcontrol.launch_dependents;");
  const long long until = clock64() + 200000;
  while (clock64() < until) {
  }
  if (threadIdx.x == 0) *at = value;
}

struct alignas(64) Map {
  uint64_t words[16];
};
// One box of a two-dimensional bf16 tensor through a tensormap, then out again.
extern "C" __global__ void probe_tile(const __grid_constant__ Map map, uint16_t* out, int x, int y,
                                      int bytes) {
  extern __shared__ __align__(128) uint8_t room[];
  __shared__ __align__(8) uint64_t barrier;
  const auto tile = static_cast<uint32_t>(__cvta_generic_to_shared(room));
  const auto full = static_cast<uint32_t>(__cvta_generic_to_shared(&barrier));
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(full));
    asm volatile("fence.proxy.async.shared::cta;");
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(full), "r"(bytes));
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3}], [%4];" ::"r"(tile),
        "l"(&map), "r"(x), "r"(y), "r"(full)
        : "memory");
  }
  __syncthreads();
  uint32_t done = 0;
  while (!done)
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(full)
        : "memory");
  for (int i = threadIdx.x; i < bytes / 2; i += blockDim.x)
    out[i] = reinterpret_cast<uint16_t*>(room)[i];
}

// Marks one's own memory, and reads a byte of every member's through a table of addresses.
extern "C" __global__ void probe_mark(uint8_t* x, int value) {
  x[threadIdx.x] = static_cast<uint8_t>(value);
}
extern "C" __global__ void probe_read_peers(const uint8_t* const* table, uint8_t* out) {
  out[threadIdx.x] = table[threadIdx.x][63];
}
