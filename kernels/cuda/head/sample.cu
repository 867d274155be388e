// The next token of each sequence, with its log probability and the likeliest alternatives.
//
// kern_sample, per sequence:
//   temperature 0: the largest logit, the lower index among equals. Otherwise a candidate weighs
//   e^((logit - largest) * (1 / temperature)), as a whole number of 2^-44: keep the top_k largest
//   (0: all), of those the shortest prefix whose share of the kept mass reaches top_p, of those the
//   ones of at least min_p times the largest probability; draw one with u = bits(seed, draw) /
//   2^53, the candidates largest first (lower index among equals). logprob = log softmax of the raw
//   logits at the token; top_* the `top` largest logits likewise.
//
//   in f32 [seqs, vocab] logits; in f32 [seqs] temperature; in f32 [seqs] top_p; in i32 [seqs]
//   top_k; in f32 [seqs] min_p; in i64 [seqs] seed; in i32 [seqs] draw; out i32 [seqs] token; out
//   f32 [seqs] logprob; out i32 [seqs, top] top_tokens; out f32 [seqs, top] top_logprobs; out i32
//   [seqs, vocab] order (not used: a row stays in shared memory); i32 vocab, top, seqs
//
// grid: [8, seqs, 1]. cluster: [8, 1, 1]. block: [512, 1, 1]. shared: ceil(vocab / 32) * 16: a
// cluster holds a row. vocab is at most 400,000, top at most 128.
//
// top_k, top_p and the draw ask the same: which candidate, largest first, is the one whose running
// count or mass reaches a goal? A histogram of counts and masses over 256 equal steps of the logits
// says in which step it lies; while more than 512 candidates lie there, 256 steps of their keys
// divide it further. A key has 51 bits, so at most seven of those; nearly always one or none. The
// candidates of the last step are sorted.
//
// Rounding points: weights are f64, then whole numbers, whose sums no order changes: a row's result
// is the same on any device whose exp agrees to the unit. The raw softmax's sum is f64.
// A row with a NaN or +infinity gives token -1, logprobs 0 and top_tokens -1.
// The result depends on the row and its own settings: equal seed and draw, equal token.

#include "common/numeric.cuh"
#include "ptx/cluster.cuh"
#include "ptx/memory.cuh"
#include "ptx/turn.cuh"

using namespace kern;

