#include "kern/cuda/blas.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "kern/base/assert.h"
#include "kern/base/prng.h"

namespace kern::cuda {
namespace {

using blas_api::Status;
using blas_api::Table;

constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;
constexpr int kCandidatesMax = 16;
constexpr uint32_t kAlignment = 16;
constexpr int64_t kNoBound = INT64_MAX;

/// Where classes of row counts end: a step of few sequences, of many, chunks of a prompt.
constexpr std::array<int64_t, 5> kClassRows = {16, 64, 256, 1024, 4096};
/// A product's weights come from memory, not from a cache: so many bytes of them in turn.
constexpr int64_t kColdBytes = int64_t{256} << 20;
constexpr int kRepeats = 3, kRunsEach = 6;
/// Rows whose bits are compared, and candidates of a class that are.
constexpr int64_t kComparedRows = 256;
constexpr size_t kTriedMax = 5;
constexpr double kHopeless = 1.25, kNever = 1e9;
/// What a class must gain for an algorithm of its own.
constexpr double kGainMin = 0.03;

// The library's numbers.
constexpr int kTypeF32 = 0, kTypeBf16 = 14, kComputeF32 = 68;
constexpr int kDescTransposeA = 3, kTransposed = 1;
constexpr int kPreferWorkspace = 1, kPreferReductions = 3, kPreferAlignmentA = 5;
constexpr int kAlgoId = 0, kAlgoTile = 1, kAlgoSplitK = 2, kAlgoReduction = 3, kAlgoSwizzle = 4,
              kAlgoCustom = 5, kAlgoStages = 6, kAlgoInnerShape = 7, kAlgoClusterShape = 8;

struct Row {
  const char* name;
  size_t place;
};
constexpr std::array kRows = {
    Row{"cublasLtCreate", offsetof(Table, create)},
    Row{"cublasLtDestroy", offsetof(Table, destroy)},
    Row{"cublasLtGetVersion", offsetof(Table, get_version)},
    Row{"cublasLtGetStatusName", offsetof(Table, get_status_name)},
    Row{"cublasLtMatmulDescCreate", offsetof(Table, desc_create)},
    Row{"cublasLtMatmulDescDestroy", offsetof(Table, desc_destroy)},
    Row{"cublasLtMatmulDescSetAttribute", offsetof(Table, desc_set)},
    Row{"cublasLtMatrixLayoutCreate", offsetof(Table, layout_create)},
    Row{"cublasLtMatrixLayoutDestroy", offsetof(Table, layout_destroy)},
    Row{"cublasLtMatmulPreferenceCreate", offsetof(Table, preference_create)},
    Row{"cublasLtMatmulPreferenceDestroy", offsetof(Table, preference_destroy)},
    Row{"cublasLtMatmulPreferenceSetAttribute", offsetof(Table, preference_set)},
    Row{"cublasLtMatmulAlgoGetHeuristic", offsetof(Table, get_heuristic)},
    Row{"cublasLtMatmulAlgoInit", offsetof(Table, algo_init)},
    Row{"cublasLtMatmulAlgoConfigSetAttribute", offsetof(Table, algo_set)},
    Row{"cublasLtMatmulAlgoConfigGetAttribute", offsetof(Table, algo_get)},
    Row{"cublasLtMatmulAlgoCheck", offsetof(Table, algo_check)},
    Row{"cublasLtMatmul", offsetof(Table, matmul)},
};
static_assert(sizeof(Table) == kRows.size() * sizeof(void*), "every function is looked up");

/// Row counts to try up to the largest: all small ones, and around the powers of two.
std::vector<int64_t> row_counts(int64_t m_max) {
  std::vector<int64_t> out;
  for (int64_t m = 1; m <= std::min<int64_t>(m_max, 32); ++m) out.push_back(m);
  for (int64_t power = 64; power / 2 <= m_max; power *= 2)
    for (const int64_t m : {power - 1, power, power + 1})
      if (m > 32 && m < m_max) out.push_back(m);
  if (m_max > 32) out.push_back(m_max);
  return out;
}

}  // namespace

// ---- the library ----

Result<std::unique_ptr<Blas>> Blas::load(const Context& context) {
  void* library = nullptr;
  std::string why;
  for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12"}) {
    // Never closed: it keeps state in the context.
    library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library != nullptr) break;
    why += fmt::format("{}{}", why.empty() ? "" : "; ", ::dlerror());
  }
  if (library == nullptr) return fail(Kind::device, "no cuBLASLt: {}", why);
  Table table{};
  for (const Row& row : kRows) {
    void* function = ::dlsym(library, row.name);
    if (function == nullptr) return fail(Kind::device, "this cuBLASLt has no {}", row.name);
    std::memcpy(reinterpret_cast<char*>(&table) + row.place, &function, sizeof(function));
  }
  return create(context, table);
}

