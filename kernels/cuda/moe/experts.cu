// The routed experts' products: rows of one expert at a time against its MXFP4 weights.
//
// kern_moe_up:      act[p] = bf(situ(bf(W1 x[row_of[p]]), bf(W3 x[row_of[p]]))), in the column
// order
//   of kern_moe_interleave
//   in bf16 [rows, width] x, interleaved; in i32 [rows, top_k] row_of; in i32 [experts + 1] first;
//   in i32 [rows, top_k, 2] tiles; in i32 [1] tile_count; in u8 [experts, inter, width / 2] w1; in
//   u8 [experts, inter, width / 32] s1; in w3, s3 likewise; out bf16 [rows, top_k, inter] act; i32
//   width, inter; f32 beta, linear_beta
// kern_moe_down:    y[p] = bf(W2 act[p])
//   in bf16 act; in first, tiles, tile_count; in u8 [experts, width, inter / 2] w2; in u8 [experts,
//   width, inter / 32] s2; out bf16 [rows, top_k, width] y; i32 width, inter
//
// Defines: ROWS, picks a tile has at most, and the tile_rows that kern_moe_plan was given:
//   8   few rows an expert (decoding): x comes through L1, weights stream through registers
//   64  many: x is staged in shared memory, a weight is decoded once for up to 64 picks
// grid: [any, 1, 1], pieces of 64 (up) or 128 (down) weight rows of a tile are dealt over it; three
// blocks a multiprocessor fill it (up with ROWS 8: four). block: [128, 1, 1].
// shared: ROWS 8: 2,560; ROWS 64: 65,536. width and inter are multiples of 32.
//
// The weights are the left operand: a warp owns 32 of their rows, decodes them out of its own
// 16-byte loads into the very registers that the product wants, and no weight passes through shared
// memory. Which of 128 consecutive k a lane's slots mean is ours to choose, as long as both
// operands agree: lane t of four holds k = 32 t … 32 t + 31, one scale group, and a product takes
// eight of each lane's.
//
// Rounding points: as the host module's; W1 x and W3 x to bf16, situ once, W2 act to bf16.
//
// A pick's bits depend on its row and its expert alone: k ascends by 128, within them in one order,
// and a product's column knows nothing of the others. Both variants give the same bits.

#include "common/numeric.cuh"
#include "mma/bf16.cuh"
#include "mma/mxfp4.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/memory.cuh"

using namespace kern;

static_assert(ROWS == 8 || ROWS == 64, "tiles of 8 or of 64 picks");

namespace {

constexpr int kWarps = 4, kThreads = kWarps * 32;
constexpr int kChunk = 128;         // k a step
constexpr int kColumns = ROWS / 8;  // groups of eight picks, a product's columns
constexpr int kUpBlocks = ROWS == 8 ? 4 : 3, kDownBlocks = 3;  // a multiprocessor

/// Two times 16 rows of packed weights, as one warp reads them: lane (g, t) rows g and g + 8.
struct Weights {
  const uint8_t* packed[2];  // of row g of each sixteen
  const uint8_t* scales[2];
  bool present[2];
  int in;  // k

  struct Stage {
    uint4 packed[2][2];
    uint32_t scale[2][2];
  };
  __device__ __forceinline__ void load(Stage& stage, int chunk) const {
    const int group = chunk * 4 + threadIdx.x % 4;
    const bool inside = group * 32 < in;
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        stage.packed[m][half] = {0, 0, 0, 0};
        stage.scale[m][half] = 127;
        if (inside && present[m]) {
          stage.packed[m][half] = load_once(packed[m] + half * 4 * in + group * 16);
          stage.scale[m][half] = __ldg(scales[m] + half * 8 * (in / 32) + group);
        }
      }
  }
};

using Sums = float[2][kColumns][4];

/// One chunk: `x(column, j)` are words j of the lane's 32 k of pick 8 column + g.
template <class X>
__device__ __forceinline__ void multiply(const Weights::Stage& stage, int columns, Sums& sums,
                                         X x) {
  bool is_far = false;
#pragma unroll
  for (int m = 0; m < 2; ++m) is_far |= max(stage.scale[m][0], stage.scale[m][1]) > 128;
  is_far = __any_sync(0xFFFFFFFFU, is_far);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    uint32_t a[2][2][4];
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint4& from = stage.packed[m][half];
        const uint32_t words[4] = {from.x, from.y, from.z, from.w};
        decode_mxfp4(words[j], stage.scale[m][half], is_far, a[m][half]);
      }
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
      if (column >= columns) break;
      const uint4 b = x(column, j);