namespace {

constexpr int kBlocks = 8, kThreads = 512, kWarps = kThreads / 32;
constexpr int kBatchMax = kThreads;  // candidates sorted at once, one a thread
constexpr int kFirst = 128;          // that are sorted in any case: top is no more
constexpr int kBins = 256;
constexpr int kTokenBits = 19;
constexpr uint64_t kTokenMask = (1U << kTokenBits) - 1;
constexpr double kUnits = 0x1p44;  // of the largest weight
constexpr uint32_t kAll = 0xFFFFFFFFU;
constexpr float kInfinity = 3.402823466e38F;

/// One block's histogram: 16 bits of a mass a word, so that 50,004 candidates fill none.
struct Bins {
  uint32_t count[kBins], mass[3][kBins];
};
/// The cluster's.
struct Histogram {
  uint32_t count[kBins];
  uint64_t mass[kBins];
};

/// What the blocks of a cluster read of each other, one a block.
struct Exchange {
  uint64_t largest, smallest;  // keys: of the block's logits, then of those in a step
  double total;                // of the raw softmax
  uint64_t admitted;           // mass that min_p lets in
  uint32_t broken;
  uint32_t batch_count;
  Bins bins[2];
  uint64_t batch[kBatchMax];
};

/// Larger for a larger logit, then for a lower token.
__device__ __forceinline__ uint64_t key_of(float logit, int token) {
  const uint32_t bits = __float_as_uint(__fadd_rn(logit, 0.0F));
  const uint32_t ordered = bits ^ ((bits >> 31) != 0 ? 0xFFFFFFFFU : 0x80000000U);
  return uint64_t{ordered} << kTokenBits | (kTokenMask - static_cast<uint32_t>(token));
}
__device__ __forceinline__ int token_of(uint64_t key) {
  return static_cast<int>(kTokenMask - (key & kTokenMask));
}
__device__ __forceinline__ float logit_of(uint64_t key) {
  const auto ordered = static_cast<uint32_t>(key >> kTokenBits);
  return __uint_as_float(ordered ^ ((ordered >> 31) != 0 ? 0x80000000U : 0xFFFFFFFFU));
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

/// All threads' values as one, in lanes and then warps, for every thread. Two barriers.
template <class T, class Join>
__device__ __forceinline__ T over_block(T value, Join join) {
  __shared__ T part[kWarps];
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    value = join(value, __shfl_xor_sync(kAll, value, distance));
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = value;
  __syncthreads();
  T all = part[0];
#pragma unroll 1
  for (int w = 1; w < kWarps; ++w) all = join(all, part[w]);
  __syncthreads();
  return all;
}
__device__ __forceinline__ uint64_t larger(uint64_t a, uint64_t b) {
  return a > b ? a : b;
}
__device__ __forceinline__ uint64_t smaller(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}

/// Adds each lane's candidate (bin below 0: none) to the histogram; a whole warp calls it. Bins
/// that many lanes share are summed first, or the lanes would wait for each other.
__device__ __forceinline__ void add(Bins& bins, int bin, uint64_t mass) {
  const uint32_t part[3] = {static_cast<uint32_t>(mass & 0xFFFF),
                            static_cast<uint32_t>(mass >> 16 & 0xFFFF),
                            static_cast<uint32_t>(mass >> 32)};
#pragma unroll
  for (int turn = 0; turn < 2; ++turn) {
    const uint32_t waiting = __ballot_sync(kAll, bin >= 0);
    if (waiting == 0) return;
    const int lead = __ffs(waiting) - 1, hot = __shfl_sync(kAll, bin, lead);
    const uint32_t alike = __ballot_sync(kAll, bin == hot);
    if (__popc(alike) < 4) break;
    if (bin == hot) {
      const uint32_t sum[3] = {__reduce_add_sync(alike, part[0]), __reduce_add_sync(alike, part[1]),
                               __reduce_add_sync(alike, part[2])};
      if (static_cast<int>(threadIdx.x % 32) == lead) {
        atomicAdd(&bins.count[hot], static_cast<uint32_t>(__popc(alike)));
#pragma unroll
        for (int i = 0; i < 3; ++i)
          if (sum[i] != 0) atomicAdd(&bins.mass[i][hot], sum[i]);
      }
      bin = -1;
    }
    __syncwarp();
  }
  if (bin < 0) return;
  atomicAdd(&bins.count[bin], 1U);
#pragma unroll
  for (int i = 0; i < 3; ++i)
    if (part[i] != 0) atomicAdd(&bins.mass[i][bin], part[i]);
}

/// The candidate to be found: the first, largest first, at which the count, or mass, is `least`.
struct Goal {
  bool is_mass;
  uint64_t least;
};

/// Where a goal lies: among the candidates of step `step` with keys from low to high, behind those
/// that `before` counts and `mass_before` weighs.
struct Place {
  int step;
  uint32_t before, here;
  uint64_t mass_before, high, low;
};

struct Found {
  uint64_t key, mass;  // running, with the candidate
};

/// One row, held by a cluster; every block decides alike.
struct Row {
  const float* slice;  // this block's logits, in shared memory
  Exchange& mine;
  Histogram &steps, &level;
  uint64_t *sorted, *running;  // the batch, and its running masses
  int first, count;            // its tokens
  float largest, per_step;
  double per_heat;  // 1 / temperature
  int held, turn;   // candidates in `sorted`; which bins are free
  bool has_first;   // `sorted` holds the largest candidates
  uint32_t batch_before;
  uint64_t batch_mass_before;

  __device__ __forceinline__ uint64_t mass_of(float logit) const {
    return __double2ull_rn(exp(__dmul_rn(static_cast<double>(logit) - largest, per_heat)) * kUnits);
  }
  /// Which of the equal steps: 0 has the largest logit, the last has -infinity.
  __device__ __forceinline__ int step_of(float logit) const {
    const float distance = (largest - logit) * per_step;
    return distance < kBins - 1 ? static_cast<int>(distance) : kBins - 1;
  }
  /// Over all tokens of the block, whole warps together; beyond them `is_there` is false.
  template <class F>
  __device__ __forceinline__ void each(F f) const {
#pragma unroll 1
    for (int base = 0; base < count; base += kThreads) {
      const int i = base + threadIdx.x;
      const bool is_there = i < count;
      f(is_there, is_there ? slice[i] : 0.0F, first + i);
    }
  }

  /// Free bins, all 0. A barrier of the block.
  __device__ __forceinline__ Bins& clear_bins() {
    Bins& bins = mine.bins[turn];
    turn ^= 1;
    auto* words = reinterpret_cast<uint32_t*>(&bins);
    for (int i = threadIdx.x; i < static_cast<int>(sizeof(Bins) / 4); i += kThreads) words[i] = 0;
    __syncthreads();
    return bins;
  }
  /// The cluster's sum of its blocks' bins. A barrier of the cluster, and one of the block.
  __device__ __forceinline__ void gather_bins(const Bins& bins, Histogram& to) const {
    cluster_sync();
    if (threadIdx.x < kBins) {
      uint32_t candidates = 0;
      uint64_t mass = 0;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        candidates += read_u32(in_block(&bins.count[threadIdx.x], b));
#pragma unroll
        for (int i = 0; i < 3; ++i)
          mass += uint64_t{read_u32(in_block(&bins.mass[i][threadIdx.x], b))} << (16 * i);
      }
      to.count[threadIdx.x] = candidates, to.mass[threadIdx.x] = mass;
    }
    __syncthreads();
  }

  __device__ __forceinline__ int bin_with(const Histogram& bins, const Goal& goal,
                                          Place& place) const;
  __device__ __forceinline__ Place narrow(const Goal& goal, bool from_first);
  __device__ __forceinline__ void sort(const Place& place, bool from_first);
  __device__ __forceinline__ Found find(const Goal& goal, bool from_first);
};

/// The bin that reaches the goal, from which on `place` counts. Two barriers of the block.
__device__ __forceinline__ int Row::bin_with(const Histogram& bins, const Goal& goal,
                                             Place& place) const {
  constexpr int kEach = kBins / 32;
  __shared__ int shared_bin;
  __shared__ uint32_t shared_before, shared_here;
  __shared__ uint64_t shared_mass_before;
  if (threadIdx.x < 32) {
    const int lane = threadIdx.x, begin = lane * kEach;
    uint64_t candidates = 0, mass = 0;  // up to and with the lane's bins
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      candidates += bins.count[begin + i], mass += bins.mass[begin + i];
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const uint64_t more = __shfl_up_sync(kAll, candidates, distance),
                     more_mass = __shfl_up_sync(kAll, mass, distance);
      if (lane >= distance) candidates += more, mass += more_mass;
    }
    candidates += place.before, mass += place.mass_before;
    const uint32_t reach = __ballot_sync(kAll, (goal.is_mass ? mass : candidates) >= goal.least);
    if (lane == (reach != 0 ? __ffs(reach) - 1 : 31)) {
      int bin = begin + kEach - 1;  // back from the lane's last
      for (;; --bin) {
        candidates -= bins.count[bin], mass -= bins.mass[bin];
        if (bin == begin || (goal.is_mass ? mass : candidates) < goal.least) break;
      }
      shared_bin = bin, shared_here = bins.count[bin];
      shared_before = static_cast<uint32_t>(candidates), shared_mass_before = mass;
    }
  }
  __syncthreads();
  place.before = shared_before, place.here = shared_here, place.mass_before = shared_mass_before;
  const int bin = shared_bin;
  __syncthreads();
  return bin;
}