Result<std::unique_ptr<Blas>> Blas::create(const Context& context, const Table& table) {
  auto blas = std::make_unique<Blas>(table);
  KERN_TRY_VOID(blas->check("cublasLtCreate", table.create(&blas->handle_)));
  KERN_TRY(workspace, DeviceBuffer::allocate(context, kWorkspaceBytes));
  blas->workspace_ = std::move(workspace);
  return blas;
}

Blas::~Blas() {
  if (handle_ != nullptr) table_.destroy(handle_);
}

Result<void> Blas::check(const char* call, Status status) const {
  if (status == 0) return {};
  const char* name = table_.get_status_name(status);
  return fail(Kind::device, "{}: {} ({})", call, name == nullptr ? "?" : name, status);
}

// ---- products ----

/// The library sees column-major matrices: C^T [n, m] = W [n, k] * A^T [k, m].
struct Matmul::Layouts {
  explicit Layouts(const Blas& b) : blas(b) {}
  Layouts(const Layouts&) = delete;
  Layouts& operator=(const Layouts&) = delete;
  ~Layouts() {
    for (blas_api::Layout layout : {w, a, c})
      if (layout != nullptr) blas->layout_destroy(layout);
  }

  const Blas& blas;
  int64_t m = 0;
  blas_api::Layout w = nullptr, a = nullptr, c = nullptr;
};

Result<std::unique_ptr<Matmul::Layouts>> Matmul::layouts(int64_t m) const {
  const Blas& blas = *blas_;
  auto out = std::make_unique<Layouts>(blas);
  out->m = m;
  const auto n = static_cast<uint64_t>(product_.n), k = static_cast<uint64_t>(product_.k);
  const auto rows = static_cast<uint64_t>(m);
  const auto create = [&](blas_api::Layout* layout, int type, uint64_t down, uint64_t across,
                          int64_t stride) {
    return blas.check("cublasLtMatrixLayoutCreate",
                      blas->layout_create(layout, type, down, across, stride));
  };
  KERN_TRY_VOID(create(&out->w, kTypeBf16, k, n, product_.k));
  KERN_TRY_VOID(create(&out->a, kTypeBf16, k, rows, product_.a_stride));
  KERN_TRY_VOID(
      create(&out->c, product_.c_is_f32 ? kTypeF32 : kTypeBf16, n, rows, product_.c_stride));
  return out;
}

Result<void> Matmul::accepts(const blas_api::Algo& algo, int64_t m) const {
  KERN_TRY(at, layouts(m));
  blas_api::HeuristicResult result{};
  const Status status =
      (*blas_)->algo_check(blas_->handle(), desc_, at->w, at->a, at->c, at->c, &algo, &result);
  KERN_TRY_VOID(blas_->check("cublasLtMatmulAlgoCheck", status));
  if (result.workspace_bytes > static_cast<size_t>(kWorkspaceBytes))
    return fail(Kind::device, "the algorithm wants {} bytes of workspace, expected at most {}",
                result.workspace_bytes, kWorkspaceBytes);
  return {};
}

Result<void> Matmul::pin(const PinnedAlgo& pinned) {
  const Blas& blas = *blas_;
  const int c_type = product_.c_is_f32 ? kTypeF32 : kTypeBf16;
  blas_api::Algo algo = {};
  KERN_TRY_VOID(blas.check("cublasLtMatmulAlgoInit",
                           blas->algo_init(blas.handle(), kComputeF32, kTypeF32, kTypeBf16,
                                           kTypeBf16, c_type, c_type, pinned.id, &algo)));
  const auto set = [&](int attribute, const auto& value) {
    return blas.check("cublasLtMatmulAlgoConfigSetAttribute",
                      blas->algo_set(&algo, attribute, &value, sizeof(value)));
  };
  KERN_TRY_VOID(set(kAlgoTile, pinned.tile));
  KERN_TRY_VOID(set(kAlgoStages, pinned.stages));
  KERN_TRY_VOID(set(kAlgoSplitK, static_cast<int32_t>(pinned.split_k)));
  KERN_TRY_VOID(set(kAlgoReduction, pinned.reduction));
  KERN_TRY_VOID(set(kAlgoSwizzle, pinned.swizzle));
  KERN_TRY_VOID(set(kAlgoCustom, pinned.custom));
  KERN_TRY_VOID(set(kAlgoInnerShape, pinned.inner_shape));
  KERN_TRY_VOID(set(kAlgoClusterShape, pinned.cluster_shape));
  classes_.push_back({kNoBound, algo, nullptr});
  return {};
}

