#pragma once
/// Attention of one row's heads over a run of latent pages, by two warpgroups that compute and one
/// that loads: what the forms of mla_attend share.
///
/// A warpgroup has half the heads, in columns. Positions are rows: scores[64 x heads] = keys q^T;
/// then the sums[latent x heads] += latent^T weights^T. Both read the same 64 rows of a page, which
/// lie in a ring of 64-value blocks; the sums stay in registers.

#include "common/numeric.cuh"
#include "mla/cache.cuh"
#include "mma/wgmma.cuh"
#include "ptx/async.cuh"

#ifndef MLA_HEADS
#define MLA_HEADS 96
#endif

namespace kern::mla {

constexpr int kHeads = MLA_HEADS;
constexpr int kN = kHeads > 16 ? 48 : 8;  // heads of a warpgroup
// Scores are taken in two halves, because the sums leave too few registers for all at once.
constexpr int kHalves = kN > 8 ? 2 : 1, kHalf = kN / kHalves, kTiles = kHalf / 8;
constexpr int kRegs = kN / 2, kHalfRegs = kHalf / 2;  // accumulators of 64 x kN, 64 x kHalf
constexpr int kBlocks = kWidth / 64, kLatentBlocks = kLora / 64, kSlots = 12;
constexpr int kConsumers = 256, kThreads = 384;  // two warpgroups compute, one loads
static_assert(kHeads <= 2 * kN && kWidth % 64 == 0 && kSlots > kBlocks);

// Shared memory: queries by 64-value blocks, the ring of key blocks, the weights of a tile; then
// (over the first two) the sums, f32 [head][kPitch].
constexpr int kQBlock = 2 * kN * 128, kSlot = kPage * 128, kPitch = kLora + 4;
constexpr int kAtRing = kBlocks * kQBlock, kAtP = kAtRing + kSlots * kSlot;
constexpr int kAtMost = kAtP + 2 * kN * 128;            // [2 parities][2 groups][kN]
constexpr int kAtHigh = kAtMost + 2 * 2 * kN * 4;       // [2 parities][2 groups][4 warps][kN]
constexpr int kAtTotal = kAtHigh + 2 * 2 * 4 * kN * 4;  // [2 groups][4 warps][kN]
constexpr int kAtEnd = kAtTotal + 2 * 4 * kN * 4;       // [kHeads][2]: m and l of this block
constexpr int kAtBarriers = kAtEnd + 2 * kN * 8;        // [2 kSlots]
constexpr int kAtRows = kAtBarriers + 2 * kSlots * 8;   // the split form's table
static_assert(kHeads * kPitch * 4 <= kAtP, "the sums fit over the queries and the ring");

constexpr float kLog2E = 1.44269504F;

/// Place in the ring, counted in blocks.
struct Ring {
  int slot = 0;
  uint32_t parity = 0;

  __device__ void next() {
    if (++slot == kSlots) slot = 0, parity ^= 1;
  }
};

__device__ __forceinline__ uint32_t full(uint32_t shared, int slot) {
  return shared + kAtBarriers + 8 * slot;
}
__device__ __forceinline__ uint32_t empty(uint32_t shared, int slot) {
  return shared + kAtBarriers + 8 * (kSlots + slot);
}

__device__ __forceinline__ float2 load_pair(uint32_t address) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(address) : "memory");
  return v;
}
__device__ __forceinline__ void store_pair(uint32_t address, float2 v) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(v.x), "f"(v.y) : "memory");
}

/// What one block does of one row.
struct Work {
  int row, seq, held;     // the row and the positions it sees on this rank
  int first, last;        // tiles of this block
  int segment, segments;  // of the row
};

// ---- the loading warpgroup: its first warp asks, the others only meet ----

