// The next token of each sequence, with its log probability and the likeliest alternatives.
//
// kern_sample, per sequence:
//   temperature 0: the largest logit, the lower index among equals. Otherwise over logits /
//   temperature: keep the top_k largest (0: all), of those the shortest prefix whose share of the
//   kept mass reaches top_p, of those the ones of at least min_p times the largest probability;
//   draw one with u = bits(seed, draw) / 2^53, the candidates largest first (lower index among
//   equals). logprob = log softmax of the raw logits at the token; top_* the `top` largest logits
//   likewise.
//
//   in f32 [seqs, vocab] logits; in f32 [seqs] temperature; in f32 [seqs] top_p; in i32 [seqs]
//   top_k; in f32 [seqs] min_p; in i64 [seqs] seed; in i32 [seqs] draw; out i32 [seqs] token; out
//   f32 [seqs] logprob; out i32 [seqs, top] top_tokens; out f32 [seqs, top] top_logprobs; out i32
//   [seqs, vocab] order (not used: a row stays in shared memory); i32 vocab, top, seqs
//
// grid: [8, seqs, 1]. cluster: [8, 1, 1]. block: [512, 1, 1]. shared: ceil(vocab / 32) * 16: a
// cluster holds a row. vocab is at most 400,000, top at most 128.
//
// Candidates come largest first in batches of at most 1,024: a histogram of distances from the
// largest logit, refined by the bits of the logits, finds where a batch ends; then it is sorted.
// Nearly every draw ends in the first.
//
// Rounding points: probabilities and their sums are f64, from f32 logits; sums run in another order
// than the host module's, so a draw within about 1e-13 of a boundary may fall on its other side.
// A row with a NaN or +infinity gives token -1, logprobs 0 and top_tokens -1.
// The result depends on the row and its own settings: equal seed and draw, equal token.

#include "common/numeric.cuh"
#include "ptx/cluster.cuh"
#include "ptx/turn.cuh"

using namespace kern;