/// What the heuristic names for m rows, without split-K, best first.
Result<std::vector<blas_api::Algo>> Matmul::candidates(int64_t m) const {
  const Blas& blas = *blas_;
  KERN_TRY(at, layouts(m));
  blas_api::Preference preference = nullptr;
  KERN_TRY_VOID(blas.check("cublasLtMatmulPreferenceCreate", blas->preference_create(&preference)));
  const auto set = [&](int attribute, const auto& value) {
    return blas->preference_set(preference, attribute, &value, sizeof(value));
  };
  const uint64_t workspace = kWorkspaceBytes;
  const uint32_t no_reduction = 0;
  Status status = set(kPreferWorkspace, workspace);
  if (status == 0) status = set(kPreferReductions, no_reduction);
  for (int matrix = 0; matrix < 4 && status == 0; ++matrix)
    status = set(kPreferAlignmentA + matrix, kAlignment);
  std::array<blas_api::HeuristicResult, kCandidatesMax> found{};
  int count = 0;
  if (status == 0)
    status = blas->get_heuristic(blas.handle(), desc_, at->w, at->a, at->c, at->c, preference,
                                 kCandidatesMax, found.data(), &count);
  blas->preference_destroy(preference);
  KERN_TRY_VOID(blas.check("cublasLtMatmulAlgoGetHeuristic", status));
  std::vector<blas_api::Algo> out;
  for (int i = 0; i < count; ++i) {
    int32_t split_k = 1;
    size_t written = 0;
    const blas_api::HeuristicResult& result = found[static_cast<size_t>(i)];
    blas->algo_get(&result.algo, kAlgoSplitK, &split_k, sizeof(split_k), &written);
    if (result.state == 0 && split_k <= 1) out.push_back(result.algo);
  }
  return out;
}

Result<void> Matmul::choose(const MatmulOptions& options) {
  KERN_TRY(found, candidates(options.reference_rows));
  for (const blas_api::Algo& algo : found) {
    bool good = true;
    for (const int64_t m : row_counts(options.m_max)) good = good && accepts(algo, m).has_value();
    if (!good) continue;
    classes_.push_back({kNoBound, algo, nullptr});
    return {};
  }
  return fail(
      Kind::manifest,
      "cuBLASLt has no algorithm for n {}, k {}, row strides {} of C and {} of A that takes "
      "every number of rows up to {} (of {} candidates)",
      product_.n, product_.k, product_.c_stride, product_.a_stride, options.m_max, found.size());
}

Result<Matmul> Matmul::plan(const Blas& blas, const Product& product,
                            const MatmulOptions& options) {
  KERN_ASSERT(product.n > 0 && product.k > 0 && options.m_max > 0, "n {}, k {}, m {}", product.n,
              product.k, options.m_max);
  Matmul out(blas, product);
  KERN_TRY_VOID(
      blas.check("cublasLtMatmulDescCreate", blas->desc_create(&out.desc_, kComputeF32, kTypeF32)));
  const int32_t transposed = kTransposed;
  KERN_TRY_VOID(
      blas.check("cublasLtMatmulDescSetAttribute",
                 blas->desc_set(out.desc_, kDescTransposeA, &transposed, sizeof(transposed))));
  if (!options.pinned) {
    KERN_TRY_VOID(out.choose(options));
    if (options.tune_on != nullptr) KERN_TRY_VOID(out.tune(options));
    return out;
  }
  KERN_TRY_VOID(out.pin(*options.pinned));
  for (const int64_t m : row_counts(options.m_max))
    if (const auto accepted = out.accepts(out.classes_.back().algo, m); !accepted)
      return fail(Kind::manifest, "the pinned algorithm does not fit {} rows of n {}, k {}: {}", m,
                  product.n, product.k, accepted.error().message);
  return out;
}

Matmul::Matmul(const Blas& blas, const Product& product) : blas_(&blas), product_(product) {}

Matmul::Matmul(Matmul&& other) noexcept
    : blas_(other.blas_),
      product_(other.product_),
      desc_(std::exchange(other.desc_, nullptr)),
      classes_(std::move(other.classes_)),
      is_loaded_(other.is_loaded_) {}

Matmul& Matmul::operator=(Matmul&& other) noexcept {
  std::swap(blas_, other.blas_);
  std::swap(product_, other.product_);
  std::swap(desc_, other.desc_);
  std::swap(classes_, other.classes_);
  std::swap(is_loaded_, other.is_loaded_);
  return *this;
}

Matmul::~Matmul() {
  if (desc_ != nullptr) (*blas_)->desc_destroy(desc_);
}