/// Divides until at most kBatchMax candidates are left, with `from_first` those before them too.
__device__ __forceinline__ Place Row::narrow(const Goal& goal, bool from_first) {
  Place place = {0, 0, 0, 0, ~0ULL, 0};
  place.step = bin_with(steps, goal, place);
  const auto fits = [&] { return place.here + (from_first ? place.before : 0) <= kBatchMax; };
  if (fits()) return place;
  uint64_t most = 0, least = ~0ULL;
  each([&](bool is_there, float logit, int token) {
    if (!is_there || step_of(logit) != place.step) return;
    const uint64_t key = key_of(logit, token);
    most = larger(most, key), least = smaller(least, key);
  });
  most = over_block(most, larger), least = over_block(least, smaller);
  if (threadIdx.x == 0) mine.largest = most, mine.smallest = least;
  cluster_sync();
  for (int b = 0; b < kBlocks; ++b) {
    most = larger(most, read_u64(in_block(&mine.largest, b)));
    least = smaller(least, read_u64(in_block(&mine.smallest, b)));
  }
  place.high = most, place.low = least;
  for (;;) {
    const int bits = 64 - __clzll(static_cast<long long>(place.high - place.low));
    const int shift = bits > 8 ? bits - 8 : 0;
    Bins& bins = clear_bins();
    each([&](bool is_there, float logit, int token) {
      const uint64_t key = key_of(logit, token);
      const bool is_in =
          is_there && step_of(logit) == place.step && key <= place.high && key >= place.low;
      if (__any_sync(kAll, is_in))
        add(bins, is_in ? static_cast<int>((place.high - key) >> shift) : -1,
            is_in ? mass_of(logit) : 0);
    });
    gather_bins(bins, level);
    const int bin = bin_with(level, goal, place);
    place.high -= static_cast<uint64_t>(bin) << shift;
    const uint64_t reach = (uint64_t{1} << shift) - 1;
    if (place.high - place.low > reach) place.low = place.high - reach;
    if (shift == 0 || fits()) return place;
  }
}