#pragma unroll
      for (int m = 0; m < 2; ++m)
        mma_16x8x16(sums[m][column], a[m][0][0], a[m][1][0], a[m][0][1], a[m][1][1], b.x, b.y);
#pragma unroll
      for (int m = 0; m < 2; ++m)
        mma_16x8x16(sums[m][column], a[m][0][2], a[m][1][2], a[m][0][3], a[m][1][3], b.z, b.w);
    }
  }
}

/// Where the rows of a tile's picks lie: pick p of it is row_of[p] of x, or row p without row_of.
struct Picks {
  const bf16* x;
  const int32_t* row_of;
  int count;

  __device__ __forceinline__ int64_t row(int pick) const {
    return row_of == nullptr ? pick : __ldg(row_of + pick);
  }
};

#if ROWS == 8

/// sums = W x^T for the tile's picks.
__device__ __forceinline__ void product(const Weights& weights, const Picks& picks, char*,
                                        Sums& sums) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, in = weights.in;
  const int chunks = (in + kChunk - 1) / kChunk;
  const bool has_pick = g < picks.count;
  const bf16* mine = picks.x + (has_pick ? picks.row(g) * in : 0) + t * 32;
  Weights::Stage stage[2];
  uint4 x[2][4];
  const auto load = [&](int s, int chunk) {
    weights.load(stage[s], chunk);
    const bool inside = has_pick && chunk * kChunk + t * 32 < in;
#pragma unroll
    for (int j = 0; j < 4; ++j)
      x[s][j] = inside ? load_shared(mine + chunk * kChunk + j * 8) : uint4{0, 0, 0, 0};
  };
  load(0, 0);
  load(1, 1);
  for (int chunk = 0; chunk < chunks; chunk += 2)
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      if (chunk + s >= chunks) break;
      multiply(stage[s], 1, sums, [&](int, int j) { return x[s][j]; });
      load(s, chunk + s + 2);
    }
}

#else

constexpr int kStages = 4, kStageBytes = ROWS * kChunk * 2;

/// sums = W x^T for the tile's picks; `shared` holds kStages chunks of x in the order in which
/// lanes read them.
__device__ __forceinline__ void product(const Weights& weights, const Picks& picks, char* shared,
                                        Sums& sums) {
  const int lane = threadIdx.x % 32, in = weights.in;
  const int chunks = (in + kChunk - 1) / kChunk, columns = (picks.count + 7) / 8;
  const uint32_t stages = shared_address(shared);
  // Sixteen threads copy a pick's 256 bytes, thread (t, j) k = 32 t + 8 j …; the bit of j that is
  // folded into the place keeps both the writes and the reads clear of bank conflicts.
  const int t = threadIdx.x % 4, j = threadIdx.x / 4 % 4, first_pick = threadIdx.x / 16;
  const auto copy = [&](int chunk) {
    if (chunk < chunks) {
      const int k = chunk * kChunk + t * 32 + j * 8;
      const uint32_t to = stages + chunk % kStages * kStageBytes +
                          (j * 32 + ((first_pick * 4 + t) ^ ((j & 1) << 2))) * 16;
#pragma unroll
      for (int column = 0; column < kColumns; ++column) {
        const int pick = column * 8 + first_pick;
        if (pick < picks.count)
          copy_16_async(to + column * 2048, picks.x + picks.row(pick) * in + k, k < in);
      }
    }
    commit_copies();
  };
  Weights::Stage stage[2];
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) copy(s);
  weights.load(stage[0], 0);
  for (int chunk = 0; chunk < chunks; chunk += 2)
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      if (chunk + s >= chunks) break;
      weights.load(stage[1 - s], chunk + s + 1);
      wait_copies<kStages - 2>();
      __syncthreads();  // this chunk is here, and everyone is done with the one before
      copy(chunk + s + kStages - 1);
      const uint32_t from = stages + (chunk + s) % kStages * kStageBytes;
      multiply(stage[s], columns, sums, [&](int column, int word) {
        return read_shared_16(from + (column * 128 + word * 32 + (lane ^ ((word & 1) << 2))) * 16);
      });
    }
  wait_copies<0>();
  __syncthreads();
}