Result<void> Matmul::enqueue(const Stream& stream, const blas_api::Algo& algo, const Layouts& at,
                             api::Pointer a, api::Pointer w, api::Pointer c) const {
  const float alpha = 1, beta = product_.accumulates ? 1 : 0;
  const auto pointer = [](api::Pointer address) { return reinterpret_cast<void*>(address); };
  return blas_->check(
      "cublasLtMatmul",
      (*blas_)->matmul(blas_->handle(), desc_, &alpha, pointer(w), at.w, pointer(a), at.a, &beta,
                       pointer(c), at.c, pointer(c), at.c, &algo,
                       pointer(blas_->workspace().address()),
                       static_cast<size_t>(blas_->workspace().bytes()), stream.raw()));
}

Result<void> Matmul::run(const Stream& stream, int64_t m, api::Pointer a, api::Pointer w,
                         api::Pointer c) {
  size_t index = 0;
  while (m > classes_[index].rows_max) ++index;
  RowClass& row_class = classes_[index];
  if (row_class.last == nullptr || row_class.last->m != m) {
    KERN_TRY(at, layouts(m));
    row_class.last = std::move(at);
  }
  is_loaded_ = is_loaded_ || classes_.size() == 1;
  return enqueue(stream, row_class.algo, *row_class.last, a, w, c);
}

std::string Matmul::describe() const {
  std::string out;
  for (const RowClass& row_class : classes_) {
    const auto get = [&](int attribute, auto value) {
      size_t written = 0;
      (*blas_)->algo_get(&row_class.algo, attribute, &value, sizeof(value), &written);
      return value;
    };
    out += fmt::format(
        "{}{}: id {}, tile {}, stages {}, cluster {}", out.empty() ? "" : "; ",
        row_class.rows_max == kNoBound ? "more rows" : fmt::format("{} rows", row_class.rows_max),
        get(kAlgoId, int32_t{0}), get(kAlgoTile, uint32_t{0}), get(kAlgoStages, uint32_t{0}),
        get(kAlgoClusterShape, uint16_t{0}));
  }
  return out;
}

// ---- classes of row counts ----

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

/// The least of a few times, weights cold; of one, when that is hopeless.
Result<double> Matmul::milliseconds(const Trial& trial, const blas_api::Algo& algo,
                                    const Layouts& at, double to_beat) const {
  double best = 0;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    KERN_TRY_VOID(trial.stream.record(trial.first));
    for (int i = 0; i < kRunsEach; ++i)
      KERN_TRY_VOID(run_trial(trial, algo, at, repeat * kRunsEach + i));
    KERN_TRY_VOID(trial.stream.record(trial.last));
    KERN_TRY_VOID(trial.last.synchronize());
    KERN_TRY(time, trial.last.milliseconds_since(trial.first));
    if (repeat == 0 || time < best) best = time;
    if (best > kHopeless * to_beat) break;
  }
  return best;
}

/// What the heuristic names for any class, if it has the base's bits.
Result<std::vector<blas_api::Algo>> Matmul::agreeing(const Trial& trial, int64_t m_max) const {
  const blas_api::Algo& base = classes_.back().algo;
  const auto is_same = [](const blas_api::Algo& a, const blas_api::Algo& b) {
    return std::memcmp(&a, &b, sizeof(a)) == 0;
  };
  KERN_TRY(at, layouts(std::min(m_max, kComparedRows)));
  KERN_TRY(wanted, bits(trial, base, *at));
  std::vector<blas_api::Algo> seen = {base}, out;
  for (const int64_t bound : kClassRows) {
    KERN_TRY(found, candidates(std::min(bound, m_max)));
    if (found.size() > kTriedMax) found.resize(kTriedMax);
    for (const blas_api::Algo& algo : found) {
      if (std::any_of(seen.begin(), seen.end(), [&](const auto& s) { return is_same(s, algo); }))
        continue;
      seen.push_back(algo);
      if (!accepts(algo, at->m)) continue;
      KERN_TRY(got, bits(trial, algo, *at));
      if (got == wanted) out.push_back(algo);
    }
    if (bound >= m_max) break;
  }
  return out;
}

/// The fastest for up to so many rows; nothing when that is the base.
Result<std::optional<blas_api::Algo>> Matmul::fastest(const Trial& trial,
                                                      std::span<const blas_api::Algo> tried,
                                                      int64_t rows_max) const {
  KERN_TRY(at, layouts(rows_max));
  KERN_TRY(base, milliseconds(trial, classes_.back().algo, *at, kNever));
  double least = base * (1 - kGainMin);
  std::optional<blas_api::Algo> chosen;
  for (const blas_api::Algo& algo : tried) {
    bool good = true;
    for (const int64_t m : row_counts(rows_max)) good = good && accepts(algo, m).has_value();
    if (!good) continue;
    KERN_TRY(time, milliseconds(trial, algo, *at, least));
    if (time >= least) continue;
    least = time;
    chosen = algo;
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