/// Leaves the candidates of a place in `sorted`, largest first. Barriers of the cluster.
__device__ __forceinline__ void Row::sort(const Place& place, bool from_first) {
  __shared__ uint64_t part[kWarps];
  if (threadIdx.x == 0) mine.batch_count = 0;
  __syncthreads();
  each([&](bool is_there, float logit, int token) {
    const int step = step_of(logit);
    const uint64_t key = key_of(logit, token);
    if (is_there &&
        ((step == place.step && key >= place.low && (from_first || key <= place.high)) ||
         (from_first && step < place.step)))
      mine.batch[atomicAdd(&mine.batch_count, 1U)] = key;
  });
  cluster_sync();
  held = 0;
  for (int b = 0; b < kBlocks; ++b) {
    const int more = static_cast<int>(read_u32(in_block(&mine.batch_count, b)));
    for (int i = threadIdx.x; i < more; i += kThreads)
      sorted[held + i] = read_u64(in_block(&mine.batch[i], b));
    held += more;
  }
  cluster_sync();
  int size = 2;
  while (size < held) size *= 2;
  for (int i = held + threadIdx.x; i < size; i += kThreads) sorted[i] = 0;
  __syncthreads();
#pragma unroll 1
  for (int span = 2; span <= size; span *= 2)
#pragma unroll 1
    for (int distance = span / 2; distance > 0; distance /= 2) {
      if (const int i = threadIdx.x; i < size / 2) {
        const int within = i & (distance - 1), low = 2 * i - within, high = low + distance;
        const uint64_t a = sorted[low], b = sorted[high];
        if (((low & span) == 0) != (a > b)) sorted[low] = b, sorted[high] = a;
      }
      __syncthreads();
    }

  // ---- running masses: lanes, then warps ----
  const int at = threadIdx.x, lane = at % 32;
  uint64_t run = at < held ? mass_of(logit_of(sorted[at])) : 0;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const uint64_t from = __shfl_up_sync(kAll, run, distance);
    if (lane >= distance) run += from;
  }
  if (lane == 31) part[at / 32] = run;
  __syncthreads();
  for (int w = 0; w < at / 32; ++w) run += part[w];
  batch_before = from_first ? 0 : place.before;
  batch_mass_before = from_first ? 0 : place.mass_before;
  has_first = from_first;
  running[at] = run + batch_mass_before;
  __syncthreads();
}

