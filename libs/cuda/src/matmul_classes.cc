#include <algorithm>
#include <array>
#include <cstring>

#include "kern/base/assert.h"
#include "kern/base/prng.h"
#include "kern/cuda/blas.h"
#include "matmul.h"

namespace kern::cuda {
namespace {

/// Where classes of row counts end: a step of few sequences, of many, chunks of a prompt.
constexpr std::array<int64_t, 5> kClassRows = {16, 64, 256, 1024, 4096};
/// A product's weights come from memory, not from a cache: so many bytes of them in turn.
constexpr int64_t kColdBytes = int64_t{256} << 20;
/// Timed runs take about so long together, and are so many at most, so often.
constexpr double kRunsMilliseconds = 0.5;
constexpr int64_t kRunsMax = 6;
constexpr int kRepeats = 2;
/// Rows whose bits are compared, and candidates of a class that are.
constexpr int64_t kComparedRows = 128;
constexpr size_t kTriedMax = 5;
constexpr double kHopeless = 1.3, kNever = 1e9;
/// What a class must gain for an algorithm of its own.
constexpr double kGainMin = 0.03;
constexpr int64_t kRefused = -1;

}  // namespace

/// Random operands, more weights than a cache holds, and the base to compare with.
struct Matmul::Trial {
  const Stream& stream;
  DeviceBuffer a, w, c;
  int64_t weights = 0;  ///< different ones in `w`, a product each
  int64_t weight_bytes = 0, c_bytes = 0;
  Event first, last;

  static Result<Trial> create(const MatmulOptions& options, const Product& product, int64_t rows);
  api::Pointer weight(int64_t i) const {
    return w.address() + static_cast<api::Pointer>(i % weights * weight_bytes);
  }
};

namespace {

/// Fills memory with bf16 values between -2 and 2 of every mantissa, repeating after a prime
/// number of them, so that rows differ.
Result<void> fill_random(const Stream& stream, api::Pointer to, int64_t bytes) {
  constexpr int64_t kPeriod = 1048573;
  static_assert(kPeriod % 2 == 1);
  std::vector<uint16_t> values(static_cast<size_t>(kPeriod));
  Prng random(20260417);
  for (uint16_t& value : values) {
    const uint64_t bits = random.next();
    // Exponents 119 to 127 of f32's 8 bits, any sign and mantissa.
    value =
        static_cast<uint16_t>((bits & 0x8000) | ((119 + (bits >> 16) % 9) << 7) | (bits & 0x7F));
  }
  int64_t filled = std::min<int64_t>(bytes, kPeriod * 2);
  KERN_TRY_VOID(stream.copy_to_device(
      to, std::as_bytes(std::span(values)).first(static_cast<size_t>(filled))));
  KERN_TRY_VOID(stream.synchronize());
  for (; filled < bytes; filled *= 2)
    KERN_TRY_VOID(stream.copy_on_device(to + static_cast<api::Pointer>(filled), to,
                                        std::min(filled, bytes - filled)));
  return {};
}

}  // namespace

Result<Matmul::Trial> Matmul::Trial::create(const MatmulOptions& options, const Product& product,
                                            int64_t rows) {
  const Context& context = *options.context;
  const int64_t weight_bytes = (product.n * product.k * 2 + 255) / 256 * 256;
  const int64_t weights = std::max<int64_t>(1, kColdBytes / weight_bytes);
  const int64_t a_bytes = rows * product.a_stride * 2;
  const int64_t c_bytes = rows * product.c_stride * (product.c_is_f32 ? 4 : 2);
  KERN_TRY(a, DeviceBuffer::allocate(context, a_bytes));
  KERN_TRY(w, DeviceBuffer::allocate(context, weights * weight_bytes));
  KERN_TRY(c, DeviceBuffer::allocate(context, c_bytes));
  KERN_TRY(first, Event::create(context.driver(), Event::Timing::on));
  KERN_TRY(last, Event::create(context.driver(), Event::Timing::on));
  Trial trial{*options.tune_on, std::move(a), std::move(w),     std::move(c),   weights,
              weight_bytes,     c_bytes,      std::move(first), std::move(last)};
  KERN_TRY_VOID(fill_random(trial.stream, trial.a.address(), a_bytes));
  KERN_TRY_VOID(fill_random(trial.stream, trial.w.address(), weights * weight_bytes));
  return trial;
}

/// A product of so many rows with one of the trial's weights.
Result<void> Matmul::run_trial(const Trial& trial, const blas_api::Algo& algo, const Layouts& at,
                               int64_t weight) const {
  return enqueue(trial.stream, algo, at, trial.a.address(), trial.weight(weight),
                 trial.c.address());
}

Result<std::vector<std::byte>> Matmul::bits(const Trial& trial, const blas_api::Algo& algo,
                                            const Layouts& at) const {
  std::vector<std::byte> out(
      static_cast<size_t>(at.m * product_.c_stride * (product_.c_is_f32 ? 4 : 2)));
  KERN_TRY_VOID(trial.stream.fill(trial.c.address(), 0, static_cast<int64_t>(out.size())));
  KERN_TRY_VOID(run_trial(trial, algo, at, 0));
  KERN_TRY_VOID(trial.stream.copy_to_host(out, trial.c.address()));
  KERN_TRY_VOID(trial.stream.synchronize());
  return out;
}

/// The least time of one product, weights cold; of a single run, when that is hopeless.
Result<double> Matmul::milliseconds(const Trial& trial, const blas_api::Algo& algo,
                                    const Layouts& at, double to_beat) const {
  int64_t weight = 0;
  const auto time = [&](int64_t runs) -> Result<double> {
    KERN_TRY_VOID(trial.stream.record(trial.first));
    for (int64_t i = 0; i < runs; ++i) KERN_TRY_VOID(run_trial(trial, algo, at, weight++));
    KERN_TRY_VOID(trial.stream.record(trial.last));
    KERN_TRY_VOID(trial.last.synchronize());
    KERN_TRY(all, trial.last.milliseconds_since(trial.first));
    return all / static_cast<double>(runs);
  };
  KERN_TRY(best, time(1));
  if (best > kHopeless * to_beat) return best;
  const auto runs = static_cast<int64_t>(kRunsMilliseconds / std::max(best, 1e-3));
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    KERN_TRY(again, time(std::clamp<int64_t>(runs, 1, kRunsMax)));
    best = std::min(best, again);
  }
  return best;
}