__device__ __forceinline__ void load_tiles(const TensorMap* map, const int32_t* table,
                                           const Work& work, uint32_t shared, Ring& ring) {
  if (threadIdx.x >= kConsumers + 32) return;
  int next = work.first < work.last ? table[work.first] : 0;
  for (int tile = work.first; tile < work.last; ++tile) {
    const int page = next;
    if (tile + 1 < work.last) next = table[tile + 1];
    // The ring holds little more than a tile: what comes next should at least be near.
    const int lane = threadIdx.x % 32;
    if (lane < kBlocks && tile + 1 < work.last) prefetch_box(map, lane * 64, next * kPage);
    for (int block = 0; block < kBlocks; ++block) {
      barrier_wait(empty(shared, ring.slot), ring.parity ^ 1);
      if (threadIdx.x == kConsumers) {
        barrier_expect(full(shared, ring.slot), kSlot);
        copy_box(shared + kAtRing + ring.slot * kSlot, map, block * 64, page * kPage,
                 full(shared, ring.slot));
      }
      ring.next();
    }
  }
}

// ---- a computing warpgroup ----

__device__ __forceinline__ void load_queries(const bf16* q, uint32_t shared) {
  for (int i = threadIdx.x; i < 2 * kN * (kWidth / 8); i += kConsumers) {
    const int head = i / (kWidth / 8), chunk = i % (kWidth / 8);
    const uint32_t to = shared + chunk / 8 * kQBlock + head * 128 + (((chunk ^ head) & 7) << 4);
    copy16(to, q + (head < kHeads ? int64_t{head} * kWidth : 0) + chunk * 8, head < kHeads);
  }
  copies_commit();
  copies_wait<0>();
  fence_async();
  group_barrier(1, kConsumers);
}

struct Consumer {
  uint32_t shared;
  float sums[kLatentBlocks][kRegs];  // sums[b][4 j + …]: latent 64 b + 16 warp + …, head 8 j + …

  __device__ static int group() { return threadIdx.x / 128; }
  __device__ static int warp() { return threadIdx.x / 32 % 4; }
  __device__ static int lane() { return threadIdx.x % 32; }

  // places of pairs of heads
  __device__ uint32_t most(int parity) const {
    return shared + kAtMost + (parity * 2 + group()) * (kN * 4);
  }
  __device__ uint32_t high(int parity, int of_warp) const {
    return shared + kAtHigh + ((parity * 2 + group()) * 4 + of_warp) * (kN * 4);
  }
  __device__ uint32_t total(int of_warp) const {
    return shared + kAtTotal + (group() * 4 + of_warp) * (kN * 4);
  }
  __device__ uint32_t weights() const { return shared + kAtP + group() * kN * 128; }

  __device__ void clear() {
#pragma unroll
    for (int b = 0; b < kLatentBlocks; ++b)
#pragma unroll
      for (int i = 0; i < kRegs; ++i) sums[b][i] = 0;
    for (int i = lane(); i < kN / 2; i += 32) {
      store_pair(total(warp()) + 8 * i, {0, 0});
      if (warp() == 0) store_pair(most(0) + 8 * i, {kNone, kNone});
    }
    group_barrier(2 + group(), 128);
  }

