#pragma once
/// Ranks that hand each other bytes through memory every rank has mapped: one mailbox a rank, one
/// box in it for every sender and block, and a counter beside each box that says which letter lies
/// there.
///
/// Every rank makes the same collectives in the same order with the same grid, so the n-th letter
/// of a block is the n-th everywhere. A block writes the n-th letters of its own into the boxes of
/// parity n mod 2, tells each receiver, and waits for the letter of every rank. Two parities are
/// enough: a rank that writes letter n + 2 has seen every rank's letter n + 1, and a rank writes
/// letter n + 1 only after it has read the n-th ones.
///
/// A rank that never writes is waited for kPatience, then the launch traps: the step fails instead
/// of hanging.
/// Memory, of one rank:
///   mail   f32 [2 parities][ranks][blocks][box_floats]: written by the peers
///   flags  u32 [ranks][blocks]: number of the last letter from that rank to that block
///   count  u32 [blocks]: letters this block has sent; only its own
/// All zero at the start.

#include <stdint.h>

namespace kern::comm {

constexpr uint64_t kPatienceNs = 20'000'000'000;

__device__ __forceinline__ void tell(uint32_t* flag, uint32_t number) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(number) : "memory");
}

__device__ __forceinline__ uint32_t told(const uint32_t* flag) {
  uint32_t number;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(number) : "l"(flag) : "memory");
  return number;
}

__device__ __forceinline__ uint64_t now_ns() {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

/// A peer's bytes as they are now: never from a cache of this multiprocessor.
__device__ __forceinline__ uint4 load_letter(const void* from) {
  uint4 value;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from)
               : "memory");
  return value;
}

/// One block's view of the mailboxes in one launch.
struct Mailbox {
  float* mail;               ///< this rank's own
  uint32_t* flags;           ///< this rank's own
  uint32_t* count;           ///< this rank's own
  const uint64_t* mails;     ///< [ranks], the address of every rank's mail
  const uint64_t* flags_of;  ///< [ranks], the address of every rank's flags
  int64_t box_floats;
  int rank, ranks;
  uint32_t number;  ///< of the letters at hand

  __device__ Mailbox(float* mail, uint32_t* flags, uint32_t* count, const uint64_t* mails,
                     const uint64_t* flags_of, int box_floats, int rank, int ranks)
      : mail(mail),
        flags(flags),
        count(count),
        mails(mails),
        flags_of(flags_of),
        box_floats(box_floats),
        rank(rank),
        ranks(ranks),
        number(count[blockIdx.x] + 1) {}

  /// Where rank `from`'s letter to this block lies, in every mail alike.
  __device__ int64_t place(int from) const {
    return ((int64_t{number & 1} * ranks + from) * gridDim.x + blockIdx.x) * box_floats;
  }
  __device__ float* outbox(int to) const {
    return reinterpret_cast<float*>(mails[to]) + place(rank);
  }
  __device__ const float* inbox(int from) const { return mail + place(from); }

  /// After every thread has written: tells all ranks, waits for all.
  __device__ void exchange() const {
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x < ranks && threadIdx.x != rank) {
      const int peer = threadIdx.x;
      tell(reinterpret_cast<uint32_t*>(flags_of[peer]) + rank * gridDim.x + blockIdx.x, number);
      const uint32_t* mine = flags + peer * gridDim.x + blockIdx.x;
      const uint64_t start = now_ns();
      while (static_cast<int32_t>(told(mine) - number) < 0)
        if (now_ns() - start > kPatienceNs) __trap();
    }
    __syncthreads();
  }

  /// The last thing a launch does.
  __device__ void done() const {
    if (threadIdx.x == 0) count[blockIdx.x] = number;
  }
};

}  // namespace kern::comm