#endif

/// A warp's results of kWidth columns a pick, turned in shared memory so that 16 bytes of a pick's
/// row are written at once.
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

extern "C" __global__ void __launch_bounds__(kThreads, kUpBlocks)
    kern_moe_up(const bf16* x, const int32_t* row_of, const int32_t* first, const int32_t* tiles,
                const int32_t* tile_count, const uint8_t* w1, const uint8_t* s1, const uint8_t* w3,
                const uint8_t* s3, bf16* act, int width, int inter, float beta, float linear_beta) {
  extern __shared__ __align__(128) char shared[];
  constexpr int kPiece = kWarps * 16;
  const int g = threadIdx.x % 32 / 4;
  const int pieces = (inter + kPiece - 1) / kPiece, items = *tile_count * pieces;
  const float per_beta = __fdiv_rn(1.0F, beta), per_linear_beta = __fdiv_rn(1.0F, linear_beta);
  for (int item = blockIdx.x; item < items; item += gridDim.x) {
    const int tile = item / pieces, m = (item % pieces) * kPiece + threadIdx.x / 32 * 16;
    const int expert = tiles[2 * tile], from = tiles[2 * tile + 1];
    const int left = first[expert + 1] - from, count = left < ROWS ? left : ROWS;
    const bool present = m < inter;
    const int64_t row = int64_t{expert} * inter + m + g;
    const Weights weights = {{w1 + row * (width / 2), w3 + row * (width / 2)},
                             {s1 + row * (width / 32), s3 + row * (width / 32)},
                             {present, present},
                             width};
    Sums sums = {};
    product(weights, {x, row_of + from, count}, shared, sums);
    const int place = g < 4 ? 2 * g : 2 * g - 7;  // of column g of eight, interleaved
    if (present)
      write<16>(
          shared, count, act + int64_t{from} * inter + m, inter, [&](int column, int c, bf16* to) {
            to[c / 2 * 8 + place] = to_bf16(fast::situ(through_bf16(sums[0][column][c]),
                                                       through_bf16(sums[1][column][c]), per_beta,
                                                       per_linear_beta, beta * linear_beta));
          });
    if (ROWS > 8) __syncthreads();
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, kDownBlocks)
    kern_moe_down(const bf16* act, const int32_t* first, const int32_t* tiles,
                  const int32_t* tile_count, const uint8_t* w2, const uint8_t* s2, bf16* y,
                  int width, int inter) {
  extern __shared__ __align__(128) char shared[];
  constexpr int kPiece = kWarps * 32;
  const int g = threadIdx.x % 32 / 4;
  const int pieces = (width + kPiece - 1) / kPiece, items = *tile_count * pieces;
  for (int item = blockIdx.x; item < items; item += gridDim.x) {
    const int tile = item / pieces, m = (item % pieces) * kPiece + threadIdx.x / 32 * 32;
    const int expert = tiles[2 * tile], from = tiles[2 * tile + 1];
    const int left = first[expert + 1] - from, count = left < ROWS ? left : ROWS;
    const int64_t row = int64_t{expert} * width + m + g;
    const Weights weights = {{w2 + row * (inter / 2), w2 + (row + 16) * (inter / 2)},
                             {s2 + row * (inter / 32), s2 + (row + 16) * (inter / 32)},
                             {m < width, m + 16 < width},
                             inter};
    Sums sums = {};
    product(weights, {act + int64_t{from} * inter, nullptr, count}, shared, sums);
    if (m < width)
      write<32>(shared, count, y + int64_t{from} * width + m, width,
                [&](int column, int c, bf16* to) {
                  to[c / 2 * 8 + g] = to_bf16(sums[0][column][c]);
                  to[c / 2 * 8 + g + 16] = to_bf16(sums[1][column][c]);
                });
    if (ROWS > 8) __syncthreads();
  }
}