  /// scores [64 positions x kHalf heads].
  __device__ void scores(float (&s)[kHalfRegs], int half, Ring ring) const {
    const uint32_t queries = shared + (group() * kN + half * kHalf) * 128;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      barrier_wait(full(shared, ring.slot), ring.parity);
      wgmma_fence();
      const uint64_t keys = descriptor(shared + kAtRing + ring.slot * kSlot);
      const uint64_t with = descriptor(queries + block * kQBlock);
#pragma unroll
      for (int k = 0; k < 4; ++k) wgmma<false>(s, keys + 2 * k, with + 2 * k, block + k > 0);
      wgmma_commit();
      ring.next();
    }
    wgmma_wait<0>();
  }

  /// Scores of a half to weights, left in shared memory; sums and totals are scaled to the new
  /// maximum.
  __device__ void weigh(float (&s)[kHalfRegs], int half, int valid, float scale, int parity) {
    const int from = half * kHalfRegs;
    if (valid < kPage) {
      const int row = 16 * warp() + lane() / 4;
#pragma unroll
      for (int i = 0; i < kHalfRegs; ++i)
        if (row + (i & 2) * 4 >= valid) s[i] = kNone;
    }
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      float2 top = {fmaxf(s[4 * j], s[4 * j + 2]), fmaxf(s[4 * j + 1], s[4 * j + 3])};
#pragma unroll
      for (int step = 4; step < 32; step *= 2) {
        top.x = fmaxf(top.x, __shfl_xor_sync(0xFFFFFFFF, top.x, step));
        top.y = fmaxf(top.y, __shfl_xor_sync(0xFFFFFFFF, top.y, step));
      }
      if (lane() < 4)
        store_pair(high(parity, warp()) + 8 * (half * kHalf / 2 + 4 * j + lane()), top);
    }
    group_barrier(2 + group(), 128);
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      const int at = 8 * (half * kHalf / 2 + 4 * j + lane() % 4);
      const float2 old = load_pair(most(parity) + at);
      float2 top = load_pair(high(parity, 0) + at);
#pragma unroll
      for (int w = 1; w < 4; ++w) {
        const float2 other = load_pair(high(parity, w) + at);
        top = {fmaxf(top.x, other.x), fmaxf(top.y, other.y)};
      }
      top = {fmaxf(old.x, top.x * scale), fmaxf(old.y, top.y * scale)};
      const float2 shrink = {fast::exp2((old.x - top.x) * kLog2E),
                             fast::exp2((old.y - top.y) * kLog2E)};
#pragma unroll
      for (int i = 0; i < 4; ++i)
        s[4 * j + i] =
            fast::exp2((fmaf(s[4 * j + i], scale, i % 2 == 0 ? -top.x : -top.y)) * kLog2E);
      float2 sum = {s[4 * j] + s[4 * j + 2], s[4 * j + 1] + s[4 * j + 3]};
#pragma unroll
      for (int step = 4; step < 32; step *= 2) {
        sum.x += __shfl_xor_sync(0xFFFFFFFF, sum.x, step);
        sum.y += __shfl_xor_sync(0xFFFFFFFF, sum.y, step);
      }
      if (lane() < 4) {
        const float2 mine = load_pair(total(warp()) + at);
        store_pair(total(warp()) + at, {mine.x * shrink.x + sum.x, mine.y * shrink.y + sum.y});
        if (warp() == 0) store_pair(most(parity ^ 1) + at, top);
      }
      if (__any_sync(0xFFFFFFFF, shrink.x != 1 || shrink.y != 1)) {
#pragma unroll
        for (int b = 0; b < kLatentBlocks; ++b) {
          sums[b][from + 4 * j] *= shrink.x;
          sums[b][from + 4 * j + 1] *= shrink.y;
          sums[b][from + 4 * j + 2] *= shrink.x;
          sums[b][from + 4 * j + 3] *= shrink.y;
        }
      }
    }
    store_weights(s, half);
  }

  /// Weights as [head][64 positions], bf16.
  __device__ void store_weights(const float (&s)[kHalfRegs], int half) const {
    const int head = lane() % 8, lower = lane() / 8 % 2;
    const uint32_t row =
        weights() + half * kHalf * 128 + head * 128 + (((2 * warp() + lower) ^ head) << 4);
#pragma unroll
    for (int j = 0; j + 1 < kTiles; j += 2) {
      const float* t = s + 4 * j;
      asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                       row + (j + lane() / 16) * 1024),
                   "r"(to_bf16_pair(t[0], t[1])), "r"(to_bf16_pair(t[2], t[3])),
                   "r"(to_bf16_pair(t[4], t[5])), "r"(to_bf16_pair(t[6], t[7]))
                   : "memory");
    }
    if constexpr (kTiles % 2 == 1) {
      const float* t = s + 4 * (kTiles - 1);
      asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(
                       row + (kTiles - 1) * 1024),
                   "r"(to_bf16_pair(t[0], t[1])), "r"(to_bf16_pair(t[2], t[3]))
                   : "memory");
    }
  }

  /// Rows of the last tile that nobody holds: whatever lies there, weight 0 times it must be 0.
  __device__ void clear_rows(int valid, Ring ring) const {
    const int chunks = (kPage - valid) * 8;
    for (int block = 0; block < kLatentBlocks; ++block, ring.next())
      for (int i = threadIdx.x % 128; i < chunks; i += 128)
        asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(
                         shared + kAtRing + ring.slot * kSlot + valid * 128 + i * 16),
                     "r"(0)
                     : "memory");
  }

  /// Gives the ring's slots back, each as soon as both uses of it are over.
  __device__ void weighted(Ring& ring) {
    const uint64_t with = descriptor(weights());
    Ring done = ring;
    const auto give_back = [&] {
      if (lane() == 0) barrier_arrive(empty(shared, done.slot));
      done.next();
    };
#pragma unroll
    for (int b = 0; b < kLatentBlocks; ++b) {
      const uint64_t latent = descriptor(shared + kAtRing + ring.slot * kSlot);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; ++k) wgmma<true>(sums[b], latent + 128 * k, with + 2 * k, true);
      wgmma_commit();
      ring.next();
      if (b > 0) {
        wgmma_wait<1>();
        give_back();
      }
    }
    wgmma_wait<0>();
