// Attention residuals: a softmax mix over BANK rows of the bank and the running stream, then the
// RMS norm that always follows it.
//
//   sources V_0 … V_{BANK-1} (bank), V_BANK (stream)
//   s_j = (mean(V_j^2) + eps)^-1/2 * sum_d V_j[d] * (score_norm[d] * score_proj[d])         f32
//   p = softmax_j(s)                                                                        f32
//   a = bf(sum_j p_j V_j), j ascending;  out = bf(w * bf(a * (mean(a^2) + eps)^-1/2))
//
// kern_mix_rms:       one output row a stream row
//   in bf16 [rows, width] stream; in bf16 [width] score_norm, score_proj, w; out bf16 [rows,
//   width]; f32 eps; i32 width, rows, n; then BANK times in bf16 [rows, width] bank
// kern_mix_rms_last:  only the last row of each sequence, packed
//   in bf16 [rows, width] stream; in bf16 [width] score_norm, score_proj, w; in i32 cu_seqlens;
//   out bf16 [seqs, width]; f32 eps; i32 width, seqs, n; then BANK times in bf16 [rows, width] bank
//
// Defines: BANK, 1 … 8. n is the same number, passed because the host module takes it.
// grid: [any, 1, 1], the rows are dealt over it; as many blocks as fit at once keep it busy,
// because a block copies its next row to shared memory while it works. block: [ceil(width / 16 /
// 32) * 32, 1, 1] or more, at most 448. shared: (BANK + 1) * block * 32. width is a multiple of 8,
// at most 7,168. Rounding points: the product score_norm * score_proj stays f32; the mix rounds
// once, before its norm. The scale multiplies the sum, where the host module's multiplies every
// term. A row depends on its own row and the block size alone.

#include "common/numeric.cuh"
#include "common/reduce.cuh"
#include "ptx/async.cuh"
#include "ptx/memory.cuh"
#include "ptx/turn.cuh"

using namespace kern;

static_assert(BANK >= 1 && BANK <= 8, "a mix reads one to eight rows of the bank");

#define PARAMS_1 const bf16* bank0
#define PARAMS_2 PARAMS_1, const bf16* bank1
#define PARAMS_3 PARAMS_2, const bf16* bank2
#define PARAMS_4 PARAMS_3, const bf16* bank3
#define PARAMS_5 PARAMS_4, const bf16* bank4
#define PARAMS_6 PARAMS_5, const bf16* bank5
#define PARAMS_7 PARAMS_6, const bf16* bank6
#define PARAMS_8 PARAMS_7, const bf16* bank7
#define NAMES_1 bank0
#define NAMES_2 NAMES_1, bank1
#define NAMES_3 NAMES_2, bank2
#define NAMES_4 NAMES_3, bank3
#define NAMES_5 NAMES_4, bank4
#define NAMES_6 NAMES_5, bank5
#define NAMES_7 NAMES_6, bank6
#define NAMES_8 NAMES_7, bank7
#define JOIN(a, b) a##b
#define BANK_PARAMS(n) JOIN(PARAMS_, n)
#define BANK_NAMES(n) JOIN(NAMES_, n)

namespace {

constexpr int kSources = BANK + 1;
constexpr int kVectors = 2;  // of 8 elements, a thread and source

struct Shared {
  float partial[32 * 32];  // [warp][sum]
  float shares[kSources];
  float square[32];
};

/// Thread `threadIdx.x` holds columns element(v) … element(v) + 7; past the row's end it has none.
__device__ __forceinline__ int element(int v) {
  return (v * blockDim.x + threadIdx.x) * 8;
}

struct Mix {
  const bf16* sources[kSources];
  const bf16 *score_norm, *score_proj, *weight;
  float eps;
  int width;
  char* staged;  // [source][vector][thread] of 16 bytes: a thread reads what it asked for itself

  __device__ __forceinline__ char* place(int source, int v) const {
    return staged + ((source * kVectors + v) * blockDim.x + threadIdx.x) * 16;
  }

  /// Waits for the launches ahead; the weights of a row, by a block that has one, come near first.
  __device__ __forceinline__ void begin(int rows) const {
    let_next_start();
    if (blockIdx.x < rows)
      for (int at = threadIdx.x * 64; at < width; at += blockDim.x * 64) {  // 128 bytes
        prefetch_l2(score_norm + at);
        prefetch_l2(score_proj + at);
        prefetch_l2(weight + at);
      }
    wait_for_earlier();
  }

  /// Asks for a row. One call at a time is on its way.
  __device__ __forceinline__ void request(int64_t row) const {
#pragma unroll
    for (int j = 0; j < kSources; ++j)
#pragma unroll
      for (int v = 0; v < kVectors; ++v)
        if (element(v) < width)
          copy16(shared_address(place(j, v)), sources[j] + row * width + element(v), true);
    copies_commit();
  }

