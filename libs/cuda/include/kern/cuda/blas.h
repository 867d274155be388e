#pragma once
/// C = A * W^T through cuBLASLt, found at run time, so that the bits of a row of C never depend on
/// how many rows came with it.
///
/// How: a base algorithm is fixed by the weights' shape and the types alone. It comes from the
/// library's heuristic, asked at one fixed number of rows, without split-K or any other reduction
/// after the product, at 16-byte alignment: the first that the library accepts for every number of
/// rows tried up to the largest. One kernel sums over k in one order, whichever rows its tile
/// holds. Fewer rows want other tiles: a class of row counts takes a faster algorithm if its
/// product of random operands of the very shape has the base's bits, every one of them.
/// Thread safety: one thread at a time. Ownership: a Matmul refers to its Blas, which outlives it.
/// Does not: fall back to another algorithm later.

#include <array>
#include <compare>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kern/cuda/context.h"
#include "kern/cuda/memory.h"
#include "kern/cuda/stream.h"

namespace kern::cuda {

namespace blas_api {

using Status = int;
using Handle = struct LtHandleTag*;
using Desc = struct LtDescTag*;
using Layout = struct LtLayoutTag*;
using Preference = struct LtPreferenceTag*;

struct Algo {
  uint64_t data[8];
};
struct HeuristicResult {
  Algo algo;
  size_t workspace_bytes;
  Status state;
  float waves;
  int reserved[4];
};
static_assert(sizeof(HeuristicResult) == 96);

/// The functions used of libcublasLt; a test has its own.
struct Table {
  Status (*create)(Handle*);
  Status (*destroy)(Handle);
  size_t (*get_version)();
  const char* (*get_status_name)(Status);
  Status (*desc_create)(Desc*, int compute_type, int scale_type);
  Status (*desc_destroy)(Desc);
  Status (*desc_set)(Desc, int attribute, const void* value, size_t bytes);
  Status (*layout_create)(Layout*, int type, uint64_t rows, uint64_t columns, int64_t stride);
  Status (*layout_destroy)(Layout);
  Status (*preference_create)(Preference*);
  Status (*preference_destroy)(Preference);
  Status (*preference_set)(Preference, int attribute, const void* value, size_t bytes);
  Status (*get_heuristic)(Handle, Desc, Layout a, Layout b, Layout c, Layout d, Preference,
                          int wanted, HeuristicResult*, int* found);
  Status (*algo_init)(Handle, int compute_type, int scale_type, int a, int b, int c, int d, int id,
                      Algo*);
  Status (*algo_set)(Algo*, int attribute, const void* value, size_t bytes);
  Status (*algo_get)(const Algo*, int attribute, void* value, size_t bytes, size_t* written);
  Status (*algo_check)(Handle, Desc, Layout a, Layout b, Layout c, Layout d, const Algo*,
                       HeuristicResult*);
  Status (*matmul)(Handle, Desc, const void* alpha, const void* a, Layout, const void* b, Layout,
                   const void* beta, const void* c, Layout, void* d, Layout, const Algo*,
                   void* workspace, size_t workspace_bytes, api::Stream);
};

}  // namespace blas_api

/// What is the same for every number of rows. Row-major; A and W are bf16, sums f32.
struct Product {
  int64_t n = 0, k = 0;
  int64_t c_stride = 0, a_stride = 0;  ///< elements from row to row
  bool c_is_f32 = false;               ///< else bf16
  bool accumulates = false;            ///< into the C that stands there
  friend auto operator<=>(const Product&, const Product&) = default;
};

/// An algorithm by the library's own numbers, as a manifest pins it; what is absent is 0.
struct PinnedAlgo {
  int32_t id = 0;
  uint32_t tile = 0, stages = 0, split_k = 1, reduction = 0, swizzle = 0, custom = 0;
  uint16_t inner_shape = 0, cluster_shape = 0;
};

struct MatmulOptions {
  int64_t m_max = 1;              ///< rows that must be accepted
  int64_t reference_rows = 1024;  ///< where the heuristic is asked
  std::optional<PinnedAlgo> pinned;
  /// Where candidates for few rows are compared and timed; null: the base serves all. Takes device
  /// memory for the operands meanwhile; without enough of it the base serves all.
  const Stream* tune_on = nullptr;
  const Context* context = nullptr;  ///< with tune_on
};

class Blas {
 public:
  /// Opens libcublasLt.so.13 or .12. Kind device, with the loader's words.
  static Result<std::unique_ptr<Blas>> load(const Context& context);
  /// A table of a test's own.
  static Result<std::unique_ptr<Blas>> create(const Context& context, const blas_api::Table& table);
  explicit Blas(const blas_api::Table& table) : table_(table) {}  ///< for `create`
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;
  ~Blas();