#pragma unroll
    for (int block = kLatentBlocks - 1; block < kBlocks; ++block) give_back();
    ring = done;
  }

  __device__ void tiles(const Work& work, float scale, Ring& ring) {
    for (int tile = work.first; tile < work.last; ++tile) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        float s[kHalfRegs];
        // Opaque, or the second half would keep the first's addresses in registers there are not.
        asm volatile("" : "+r"(ring.slot), "+r"(ring.parity));
        scores(s, half, ring);
        weigh(s, half, work.held - tile * kPage, scale, (tile - work.first) & 1);
      }
      if (work.held - tile * kPage < kPage) clear_rows(work.held - tile * kPage, ring);
      fence_async();
      group_barrier(2 + group(), 128);
      weighted(ring);
    }
  }

  /// Sums, maxima and totals to shared memory, once both warpgroups are done with it.
  __device__ void leave(int parity) {
    group_barrier(1, kConsumers);
#pragma unroll
    for (int b = 0; b < kLatentBlocks; ++b)
#pragma unroll
      for (int i = 0; i < kRegs; ++i) {
        const int head = group() * kN + i / 4 * 8 + lane() % 4 * 2 + i % 2;
        const int latent = 64 * b + 16 * warp() + lane() / 4 + (i & 2) * 4;
        if (head < kHeads)
          asm volatile("st.shared.f32 [%0], %1;" ::"r"(shared + (head * kPitch + latent) * 4),
                       "f"(sums[b][i])
                       : "memory");
      }
    if (warp() == 0 && lane() < kN / 2) {
      const float2 m = load_pair(most(parity) + 8 * lane());
      float2 l = load_pair(total(0) + 8 * lane());
#pragma unroll
      for (int w = 1; w < 4; ++w) {
        const float2 other = load_pair(total(w) + 8 * lane());
        l = {l.x + other.x, l.y + other.y};
      }
      const uint32_t end = shared + kAtEnd + (group() * kN + 2 * lane()) * 8;
      store_pair(end, {m.x, l.x});
      store_pair(end + 8, {m.y, l.y});
    }
  }
};

/// Queries, ring and barriers ready; the address of the block's shared memory.
__device__ __forceinline__ uint32_t prepare(const void* dynamic) {
  const uint32_t shared = (shared_address(dynamic) + 1023) & ~1023U;
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < kSlots; ++slot) {
      barrier_init(full(shared, slot), 1);
      barrier_init(empty(shared, slot), kConsumers / 32);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  return shared;
}

}  // namespace kern::mla