  /// What each source contributes, out of the warps' partial sums. By one warp.
  __device__ __forceinline__ void weigh(const float* partial, float* shares) const {
    const int lane = threadIdx.x, warps = blockDim.x / 32;
    float square = 0, dot = 0;
    for (int w = 0; w < warps; ++w) {
      square += lane < kSources ? partial[w * 32 + lane] : 0.0F;
      dot += lane < kSources ? partial[w * 32 + kSources + lane] : 0.0F;
    }
    const float score = inverse_rms(square, width, eps) * dot;
    float most = __uint_as_float(0xFF800000U), total = 0;
#pragma unroll
    for (int j = 0; j < kSources; ++j) {
      const float other = __shfl_sync(0xFFFFFFFFU, score, j);
      most = other > most ? other : most;
    }
    const float p = twin::exp_f32(score - most);
#pragma unroll
    for (int j = 0; j < kSources; ++j) total += __shfl_sync(0xFFFFFFFFU, p, j);
    if (lane < kSources) shares[lane] = __fdiv_rn(p, total);
  }

  /// Row `from`, which was requested; asks for row `next` unless it is negative.
  __device__ __forceinline__ void row(int64_t next, bf16* out, Shared& shared) const {
    uint4 held[kSources][kVectors];
    copies_wait<0>();
#pragma unroll
    for (int j = 0; j < kSources; ++j)
#pragma unroll
      for (int v = 0; v < kVectors; ++v)
        if (element(v) < width) held[j][v] = *reinterpret_cast<const uint4*>(place(j, v));
    if (next >= 0) request(next);

    float sum[2 * kSources] = {};  // of squares, then of products with the query
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (element(v) >= width) break;
      float query[8], proj[8];
      unpack8(load_shared(score_norm + element(v)), query);
      unpack8(load_shared(score_proj + element(v)), proj);
#pragma unroll
      for (int i = 0; i < 8; ++i) query[i] *= proj[i];
#pragma unroll
      for (int j = 0; j < kSources; ++j) {
        float value[8];
        unpack8(held[j][v], value);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          sum[j] = fmaf(value[i], value[i], sum[j]);
          sum[kSources + j] = fmaf(value[i], query[i], sum[kSources + j]);
        }
      }
    }
    warp_sums_to(sum, shared.partial + threadIdx.x / 32 * 32);
    __syncthreads();
    if (threadIdx.x < 32) weigh(shared.partial, shared.shares);
    __syncthreads();

    uint4 mixed[kVectors];
    float square[1] = {0};
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (element(v) >= width) break;
      float value[8] = {};
#pragma unroll
      for (int j = 0; j < kSources; ++j) {
        const float share = shared.shares[j];
        float source[8];
        unpack8(held[j][v], source);
#pragma unroll
        for (int i = 0; i < 8; ++i) value[i] = fmaf(share, source[i], value[i]);
      }
      mixed[v] = pack8(value);
      unpack8(mixed[v], value);
#pragma unroll
      for (int i = 0; i < 8; ++i) square[0] = fmaf(value[i], value[i], square[0]);
    }
    block_sum(square, shared.square);
    const float scale = inverse_rms(square[0], width, eps);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (element(v) >= width) break;
      float value[8], w[8];
      unpack8(mixed[v], value);
      unpack8(load_shared(weight + element(v)), w);
#pragma unroll
      for (int i = 0; i < 8; ++i) value[i] = w[i] * through_bf16(value[i] * scale);
      store(out + element(v), pack8(value));
    }
  }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(448, 1)
    kern_mix_rms(const bf16* stream, const bf16* score_norm, const bf16* score_proj,
                 const bf16* weight, bf16* out, float eps, int width, int rows, int,
                 BANK_PARAMS(BANK)) {
  extern __shared__ __align__(16) char staged[];
  __shared__ Shared shared;
  const Mix mix = {{BANK_NAMES(BANK), stream}, score_norm, score_proj, weight, eps, width, staged};
  mix.begin(rows);
  if (blockIdx.x < rows) mix.request(blockIdx.x);
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const int64_t next = row + gridDim.x;
    mix.row(next < rows ? next : -1, out + row * width, shared);
  }
}

extern "C" __global__ void __launch_bounds__(448, 1)
    kern_mix_rms_last(const bf16* stream, const bf16* score_norm, const bf16* score_proj,
                      const bf16* weight, const int32_t* cu_seqlens, bf16* out, float eps,
                      int width, int seqs, int, BANK_PARAMS(BANK)) {
  extern __shared__ __align__(16) char staged[];
  __shared__ Shared shared;
  const Mix mix = {{BANK_NAMES(BANK), stream}, score_norm, score_proj, weight, eps, width, staged};
  mix.begin(seqs);
  for (int64_t seq = blockIdx.x; seq < seqs; seq += gridDim.x) {
    mix.request(cu_seqlens[seq + 1] - 1);
    mix.row(-1, out + seq * width, shared);
  }
}