  /// Success, or kind device with the function and the library's name for the status.
  Result<void> check(const char* call, blas_api::Status status) const;
  const blas_api::Table* operator->() const { return &table_; }
  blas_api::Handle handle() const { return handle_; }
  const DeviceBuffer& workspace() const { return workspace_; }
  size_t version() const { return table_.get_version(); }

 private:
  blas_api::Table table_;
  blas_api::Handle handle_ = nullptr;
  DeviceBuffer workspace_;
};

/// A product whose algorithm is decided.
class Matmul {
 public:
  /// Kind manifest when the library has no algorithm, or refuses the pinned one for a number of
  /// rows.
  static Result<Matmul> plan(const Blas& blas, const Product& product,
                             const MatmulOptions& options);
  Matmul(Matmul&& other) noexcept;
  Matmul& operator=(Matmul&& other) noexcept;
  ~Matmul();

  /// Enqueues the product of m rows.
  Result<void> run(const Stream& stream, int64_t m, api::Pointer a, api::Pointer w, api::Pointer c);
  /// Whether each of its algorithms has run, so that the library's code for them is loaded. A load
  /// that comes later may wait for all that runs.
  bool is_loaded() const { return is_loaded_; }
  /// The library's numbers, by class: "16 rows: id 66, tile 20, …; 64 rows: …".
  std::string describe() const;

 private:
  struct Layouts;
  Matmul(const Blas& blas, const Product& product);
  Result<std::unique_ptr<Layouts>> layouts(int64_t m) const;
  Result<void> pin(const PinnedAlgo& pinned);
  struct RowClass {
    int64_t rows_max;
    blas_api::Algo algo;
    std::unique_ptr<Layouts> last;  ///< of the rows of its last run
  };
  struct Candidate {
    blas_api::Algo algo;
    int64_t accepted_to;  ///< rows up to which the library has taken it
  };
  struct Trial;
  Result<std::vector<blas_api::Algo>> candidates(int64_t m) const;
  Result<void> choose(const MatmulOptions& options);
  Result<void> tune(const MatmulOptions& options);
  Result<void> run_trial(const Trial& trial, const blas_api::Algo& algo, const Layouts& at,
                         int64_t weight) const;
  Result<std::vector<std::byte>> bits(const Trial& trial, const blas_api::Algo& algo,
                                      const Layouts& at) const;
  Result<double> milliseconds(const Trial& trial, const blas_api::Algo& algo, const Layouts& at,
                              double to_beat) const;
  Result<std::vector<Candidate>> agreeing(const Trial& trial, int64_t m_max) const;
  Result<std::optional<blas_api::Algo>> fastest(const Trial& trial, std::span<Candidate> tried,
                                                int64_t rows_max) const;
  Result<void> accepts(const blas_api::Algo& algo, int64_t m) const;
  Result<void> enqueue(const Stream& stream, const blas_api::Algo& algo, const Layouts& at,
                       api::Pointer a, api::Pointer w, api::Pointer c) const;

  const Blas* blas_;
  Product product_;
  blas_api::Desc desc_ = nullptr;
  std::vector<RowClass> classes_;  ///< ascending; the last holds the base and has no bound
  bool is_loaded_ = false;
};

}  // namespace kern::cuda
