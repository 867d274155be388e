// Collectives of a group whose ranks have mapped each other's mailboxes. One shot: every rank sends
// its part to all, and adds what it gets itself.
//
// kern_allreduce_f32:  data[i] = ((data of rank 0)[i] + (rank 1)[i]) + …, in rank order, in f32
//   inout f32 data; i64 count (elements)
// kern_alltoall_f32:   receive block r = rank r's send block of this rank
//   in f32 [ranks, count] send; out f32 [ranks, count] receive; i64 count
// kern_allgather_f32:  receive block r = rank r's send
//   in f32 [count] send; out f32 [ranks, count] receive; i64 count
// each then: inout f32 [2, ranks, blocks, box_floats] mail; inout u32 [ranks, blocks] flags;
//   inout u32 [blocks] letters; in u64 [ranks] mails, flags_of; i32 box_floats, rank, ranks
// Mailboxes: see device/comm/mailbox.cuh.
//
// grid: [blocks, 1, 1], the same in every launch that shares the mailboxes, and small enough that
// the blocks of all ranks on one device are resident together: they wait for each other.
// block: [512, 1, 1]. shared: 0. A collective of more than blocks * box_floats elements a rank goes
// in several rounds. box_floats is a multiple of 4; buffers begin at 16 bytes where count is one.
// Rounding points: the f32 additions of the all-reduce, in rank order whatever the transport; every
// rank gets the same bytes.

#include "comm/mailbox.cuh"
#include "ptx/memory.cuh"

using kern::comm::Mailbox;

namespace {

constexpr int kThreads = 512;

/// The share of this block in one round: elements [first, first + count).
struct Share {
  int64_t first, count;
};

/// Calls `step(Share)` for every round; all blocks make equally many.
template <class Step>
__device__ __forceinline__ void each_round(int64_t count, int64_t box, Step step) {
  const int64_t round = box * gridDim.x;
  for (int64_t from = 0; from < count; from += round) {
    const int64_t now = min(round, count - from);
    const int64_t each = (now + 4 * gridDim.x - 1) / (4 * gridDim.x) * 4;
    const int64_t first = min(each * blockIdx.x, now);
    step(Share{from + first, min(each, now - first)});
  }
}

__device__ __forceinline__ bool is_aligned(const void* p) {
  return reinterpret_cast<uint64_t>(p) % 16 == 0;
}

__device__ __forceinline__ float load_letter(const float* from) {
  float value;
  asm volatile("ld.relaxed.sys.global.f32 %0, [%1];" : "=f"(value) : "l"(from) : "memory");
  return value;
}

/// Copies `count` floats; letters may not come from a stale cache, so both directions are plain
/// system-wide accesses.
__device__ __forceinline__ void copy(float* to, const float* from, int64_t count) {
  int64_t i = threadIdx.x;
  if (is_aligned(to) && is_aligned(from)) {
    for (i = threadIdx.x * 4; i + 4 <= count; i += kThreads * 4)
      *reinterpret_cast<uint4*>(to + i) = kern::comm::load_letter(from + i);
    i = count / 4 * 4 + threadIdx.x;
  }
  for (; i < count; i += kThreads) to[i] = load_letter(from + i);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    kern_allreduce_f32(float* data, int64_t count, float* mail, uint32_t* flags, uint32_t* letters,
                       const uint64_t* mails, const uint64_t* flags_of, int box_floats, int rank,
                       int ranks) {
  Mailbox box(mail, flags, letters, mails, flags_of, box_floats, rank, ranks);
  each_round(count, box_floats, [&](Share share) {
    float* own = data + share.first;
    for (int hop = 1; hop < ranks; ++hop) {
      const int peer = (rank + hop) % ranks;
      copy(box.outbox(peer), own, share.count);
    }
    box.exchange();
    const bool vectors = is_aligned(own);
    const int64_t end = vectors ? share.count / 4 * 4 : 0;
    for (int64_t i = threadIdx.x * 4; i < end; i += kThreads * 4) {
      float4 sum;
      for (int r = 0; r < ranks; ++r) {
        const uint4 bits = r == rank ? *reinterpret_cast<const uint4*>(own + i)
                                     : kern::comm::load_letter(box.inbox(r) + i);
        const float4 part = {__uint_as_float(bits.x), __uint_as_float(bits.y),
                             __uint_as_float(bits.z), __uint_as_float(bits.w)};
        sum =
            r == 0 ? part : float4{sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w};
      }
      *reinterpret_cast<float4*>(own + i) = sum;
    }
    for (int64_t i = end + threadIdx.x; i < share.count; i += kThreads) {
      float sum = 0;
      for (int r = 0; r < ranks; ++r) {
        const float part = r == rank ? own[i] : load_letter(box.inbox(r) + i);
        sum = r == 0 ? part : sum + part;
      }
      own[i] = sum;
    }
    __syncthreads();
    ++box.number;
  });
  --box.number;
  box.done();
}

extern "C" __global__ void __launch_bounds__(kThreads)
    kern_alltoall_f32(const float* send, float* receive, int64_t count, float* mail,
                      uint32_t* flags, uint32_t* letters, const uint64_t* mails,
                      const uint64_t* flags_of, int box_floats, int rank, int ranks) {
  Mailbox box(mail, flags, letters, mails, flags_of, box_floats, rank, ranks);
  each_round(count, box_floats, [&](Share share) {
    for (int hop = 1; hop < ranks; ++hop) {
      const int peer = (rank + hop) % ranks;
      copy(box.outbox(peer), send + peer * count + share.first, share.count);
    }
    copy(receive + rank * count + share.first, send + rank * count + share.first, share.count);
    box.exchange();
    for (int peer = 0; peer < ranks; ++peer)
      if (peer != rank) copy(receive + peer * count + share.first, box.inbox(peer), share.count);
    __syncthreads();
    ++box.number;
  });
  --box.number;
  box.done();
}

extern "C" __global__ void __launch_bounds__(kThreads)
    kern_allgather_f32(const float* send, float* receive, int64_t count, float* mail,
                       uint32_t* flags, uint32_t* letters, const uint64_t* mails,
                       const uint64_t* flags_of, int box_floats, int rank, int ranks) {
  Mailbox box(mail, flags, letters, mails, flags_of, box_floats, rank, ranks);
  each_round(count, box_floats, [&](Share share) {
    for (int hop = 1; hop < ranks; ++hop) {
      const int peer = (rank + hop) % ranks;
      copy(box.outbox(peer), send + share.first, share.count);
    }
    copy(receive + rank * count + share.first, send + share.first, share.count);
    box.exchange();
    for (int peer = 0; peer < ranks; ++peer)
      if (peer != rank) copy(receive + peer * count + share.first, box.inbox(peer), share.count);
    __syncthreads();
    ++box.number;
  });
  --box.number;
  box.done();
}
