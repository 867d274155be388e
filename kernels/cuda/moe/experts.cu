// The routed experts' products: rows of one expert at a time against its MXFP4
// weights.
//
// kern_moe_up:      act[p] = bf(situ(bf(W1 x[row_of[p]]), bf(W3 x[row_of[p]]))), in the column
// order
//   of kern_moe_interleave
//   in bf16 [rows, width] x, interleaved; in i32 [rows, top_k] row_of; in i32 [rows, top_k, 3]
//   tiles; in i32 [1] tile_count; in u8 [experts, inter, width / 2] w1; in u8 [experts, inter,
//   width / 32] s1; in w3, s3 likewise; out bf16 [rows, top_k, inter] act; i32 width, inter; f32
//   beta, linear_beta
// kern_moe_down:    y[p] = bf(W2 act[p])
//   in bf16 act; in tiles, tile_count; in u8 [experts, width, inter / 2] w2; in u8 [experts, width,
//   inter / 32] s2; out bf16 [rows, top_k, width] y; i32 width, inter
//
// Defines: ROWS, picks a tile has at most, and the tile_rows that kern_moe_plan was given:
//   8   few rows an expert (decoding): a warp by itself, x comes through L1
//   80  many: two groups of four warps share x in shared memory, wgmma takes a weight for 80 picks
//
// grid: [any, 1, 1], pieces of a tile's weight rows are dealt over it; 4 blocks a multiprocessor
// (ROWS 8) or 1 (ROWS 80) fill it. block: ROWS 8: [128, 1, 1]; ROWS 80: [256, 1, 1].
// shared: ROWS 8: 1,536; ROWS 80: 221,184. width and inter are multiples of 32.
//
// The weights are the left operand: a warp owns 16 or 32 of their rows, and a lane decodes its own
// 16-byte loads (many: out of its own places in shared memory, four chunks later) into the very
// registers that the product wants. Which of 128 consecutive k a lane's slots mean is ours to
// choose, as long as both operands agree: lane t of four holds k = 32 t … 32 t + 31, one scale
// group, and a product takes eight of each lane's.
//
// Rounding points: as the host module's; W1 x and W3 x to bf16, situ once, W2 act to bf16.
//
// A pick's bits depend on its row and its expert alone: k ascends by 128, within them in one order,
// and a product's column knows nothing of the others. Both variants give the same bits: on sm_90 a
// wgmma adds sixteen products to a sum as an mma does (checked, not promised by the instruction
// set).

#include "common/numeric.cuh"
#include "mma/bf16.cuh"
#include "mma/mxfp4.cuh"
#include "mma/wgmma.cuh"
#include "ptx/async.cuh"
#include "ptx/memory.cuh"
#include "ptx/turn.cuh"

using namespace kern;

static_assert(ROWS == 8 || ROWS == 80, "tiles of 8 or of 80 picks");

namespace {

constexpr bool kIsFew = ROWS == 8;
constexpr int kWarps = kIsFew ? 4 : 8, kThreads = kWarps * 32;
constexpr int kBlocks = kIsFew ? 4 : 1;  // a multiprocessor
constexpr int kChunk = 128;              // k a step
constexpr int kColumns = ROWS / 8;       // groups of eight picks, a product's columns
constexpr int kTiles = kIsFew ? 1 : 2;   // times 16 rows of weights a warp

/// The packed weights that one warp reads: lane (g, t) rows g and g + 8 of each sixteen. Few: both
/// halves have their own start, so that eight rows of W1 and eight of W3 make a sixteen.
struct Weights {
  const uint8_t* packed[2];  // of row g: of each half, or of each sixteen
  const uint8_t* scales[2];
  bool present;
  int in;  // k

  __device__ __forceinline__ const uint8_t* row(int m, int half) const {
    return kIsFew ? packed[half] : packed[m] + half * 4 * in;
  }
  __device__ __forceinline__ const uint8_t* scales_of(int m, int half) const {
    return kIsFew ? scales[half] : scales[m] + half * 8 * (in / 32);
  }

  /// A lane's 32 k of a chunk: 16 bytes of each of its rows.
  struct Stage {
    uint4 packed[kTiles][2];
  };
#if ROWS == 8
  __device__ __forceinline__ void load(Stage& stage, int chunk) const {
    const int group = chunk * 4 + threadIdx.x % 4;
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        stage.packed[m][half] = {0, 0, 0, 0};
        if (group * 32 < in && present)
          stage.packed[m][half] = load_once_ahead(row(m, half) + group * 16);
      }
  }
#endif