namespace {

constexpr int kBlocks = 8, kThreads = 512, kWarps = kThreads / 32;
constexpr int kBatchMax = 1024;    // candidates sorted at once
constexpr int kBatchEnough = 128;  // a batch need not be larger
constexpr int kBins = 256;
constexpr float kBinsANat = 8;  // of the first histogram
constexpr uint32_t kAll = 0xFFFFFFFFU;
constexpr float kInfinity = 3.402823466e38F;

/// What the blocks of a cluster read of each other, one a block.
struct Exchange {
  uint64_t largest;           // key of the block's largest logit
  double total, scaled;       // sums of weights: of the raw softmax, of the admitted at temperature
  uint32_t admitted, broken;  // how many are admitted; whether the row is broken
  uint32_t bins[2][kBins];
  uint64_t batch[kBatchMax];
  uint32_t batch_count;
  uint32_t command;  // block 0's: what all do next
};

/// Larger for a larger logit, then for a lower token; 0 is no key.
__device__ __forceinline__ uint64_t key_of(float logit, int token) {
  const uint32_t bits = __float_as_uint(__fadd_rn(logit, 0.0F));
  const uint32_t ordered = bits ^ ((bits >> 31) != 0 ? 0xFFFFFFFFU : 0x80000000U);
  return uint64_t{ordered} << 32 | static_cast<uint32_t>(~token);
}
__device__ __forceinline__ int token_of(uint64_t key) {
  return static_cast<int>(~static_cast<uint32_t>(key));
}
__device__ __forceinline__ float logit_of(uint64_t key) {
  const auto ordered = static_cast<uint32_t>(key >> 32);
  return __uint_as_float(ordered ^ ((ordered >> 31) != 0 ? 0x80000000U : 0xFFFFFFFFU));
}
__device__ __forceinline__ int bin_of(float logit, float largest) {
  const float distance = (largest - logit) * kBinsANat;
  return distance < kBins - 1 ? static_cast<int>(distance) : kBins - 1;
}

/// 53 bits out of (seed, draw), in [0, 1).
__device__ __forceinline__ uint64_t stir(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}
__device__ __forceinline__ double uniform(uint64_t seed, uint32_t draw) {
  const uint64_t bits =
      stir(stir(seed + 0x9E3779B97F4A7C15ULL) + (draw + 1ULL) * 0xD1342543DE82EF95ULL);
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

__device__ __forceinline__ double warp_sum(double value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    value += __shfl_xor_sync(kAll, value, distance);
  return value;
}

/// The block's sum, in lanes and then warps, for every thread. Two barriers.
__device__ __forceinline__ double block_sum(double value) {
  __shared__ double part[kWarps];
  value = warp_sum(value);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = value;
  __syncthreads();
  double sum = 0;
  for (int w = 0; w < kWarps; ++w) sum += part[w];
  __syncthreads();
  return sum;
}

/// One row, held by a cluster.
struct Row {
  const float* slice;  // this block's logits, in shared memory
  Exchange& mine;
  int first, count;  // its tokens
  float largest;

  template <class F>
  __device__ __forceinline__ void each(F f) const {
    for (int i = threadIdx.x; i < count; i += kThreads) f(slice[i], first + i);
  }

  /// Leaves the largest candidates below `bound` in every block's `sorted`, best first; how many.
  /// Every thread of the cluster calls it; it ends with a barrier of the cluster.
  __device__ __forceinline__ int batch_below(uint64_t bound, uint64_t* sorted) const;
};

/// Where a histogram's first bins, in order, stop fitting into `room`: how many bins fit, and how
/// many candidates they hold. Bins are summed over the cluster. Ends with a barrier of the block.
struct Fit {
  int bins, held;
};
__device__ __forceinline__ Fit fit(const uint32_t* bins, int room) {
  __shared__ int shared_bins, shared_held;
  __shared__ int whole[kBins];
  if (threadIdx.x < kBins) {
    int sum = 0;
    for (int b = 0; b < kBlocks; ++b)
      sum += static_cast<int>(read_u32(in_block(&bins[threadIdx.x], b)));
    whole[threadIdx.x] = sum;
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    int held = 0, at = 0;
    for (; at < kBins; at += 32) {
      int run = whole[at + threadIdx.x];
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        const int from = __shfl_up_sync(kAll, run, distance);
        if (static_cast<int>(threadIdx.x) >= distance) run += from;
      }
      const uint32_t fits = __ballot_sync(kAll, held + run <= room);
      const int fitting = __popc(fits);
      const int last = __shfl_sync(kAll, run, fitting > 0 ? fitting - 1 : 0);
      held += fitting > 0 ? last : 0;
      if (fitting < 32) {
        at += fitting;
        break;
      }
    }
    if (threadIdx.x == 0) shared_bins = at, shared_held = held;
  }
  __syncthreads();
  const Fit found = {shared_bins, shared_held};
  __syncthreads();
  return found;
}

__device__ __forceinline__ int Row::batch_below(uint64_t bound, uint64_t* sorted) const {
  const auto is_left = [&](float logit, int token) { return key_of(logit, token) < bound; };
  int turn = 0;
  const auto histogram = [&](auto bin) {
    uint32_t* bins = mine.bins[turn];
    turn ^= 1;
    if (threadIdx.x < kBins) bins[threadIdx.x] = 0;
    __syncthreads();
    each([&](float logit, int token) {
      if (!is_left(logit, token)) return;
      if (const int at = bin(logit, token); at >= 0) atomicAdd(&bins[at], 1U);
    });
    cluster_sync();
    return bins;
  };

  // ---- the lowest key of the batch ----
  if (threadIdx.x == 0) mine.batch_count = 0;
  Fit found = fit(histogram([&](float logit, int) { return bin_of(logit, largest); }), kBatchMax);
  const int edge = found.bins;  // bins before it are in the batch whole, of it those of a key
  uint64_t lowest = ~0ULL, prefix = 0;
  int held = found.held;
  if (edge < kBins && held < kBatchEnough)
    for (int shift = 56; shift >= 0; shift -= 8) {
      const auto inside = [&](float logit, int token) {
        if (bin_of(logit, largest) != edge) return -1;
        const uint64_t key = key_of(logit, token);
        if (shift < 56 && key >> (shift + 8) != prefix) return -1;
        return kBins - 1 - static_cast<int>(key >> shift & (kBins - 1));
      };
      found = fit(histogram(inside), kBatchMax - held);
      held += found.held;
      if (found.bins == kBins) {
        lowest = shift < 56 ? prefix << (shift + 8) : 0;
        break;
      }
      prefix = (shift < 56 ? prefix << 8 : 0) | static_cast<uint64_t>(kBins - 1 - found.bins);
      lowest = (prefix + 1) << shift;
      if (held >= kBatchEnough) break;
    }

  // ---- gathered, and sorted in every block alike ----
  each([&](float logit, int token) {
    const uint64_t key = key_of(logit, token);
    const int bin = bin_of(logit, largest);
    if (key < bound && (bin < edge || (bin == edge && key >= lowest)))
      mine.batch[atomicAdd(&mine.batch_count, 1U)] = key;
  });
  cluster_sync();
  int count = 0;
  for (int b = 0; b < kBlocks; ++b) {
    const int more = static_cast<int>(read_u32(in_block(&mine.batch_count, b)));
    for (int i = threadIdx.x; i < more; i += kThreads)
      sorted[count + i] = read_u64(in_block(&mine.batch[i], b));
    count += more;
  }
  cluster_sync();
  int size = 2;
  while (size < count) size *= 2;
  for (int i = count + threadIdx.x; i < size; i += kThreads) sorted[i] = 0;
  __syncthreads();
  for (int span = 2; span <= size; span *= 2)
    for (int distance = span / 2; distance > 0; distance /= 2) {
      for (int i = threadIdx.x; i < size / 2; i += kThreads) {
        const int low = i / distance * distance * 2 + i % distance, high = low + distance;
        const uint64_t a = sorted[low], b = sorted[high];
        if (((low & span) == 0) != (a > b)) sorted[low] = b, sorted[high] = a;
      }
      __syncthreads();
    }
  return count;
}

struct Settings {
  double temperature, top_p, min_p;
  int64_t limit;  // how many top_k keeps
  double drawn;   // in [0, 1)
};

/// The kept candidates, or the draw among them, found batch by batch.
struct Search {
  double weights[kBatchMax];  // running sums, inclusive
  double before;              // weight of earlier batches
  int64_t passed;             // candidates of earlier batches
  int stop;                   // first place of the batch where the search ends
};

/// Running sums of the batch's weights: two a thread, lanes, warps.
__device__ __forceinline__ void sum_weights(Search& search, const uint64_t* sorted, int count,
                                            float largest, double temperature) {
  __shared__ double part[kWarps];
  const int at = 2 * threadIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto weight = [&](int i) {
    if (i >= count) return 0.0;
    return exp((static_cast<double>(logit_of(sorted[i])) - largest) / temperature);
  };
  const double one = weight(at), both = one + weight(at + 1);
  double run = both;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const double from = __shfl_up_sync(kAll, run, distance);
    if (lane >= distance) run += from;
  }
  if (lane == 31) part[warp] = run;
  __syncthreads();
  double earlier = search.before;
  for (int w = 0; w < warp; ++w) earlier += part[w];
  search.weights[at] = earlier + (run - both) + one;
  search.weights[at + 1] = earlier + run;
  __syncthreads();
}

}  // namespace