/// What the heuristic names for any class, if it has the base's bits.
Result<std::vector<Matmul::Candidate>> Matmul::agreeing(const Trial& trial, int64_t m_max) const {
  const blas_api::Algo& base = classes_.back().algo;
  const auto is_same = [](const blas_api::Algo& a, const blas_api::Algo& b) {
    return std::memcmp(&a, &b, sizeof(a)) == 0;
  };
  KERN_TRY(at, layouts(std::min(m_max, kComparedRows)));
  KERN_TRY(wanted, bits(trial, base, *at));
  std::vector<blas_api::Algo> seen = {base};
  std::vector<Candidate> out;
  for (const int64_t bound : kClassRows) {
    KERN_TRY(found, candidates(std::min(bound, m_max)));
    if (found.size() > kTriedMax) found.resize(kTriedMax);
    for (const blas_api::Algo& algo : found) {
      if (std::any_of(seen.begin(), seen.end(), [&](const auto& s) { return is_same(s, algo); }))
        continue;
      seen.push_back(algo);
      if (!accepts(algo, at->m)) continue;
      KERN_TRY(got, bits(trial, algo, *at));
      if (got == wanted) out.push_back({algo, 0});
    }
    if (bound >= m_max) break;
  }
  return out;
}

/// The fastest for up to so many rows; nothing when that is the base. Classes come in ascending
/// order: a candidate is asked about the row counts that are new.
Result<std::optional<blas_api::Algo>> Matmul::fastest(const Trial& trial,
                                                      std::span<Candidate> tried,
                                                      int64_t rows_max) const {
  KERN_TRY(at, layouts(rows_max));
  KERN_TRY(base, milliseconds(trial, classes_.back().algo, *at, kNever));
  double least = base * (1 - kGainMin);
  std::optional<blas_api::Algo> chosen;
  for (Candidate& candidate : tried) {
    for (const int64_t m : row_counts(rows_max))
      if (m > candidate.accepted_to && candidate.accepted_to != kRefused)
        candidate.accepted_to = accepts(candidate.algo, m) ? m : kRefused;
    if (candidate.accepted_to == kRefused) continue;
    KERN_TRY(time, milliseconds(trial, candidate.algo, *at, least));
    if (time >= least) continue;
    least = time;
    chosen = candidate.algo;
  }
  return chosen;
}

Result<void> Matmul::tune(const MatmulOptions& options) {
  KERN_ASSERT(options.context != nullptr, "where to take the operands' memory from");
  const int64_t rows = std::min(options.m_max, kClassRows.back());
  auto trial = Trial::create(options, product_, rows);
  if (!trial) return {};  // no memory for it: the base serves all
  KERN_TRY(tried, agreeing(*trial, options.m_max));
  std::vector<RowClass> classes;
  for (const int64_t bound : kClassRows) {
    const int64_t rows_max = std::min(bound, options.m_max);
    KERN_TRY(best, fastest(*trial, tried, rows_max));
    classes.push_back({rows_max, best.value_or(classes_.back().algo), nullptr});
    if (bound >= options.m_max) break;
  }
  classes.push_back(std::move(classes_.back()));
  classes_ = std::move(classes);
  is_loaded_ = true;
  return trial->stream.synchronize();
}

}  // namespace kern::cuda