  /// Scales of four chunks: lane t holds chunk t's four groups, and lends them.
  struct Scales {
    uint32_t word[kTiles][2];

    /// Of the lane's own group of a chunk.
    __device__ __forceinline__ void of(int chunk, uint32_t (&scale)[kTiles][2]) const {
      const int lane = threadIdx.x % 32;
#pragma unroll
      for (int m = 0; m < kTiles; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          scale[m][half] =
              __shfl_sync(0xFFFFFFFFU, word[m][half], (lane & ~3) | (chunk & 3)) >> (lane & 3) * 8 &
              255;
    }
  };
  __device__ __forceinline__ void load(Scales& to, int chunk) const {
    const int groups = in / 32, group = chunk / 4 * 16 + threadIdx.x % 4 * 4, left = groups - group;
    if (groups % 4 == 0) {  // whole words, used as they come, so that nothing waits for them here
#pragma unroll
      for (int m = 0; m < kTiles; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          to.word[m][half] = 0x7F7F7F7FU;
          if (present && left > 0)
            to.word[m][half] = __ldg(reinterpret_cast<const uint32_t*>(scales_of(m, half) + group));
        }
      return;
    }
    // bytes past the row's end belong to no weight, but must not be a NaN
    const uint32_t own = left >= 4 ? 0xFFFFFFFFU : left > 0 ? (1U << 8 * left) - 1 : 0;
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t word = 0;
        if (present && left > 0) {
          const auto at = reinterpret_cast<uint64_t>(scales_of(m, half) + group);
          const auto* words = reinterpret_cast<const uint32_t*>(at & ~uint64_t{3});
          const int skip = static_cast<int>(at & 3);
          const uint32_t more = skip > 0 && left > 4 - skip ? __ldg(words + 1) : 0;
          word = __funnelshift_r(__ldg(words), more, skip * 8);
        }
        to.word[m][half] = (word & own) | (0x7F7F7F7FU & ~own);
      }
  }
};

using Sums = float[kTiles][kColumns][4];

/// Where the rows of a tile's picks lie: pick p of it is row row_of[first + p]
/// of x, or row first + p without row_of.
struct Picks {
  const bf16* x;
  const int32_t* row_of;
  int first, count;

  /// Sixteens of bytes before the row, in a row of `in` values. (An array of 64
  /// GiB is the limit.)
  __device__ __forceinline__ uint32_t place(int pick, int in) const {
    const int row = row_of == nullptr ? first + pick : __ldg(row_of + first + pick);
    return static_cast<uint32_t>(row) * static_cast<uint32_t>(in / 8);
  }
  __device__ __forceinline__ const uint4* at(uint32_t place) const {
    return reinterpret_cast<const uint4*>(x) + place;
  }
};

#if ROWS == 8

/// One chunk: `x(column, j)` are words j of the lane's 32 k of pick 8 column + g.
template <int kUsed, bool kFar, class X>
__device__ __forceinline__ void multiply_by(const Weights::Stage& stage,
                                            const uint32_t (&scale)[kTiles][2], Sums& sums, X x) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    uint32_t a[kTiles][2][4];
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint4& from = stage.packed[m][half];
        const uint32_t words[4] = {from.x, from.y, from.z, from.w};
        decode_mxfp4<kFar>(words[j], scale[m][half], a[m][half]);
      }
#pragma unroll
    for (int column = 0; column < kUsed; ++column) {
      const uint4 b = x(column, j);
#pragma unroll
      for (int m = 0; m < kTiles; ++m)
        mma_16x8x16(sums[m][column], a[m][0][0], a[m][1][0], a[m][0][1], a[m][1][1], b.x, b.y);
#pragma unroll
      for (int m = 0; m < kTiles; ++m)
        mma_16x8x16(sums[m][column], a[m][0][2], a[m][1][2], a[m][0][3], a[m][1][3], b.z, b.w);
    }
  }
}

/// The same. Scales beyond what one factor holds, which no trained model has, take their own code.
template <int kUsed, class X>
__device__ __forceinline__ void multiply(const Weights::Stage& stage, const Weights::Scales& scales,
                                         int chunk, Sums& sums, X x) {
  uint32_t scale[kTiles][2];
  scales.of(chunk, scale);
  if (!__any_sync(0xFFFFFFFFU, max(scale[0][0], scale[0][1]) > 128))
    return multiply_by<kUsed, false>(stage, scale, sums, x);
  multiply_by<kUsed, true>(stage, scale, sums, x);
}