extern "C" __global__ void __cluster_dims__(kBlocks, 1, 1) __launch_bounds__(kThreads, 1)
    kern_sample(const float* logits, const float* temperature, const float* top_p,
                const int32_t* top_k, const float* min_p, const int64_t* seed, const int32_t* draw,
                int32_t* token, float* logprob, int32_t* top_tokens, float* top_logprobs, int32_t*,
                int vocab, int top, int) {
  take_turn();
  extern __shared__ float slice[];
  __shared__ Exchange mine;
  __shared__ uint64_t sorted[kBatchMax];
  __shared__ Search search;
  __shared__ uint64_t part_key[kWarps];
  const int s = blockIdx.y;
  const int block = static_cast<int>(cluster_rank());
  const int a_block = (vocab + 31) / 32 * 4;
  const int first = min(block * a_block, vocab), count = min(vocab - first, a_block);
  const float* from = logits + int64_t{s} * vocab + first;

  // ---- the row, its largest logit, whether it is sound ----
  uint64_t most = 0;
  bool is_broken = false;
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const float logit = from[i];
    slice[i] = logit;
    is_broken |= !(logit <= kInfinity);
    const uint64_t key = key_of(logit, first + i);
    most = key > most ? key : most;
  }
  is_broken = __syncthreads_or(is_broken) != 0;
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const uint64_t other = __shfl_xor_sync(kAll, most, distance);
    most = other > most ? other : most;
  }
  if (threadIdx.x % 32 == 0) part_key[threadIdx.x / 32] = most;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 0; w < kWarps; ++w) most = part_key[w] > most ? part_key[w] : most;
    mine.largest = most;
    mine.broken = is_broken ? 1 : 0;
  }
  cluster_sync();
  most = 0;
  is_broken = false;
  for (int b = 0; b < kBlocks; ++b) {
    const uint64_t other = read_u64(in_block(&mine.largest, b));
    most = other > most ? other : most;
    is_broken |= read_u32(in_block(&mine.broken, b)) != 0;
  }
  const float largest = logit_of(most);
  if (is_broken || largest < -kInfinity) {
    if (block == 0) {
      if (threadIdx.x == 0) token[s] = -1, logprob[s] = 0;
      for (int i = threadIdx.x; i < top; i += kThreads)
        top_tokens[int64_t{s} * top + i] = -1, top_logprobs[int64_t{s} * top + i] = 0;
    }
    cluster_sync();
    return;
  }

  // ---- sums over the whole row ----
  const double heat = temperature[s];
  const bool is_drawn = heat > 0;
  const double least = min_p[s];
  double total = 0, scaled = 0;
  int admitted = 0;
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const double below = static_cast<double>(slice[i]) - largest;
    total += exp(below);
    if (!is_drawn) continue;
    const double weight = exp(below / heat);
    if (weight > 0 && !(weight < least)) scaled += weight, ++admitted;
  }
  total = block_sum(total);
  scaled = block_sum(scaled);
  admitted = static_cast<int>(block_sum(static_cast<double>(admitted)));
  if (threadIdx.x == 0) mine.total = total, mine.scaled = scaled, mine.admitted = admitted;
  cluster_sync();
  total = scaled = 0;
  admitted = 0;
  for (int b = 0; b < kBlocks; ++b) {
    total += __longlong_as_double(read_u64(in_block(&mine.total, b)));
    scaled += __longlong_as_double(read_u64(in_block(&mine.scaled, b)));
    admitted += static_cast<int>(read_u32(in_block(&mine.admitted, b)));
  }
  const double log_total = log(total);
  const auto logprob_of = [&](uint64_t key) {
    return static_cast<float>((static_cast<double>(logit_of(key)) - largest) - log_total);
  };

  // ---- the likeliest ----
  const Row row = {slice, mine, first, count, largest};
  int held = row.batch_below(~0ULL, sorted);
  if (block == 0)
    for (int i = threadIdx.x; i < top; i += kThreads) {
      top_tokens[int64_t{s} * top + i] = token_of(sorted[i]);
      top_logprobs[int64_t{s} * top + i] = logprob_of(sorted[i]);
    }
  if (!is_drawn) {
    if (block == 0 && threadIdx.x == 0) token[s] = token_of(most), logprob[s] = logprob_of(most);
    cluster_sync();
    return;
  }

  // ---- the draw: the mass that top_k keeps, what of it is kept, then which of those ----
  // Every block searches the same candidates, so none waits for another's decision.
  const int64_t limit = top_k[s] > 0 ? min(int64_t{top_k[s]}, int64_t{vocab}) : vocab;
  const double share = top_p[s];
  enum : int { kMass, kKeep, kDraw };
  double mass = limit == vocab && admitted > 0 ? scaled : 1;
  double kept_mass = mass;
  int64_t kept = admitted > 0 ? admitted : 1;
  int stage = limit < vocab ? kMass : kKeep;
  if (stage == kKeep && share >= 1) stage = kDraw;
  if (stage == kKeep && least > 0) {  // top_p is a share of everything, not of what min_p leaves
    double everything = 0;
    for (int i = threadIdx.x; i < count; i += kThreads)
      everything += exp((static_cast<double>(slice[i]) - largest) / heat);
    everything = block_sum(everything);
    if (threadIdx.x == 0) mine.scaled = everything;
    cluster_sync();
    mass = 0;
    for (int b = 0; b < kBlocks; ++b)
      mass += __longlong_as_double(read_u64(in_block(&mine.scaled, b)));
    cluster_sync();
  }
  const double drawn = uniform(static_cast<uint64_t>(seed[s]), static_cast<uint32_t>(draw[s]));
  bool is_first = true;
  if (threadIdx.x == 0) search.before = 0, search.passed = 0;
  __syncthreads();
  for (;;) {
    sum_weights(search, sorted, held, largest, heat);
    if (threadIdx.x == 0) search.stop = kBatchMax;
    __syncthreads();
    for (int i = threadIdx.x; i < held; i += kThreads) {
      const int64_t at = search.passed + i;
      const double until = i > 0 ? search.weights[i - 1] : search.before;
      bool is_end = false;
      if (stage == kMass) {
        is_end = at == limit - 1;
      } else if (stage == kKeep) {
        const double weight = exp((static_cast<double>(logit_of(sorted[i])) - largest) / heat);
        is_end = at > 0 && (at >= limit || weight < least || weight == 0 || until >= share * mass);
      } else {
        is_end = search.weights[i] > drawn * kept_mass || at >= kept - 1;
      }
      if (is_end) atomicMin(&search.stop, i);
    }
    __syncthreads();
    const int stop = search.stop;
    const int64_t passed = search.passed;
    const bool is_found = stop < kBatchMax, is_last = passed + held >= vocab;
    const double until = stop > 0 ? search.weights[(is_found ? stop : held) - 1] : search.before;
    const double here = is_found ? search.weights[stop] : 0;
    __syncthreads();
    if (is_found || is_last) {
      if (stage == kMass) {
        mass = here;
        stage = kKeep;
      } else if (stage == kKeep) {
        kept = passed + (is_found ? stop : held);
        kept_mass = until;
        stage = kDraw;
      } else {
        const int at = is_found ? stop : held - 1;
        if (block == 0 && threadIdx.x == 0)
          token[s] = token_of(sorted[at]), logprob[s] = logprob_of(sorted[at]);
        break;
      }
      if (threadIdx.x == 0) search.before = 0, search.passed = 0;
      if (!is_first) held = row.batch_below(~0ULL, sorted);
      is_first = true;
    } else {
      if (threadIdx.x == 0) search.before = until, search.passed = passed + held;
      held = row.batch_below(sorted[held - 1], sorted);
      is_first = false;
    }
    __syncthreads();
  }
  cluster_sync();
}