/// The candidate that reaches the goal, which some candidate does; with `from_first` it leaves all
/// before it in `sorted` too.
__device__ __forceinline__ Found Row::find(const Goal& goal, bool from_first) {
  __shared__ Found shared;
  const auto reached = [&](int i) {
    return (goal.is_mass ? running[i] : batch_before + i + 1) >= goal.least;
  };
  if (from_first || !has_first || !reached(held - 1)) sort(narrow(goal, from_first), from_first);
  const int at = threadIdx.x;
  if (at < held && (reached(at) || at == held - 1) && (at == 0 || !reached(at - 1)))
    shared = {sorted[at], running[at]};
  __syncthreads();
  const Found found = shared;
  __syncthreads();
  return found;
}

}  // namespace

extern "C" __global__ void __cluster_dims__(kBlocks, 1, 1) __launch_bounds__(kThreads, 2)
    kern_sample(const float* logits, const float* temperature, const float* top_p,
                const int32_t* top_k, const float* min_p, const int64_t* seed, const int32_t* draw,
                int32_t* token, float* logprob, int32_t* top_tokens, float* top_logprobs, int32_t*,
                int vocab, int top, int) {
  take_turn();
  extern __shared__ __align__(16) float slice[];
  __shared__ Exchange mine;
  __shared__ Histogram steps, level;
  __shared__ uint64_t sorted[kBatchMax], running[kBatchMax];
  const int s = blockIdx.y;
  const int block = static_cast<int>(cluster_rank());
  const int a_block = (vocab + 31) / 32 * 4;
  const int first = min(block * a_block, vocab), count = min(vocab - first, a_block);
  const float* from = logits + int64_t{s} * vocab + first;

  // ---- the row, its largest and smallest logits, whether it is sound ----
  float most_own = -INFINITY, least_own = INFINITY;
  bool is_broken = false;
  const auto take = [&](float logit) {
    is_broken |= !(logit <= kInfinity);
    most_own = fmaxf(most_own, logit);
    if (logit >= -kInfinity) least_own = fminf(least_own, logit);
  };
  if (vocab % 4 == 0) {
#pragma unroll 4
    for (int i = threadIdx.x * 4; i < count; i += kThreads * 4) {
      const uint4 four = load_once(from + i);
      *reinterpret_cast<uint4*>(slice + i) = four;
      take(__uint_as_float(four.x)), take(__uint_as_float(four.y));
      take(__uint_as_float(four.z)), take(__uint_as_float(four.w));
    }
  } else {
    for (int i = threadIdx.x; i < count; i += kThreads) {
      const float logit = from[i];
      slice[i] = logit;
      take(logit);
    }
  }
  is_broken = __syncthreads_or(is_broken) != 0;
  uint64_t most = over_block(key_of(most_own, 0), larger),
           least = over_block(key_of(least_own, 0), smaller);
  if (threadIdx.x == 0) mine.largest = most, mine.smallest = least, mine.broken = is_broken ? 1 : 0;
  cluster_sync();
  for (int b = 0; b < kBlocks; ++b) {
    most = larger(most, read_u64(in_block(&mine.largest, b)));
    least = smaller(least, read_u64(in_block(&mine.smallest, b)));
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

  // ---- sums over the whole row, and the histogram of its steps ----
  const double heat = temperature[s];
  const bool is_drawn = heat > 0;
  const double least_weight = min_p[s];
  Row row = {slice, mine, steps, level, sorted, running, first, count, largest};
  row.per_step = (kBins - 1) / (largest - logit_of(least));
  row.per_heat = is_drawn ? 1 / heat : 1;
  row.turn = 0;
  double total = 0;
  uint64_t admitted = 0;
  Bins& bins = row.clear_bins();
  row.each([&](bool is_there, float logit, int) {
    uint64_t mass = 0;
    if (is_there) {
      const double raw = exp(static_cast<double>(logit) - largest);
      total += raw;
      if (is_drawn) {
        double weight = raw;
        if (heat != 1) weight = exp(__dmul_rn(static_cast<double>(logit) - largest, row.per_heat));
        mass = __double2ull_rn(weight * kUnits);
        if (!(weight < least_weight)) admitted += mass;
      }
    }
    add(bins, is_there ? row.step_of(logit) : -1, mass);
  });
  total = over_block(total, [](double a, double b) { return a + b; });
  admitted = over_block(admitted, [](uint64_t a, uint64_t b) { return a + b; });
  if (threadIdx.x == 0) mine.total = total, mine.admitted = admitted;
  row.gather_bins(bins, steps);
  total = 0, admitted = 0;
  for (int b = 0; b < kBlocks; ++b) {
    total += __longlong_as_double(read_u64(in_block(&mine.total, b)));
    admitted += read_u64(in_block(&mine.admitted, b));
  }
  const double log_total = log(total);
  const auto logprob_of = [&](uint64_t key) {
    return static_cast<float>((static_cast<double>(logit_of(key)) - largest) - log_total);
  };

  // ---- the likeliest; then what top_k keeps, what of it min_p and top_p keep, and the draw ----
  // One loop, so that the search stands once in the code: instructions out of L2 cost more.
  enum : int { kLikeliest, kLimit, kKeep, kDraw };
  uint64_t whole = 0, kept = 0, chosen = 0;
  const int limit = is_drawn ? top_k[s] : 0;
#pragma unroll 1
  for (int stage = kLikeliest; stage <= (is_drawn ? kDraw : kLikeliest); ++stage) {
    Goal goal = {stage >= kKeep, static_cast<uint64_t>(min(vocab, kFirst))};
    if (stage == kLimit) {
      if (limit <= 0 || limit >= vocab) {
#pragma unroll 4
        for (int i = 0; i < kBins; ++i) whole += steps.mass[i];
        continue;
      }
      goal.least = static_cast<uint64_t>(limit);
    } else if (stage == kKeep) {
      kept = smaller(whole, larger(admitted, static_cast<uint64_t>(kUnits)));
      const double needed = __dmul_rn(static_cast<double>(top_p[s]), static_cast<double>(whole));
      if (!(needed < static_cast<double>(whole))) continue;
      goal.least = needed > 1 ? static_cast<uint64_t>(ceil(needed)) : 1;
      if (goal.least >= kept) continue;
    } else if (stage == kDraw) {
      const double drawn = uniform(static_cast<uint64_t>(seed[s]), static_cast<uint32_t>(draw[s]));
      const double passed = __dmul_rn(drawn, static_cast<double>(kept));
      goal.least = smaller(static_cast<uint64_t>(passed) + 1, kept);
    }
    const Found found = row.find(goal, stage == kLikeliest);
    if (stage == kLikeliest) {
      if (block == 0)
        for (int i = threadIdx.x; i < top; i += kThreads) {
          top_tokens[int64_t{s} * top + i] = token_of(sorted[i]);
          top_logprobs[int64_t{s} * top + i] = logprob_of(sorted[i]);
        }
      chosen = sorted[0];
    } else if (stage == kLimit) {
      whole = found.mass;
    } else if (stage == kKeep) {
      kept = found.mass;
    } else {
      chosen = found.key;
    }
  }
  if (block == 0 && threadIdx.x == 0) token[s] = token_of(chosen), logprob[s] = logprob_of(chosen);
  cluster_sync();
}