/// sums = W x^T for the tile's picks. Weights are asked for four chunks ahead,
/// two at a time, so that 128 bytes of a row are read together.
__device__ __forceinline__ void product(const Weights& weights, const Picks& picks, char*,
                                        Sums& sums) {
  constexpr int kAhead = 4;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, in = weights.in;
  const int chunks = (in + kChunk - 1) / kChunk;
  const bool has_pick = g < picks.count;
  const uint32_t mine = (has_pick ? picks.place(g, in) : 0) + t * 4;
  Weights::Stage stage[kAhead];
  Weights::Scales scales, next_scales;
  uint4 next_x[4];
  const auto load_x = [&](int chunk) {
    const bool inside = has_pick && chunk * kChunk + t * 32 < in;
#pragma unroll
    for (int j = 0; j < 4; ++j)
      next_x[j] = inside ? load_shared(picks.at(mine + chunk * 16 + j)) : uint4{0, 0, 0, 0};
  };
  weights.load(next_scales, 0);
#pragma unroll
  for (int s = 0; s < kAhead; ++s) weights.load(stage[s], s);
  load_x(0);
  for (int chunk = 0; chunk < chunks; chunk += kAhead) {
    scales = next_scales;
    weights.load(next_scales, chunk + kAhead);
#pragma unroll
    for (int s = 0; s < kAhead; s += 2) {
      if (chunk + s >= chunks) break;
#pragma unroll
      for (int i = 0; i < 2; ++i) {  // past the end both are zeros
        const uint4 x[4] = {next_x[0], next_x[1], next_x[2], next_x[3]};
        load_x(chunk + s + i + 1);
        multiply<1>(stage[s + i], scales, s + i, sums, [&](int, int j) { return x[j]; });
      }
      weights.load(stage[s], chunk + s + kAhead);
      weights.load(stage[s + 1], chunk + s + 1 + kAhead);
    }
  }
}

#else

constexpr int kStages = 6, kAhead = kStages - 2;  // chunks in shared memory, asked for ahead
constexpr int kXBytes = ROWS * kChunk * 2, kHalfBytes = kXBytes / 2;
constexpr int kSixteenBytes = 32 * 16, kOwnBytes = kTiles * 2 * kSixteenBytes;  // a warp's weights
constexpr int kWeightBytes = kWarps * kOwnBytes;

template <int kUsed>
__device__ __forceinline__ void multiply(float (&sums)[kColumns][4], const uint32_t (&low)[4],
                                         const uint32_t (&high)[4], int pair, uint64_t x) {
  if constexpr (kUsed == 10)
    wgmma_80(sums, low[pair], high[pair], low[pair + 1], high[pair + 1], x);
  else if constexpr (kUsed == 9)
    wgmma_72(sums, low[pair], high[pair], low[pair + 1], high[pair + 1], x);
  else if constexpr (kUsed == 8)
    wgmma_64(sums, low[pair], high[pair], low[pair + 1], high[pair + 1], x);
  else
    wgmma_32(sums, low[pair], high[pair], low[pair + 1], high[pair + 1], x);
}

