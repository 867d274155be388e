/* The interface between the runtime's host device and a CPU module. Stable C.
 *
 * A CPU module is a shared object pinned by its SHA-256. Every entry is
 *     extern "C" void entry(const kern_block* where, void* const* args);
 * called once a grid block. Blocks of a launch may run in any order and on any worker thread; a
 * block writes only what no other block of the launch reads or writes. args[i] points at the i-th
 * parameter as a CUDA launch would pass it: at a pointer for a buffer or state, at an int32_t,
 * int64_t, float or uint8_t for a scalar.
 * An entry returns nothing and cannot fail: what could fail was checked before.
 */
#ifndef KERN_RUNTIME_HOST_MODULE_H
#define KERN_RUNTIME_HOST_MODULE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KERN_HOST_ABI 1

/* Row-major, f32 accumulation over k in an order that depends on k alone: a row of C depends on
 * its own row of A and on W, never on m. bf16 values are their raw 16 bits. */
typedef struct kern_host_services {
  uint32_t abi; /* KERN_HOST_ABI */
  uint32_t reserved;
  /* C[m,n] = A[m,k] * W[n,k]^T, strides in elements; C rounded to bf16 (nearest even). */
  void (*gemm_bf16_tn)(const uint16_t* a, const uint16_t* w, uint16_t* c, int64_t m, int64_t n,
                       int64_t k, int64_t c_stride, int64_t a_stride);
  /* The same with C left in f32. */
  void (*gemm_bf16_tn_f32)(const uint16_t* a, const uint16_t* w, float* c, int64_t m, int64_t n,
                           int64_t k, int64_t c_stride, int64_t a_stride);
} kern_host_services;

typedef struct kern_block {
  uint32_t grid[3];
  uint32_t index[3];     /* this block's place in the grid */
  uint32_t block[3];     /* threads a block in the manifest; a CPU entry may ignore it */
  uint32_t shared_bytes; /* size of `shared` */
  void* shared;          /* private to this worker, 64-byte aligned, content undefined */
  const kern_host_services* services;
} kern_block;

typedef void (*kern_host_entry)(const kern_block* where, void* const* args);

#ifdef __cplusplus
}
#endif

#endif
