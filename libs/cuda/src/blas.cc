#include "kern/cuda/blas.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "kern/base/assert.h"
#include "matmul.h"

namespace kern::cuda {
namespace {

using blas_api::Status;
using blas_api::Table;

constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;
constexpr int kCandidatesMax = 16;
constexpr uint32_t kAlignment = 16;

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

}  // namespace

std::vector<int64_t> row_counts(int64_t m_max) {
  std::vector<int64_t> out;
  for (int64_t m = 1; m <= std::min<int64_t>(m_max, 32); ++m) out.push_back(m);
  for (int64_t power = 64; power / 2 <= m_max; power *= 2)
    for (const int64_t m : {power - 1, power, power + 1})
      if (m > 32 && m < m_max) out.push_back(m);
  if (m_max > 32) out.push_back(m_max);
  return out;
}

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

}  // namespace kern::cuda