/// sums = W x^T for at most 8 kUsed picks. `shared` holds kStages chunks of x, then of weights. A
/// chunk of x is two halves of 64 slots of k in wgmma's 128-byte swizzle; the product of a word's
/// pairs 2 i and 2 i + 1 takes sixteen slots, so four bytes of x lie where the lane with their
/// weights has its slots, which is why they are copied by fours. Weights lie as lanes read them,
/// and each lane copies its own. Columns of absent picks hold what lay there and are not looked at.
template <int kUsed>
__device__ __forceinline__ void product_of(const Weights& weights, const Picks& picks, char* shared,
                                           Sums& sums) {
  const int in = weights.in, chunks = (in + kChunk - 1) / kChunk;
  // Sixteen threads copy a pick's 256 bytes, thread (t, j) k = 32 t + 8 j ….
  constexpr int kAtOnce = kThreads / 16, kCopies = (kUsed * 8 + kAtOnce - 1) / kAtOnce;
  const int t = threadIdx.x % 4, j = threadIdx.x / 4 % 4, first_pick = threadIdx.x / 16;
  const uint32_t x_at = shared_address(shared);
  const uint32_t to = x_at + j / 2 * kHalfBytes + first_pick / 8 * 1024 + first_pick % 8 * 128 +
                      (((j & 1) * 4) ^ (first_pick & 7)) * 16 + t * 4;
  const uint32_t own =
      x_at + kStages * kXBytes + threadIdx.x / 32 * kOwnBytes + threadIdx.x % 32 * 16;
  uint32_t from[kCopies];  // in sixteens of bytes
#pragma unroll
  for (int i = 0; i < kCopies; ++i) {
    const int pick = i * kAtOnce + first_pick;
    from[i] = picks.place(pick < picks.count ? pick : 0, in) + t * 4 + j;
  }
  const auto copy = [&](int chunk) {
    if (chunk < chunks) {
      const int stage = chunk % kStages;
      const bool inside = chunk * kChunk + t * 32 < in;
#pragma unroll
      for (int m = 0; m < kTiles; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          copy16_ahead(own + stage * kWeightBytes + (m * 2 + half) * kSixteenBytes,
                       weights.row(m, half) + (chunk * 4 + t) * 16, inside && weights.present);
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        if (i * kAtOnce + first_pick >= picks.count) break;
        const auto* source = reinterpret_cast<const char*>(picks.at(from[i] + chunk * 16));
        const uint32_t place = to + stage * kXBytes + i * (kAtOnce / 8 * 1024);
#pragma unroll
        for (int word = 0; word < 4; ++word) copy4(place ^ word << 4, source + word * 4, inside);
      }
    }
    copies_commit();
  };
  Weights::Scales scales, next_scales;
#pragma unroll
  for (int s = 0; s < kAhead; ++s) copy(s);
  weights.load(next_scales, 0);
  for (int chunk = 0; chunk < chunks; ++chunk) {
    if (chunk % 4 == 0) {
      scales = next_scales;
      weights.load(next_scales, chunk + 4);
    }
    uint32_t scale[kTiles][2];
    scales.of(chunk, scale);
    copies_wait<kAhead - 1>();
    fence_async();
    __syncthreads();  // this chunk is here, and everyone is done with the one before the last
    copy(chunk + kAhead);
    Weights::Stage stage;
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        stage.packed[m][half] =
            read_shared_16(own + chunk % kStages * kWeightBytes + (m * 2 + half) * kSixteenBytes);
    const uint64_t x = descriptor(x_at + chunk % kStages * kXBytes);
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      uint32_t a[kTiles][2][4];
#pragma unroll
      for (int m = 0; m < kTiles; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint4& packed = stage.packed[m][half];
          const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
          decode_mxfp4<true>(words[word], scale[m][half], a[m][half]);
        }
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int m = 0; m < kTiles; ++m)
          multiply<kUsed>(sums[m], a[m][0], a[m][1], 2 * i,
                          x + (word / 2 * kHalfBytes + (2 * word + i) % 4 * 32) / 16);
      wgmma_commit();
      wgmma_wait<1>();  // what the next word's weights replace has been taken
    }
  }
  wgmma_wait<0>();
  copies_wait<0>();
  __syncthreads();
}

__device__ __forceinline__ void product(const Weights& weights, const Picks& picks, char* shared,
                                        Sums& sums) {
  if (picks.count > 72)
    product_of<10>(weights, picks, shared, sums);
  else if (picks.count > 64)
    product_of<9>(weights, picks, shared, sums);
  else if (picks.count > 32)
    product_of<8>(weights, picks, shared, sums);
  else
    product_of<4>(weights, picks, shared, sums);
}

#endif

/// A tile: one expert's picks, at most ROWS.
struct Tile {
  int expert, first, count;
  __device__ __forceinline__ Tile(const int32_t* tiles, int index)
      : expert(tiles[3 * index]), first(tiles[3 * index + 1]), count(tiles[3 * index + 2]) {}
};

/// How a launch deals its pieces: to warps where they share nothing (few), else to blocks, whose
/// warps take neighbouring rows of weights.
struct Deal {
  int first, step, warp_in_piece;
  __device__ __forceinline__ Deal() {
    const int warp = threadIdx.x / 32;
    first = kIsFew ? blockIdx.x + gridDim.x * warp : blockIdx.x;
    step = kIsFew ? gridDim.x * kWarps : gridDim.x;
    warp_in_piece = kIsFew ? 0 : warp;
  }
  static constexpr int kWarpsAPiece = kIsFew ? 1 : kWarps;
};

/// A warp's results of kWidth columns a pick, turned in shared memory so that
/// 16 bytes of a pick's row are written at once.
template <int kWidth, class Value>
__device__ __forceinline__ void write(char* shared, int count, bf16* to, int64_t stride,
                                      Value value) {
  constexpr int kStride = kWidth + 8;
  const int lane = threadIdx.x % 32, t = lane % 4;
  bf16* mine = reinterpret_cast<bf16*>(shared) + threadIdx.x / 32 * ROWS * kStride;
#pragma unroll
  for (int column = 0; column < kColumns; ++column)
#pragma unroll
    for (int c = 0; c < 4; ++c) value(column, c, mine + (column * 8 + t * 2 + c % 2) * kStride);
  __syncwarp();
  for (int i = lane; i < count * (kWidth / 8); i += 32) {
    const int pick = i / (kWidth / 8), part = i % (kWidth / 8) * 8;
    store(to + pick * stride + part, *reinterpret_cast<uint4*>(mine + pick * kStride + part));
  }
  __syncwarp();
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, kBlocks)
    kern_moe_up(const bf16* x, const int32_t* row_of, const int32_t* tiles,
                const int32_t* tile_count, const uint8_t* w1, const uint8_t* s1, const uint8_t* w3,
                const uint8_t* s3, bf16* act, int width, int inter, float beta, float linear_beta) {
  take_turn();
  extern __shared__ __align__(kIsFew ? 128 : 1024) char shared[];
  constexpr int kOwn = kIsFew ? 8 : 16,
                kPiece = Deal::kWarpsAPiece * kOwn;  // rows of W1, and of W3
  const Deal deal;
  const int g = threadIdx.x % 32 / 4;
  const int pieces = (inter + kPiece - 1) / kPiece, items = *tile_count * pieces;
  const float per_beta = __fdiv_rn(1.0F, beta), per_linear_beta = __fdiv_rn(1.0F, linear_beta);
  const int place = g < 4 ? 2 * g : 2 * g - 7;  // of column g of eight, interleaved
  for (int item = deal.first; item < items; item += deal.step) {
    const Tile tile(tiles, item / pieces);
    const int m = item % pieces * kPiece + deal.warp_in_piece * kOwn;
    const int64_t row = int64_t{tile.expert} * inter + m + g;
    const Weights weights = {{w1 + row * (width / 2), w3 + row * (width / 2)},
                             {s1 + row * (width / 32), s3 + row * (width / 32)},
                             m < inter,
                             width};
    Sums sums = {};
    product(weights, {x, row_of, tile.first, tile.count}, shared, sums);
    const auto activated = [&](float gate, float up) {
      return to_bf16(fast::situ(through_bf16(gate), through_bf16(up), per_beta, per_linear_beta,
                                beta * linear_beta));
    };
    if (weights.present)
      write<kOwn>(shared, tile.count, act + int64_t{tile.first} * inter + m, inter,
                  [&](int column, int c, bf16* to) {
                    if constexpr (!kIsFew)
                      to[c / 2 * 8 + place] = activated(sums[0][column][c], sums[1][column][c]);
                    else if (c < 2)
                      to[place] = activated(sums[0][column][c], sums[0][column][c + 2]);
                  });
    if (!kIsFew) __syncthreads();
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, kBlocks)
    kern_moe_down(const bf16* act, const int32_t* tiles, const int32_t* tile_count,
                  const uint8_t* w2, const uint8_t* s2, bf16* y, int width, int inter) {
  take_turn();
  extern __shared__ __align__(kIsFew ? 128 : 1024) char shared[];
  constexpr int kOwn = kTiles * 16, kPiece = Deal::kWarpsAPiece * kOwn;
  constexpr int kSecond =
      kIsFew ? 8 : 16;  // rows from the first of a half, or sixteen, to the next
  const Deal deal;
  const int g = threadIdx.x % 32 / 4;
  const int pieces = (width + kPiece - 1) / kPiece, items = *tile_count * pieces;
  for (int item = deal.first; item < items; item += deal.step) {
    const Tile tile(tiles, item / pieces);
    const int m = item % pieces * kPiece + deal.warp_in_piece * kOwn;
    const int64_t row = int64_t{tile.expert} * width + m + g;
    const Weights weights = {{w2 + row * (inter / 2), w2 + (row + kSecond) * (inter / 2)},
                             {s2 + row * (inter / 32), s2 + (row + kSecond) * (inter / 32)},
                             m < width,
                             inter};
    Sums sums = {};
    product(weights, {act, nullptr, tile.first, tile.count}, shared, sums);
    if (weights.present)
      write<kOwn>(shared, tile.count, y + int64_t{tile.first} * width + m, width,
                  [&](int column, int c, bf16* to) {
#pragma unroll
                    for (int t = 0; t < kTiles; ++t)
                      to[t * 16 + c / 2 * 8 + g] = to_bf16(sums[t][column][c]);
                  });
    if (!kIsFew) __syncthreads();
  }
}
