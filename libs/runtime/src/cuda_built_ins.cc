#include "cuda_built_ins.h"

#include <array>
#include <cstring>

#include "built_ins.h"
#include "kern/base/assert.h"

namespace kern::runtime {
namespace {

using manifest::Dtype;
using What = manifest::ParamType::What;

enum class Form : uint8_t { gemm, collective };

struct Row {
  std::string_view name;
  Form form;
  Dtype dtype;                                     ///< of C, or of the elements of a collective
  bool accumulates = false;                        ///< gemm
  Collective collective = Collective::all_reduce;  ///< collective
};

constexpr Row collective_row(std::string_view name, Dtype dtype, Collective what) {
  return {name, Form::collective, dtype, false, what};
}

constexpr std::array kRows = {
    Row{"gemm_bf16_tn", Form::gemm, Dtype::bf16},
    Row{"gemm_bf16_tn_acc", Form::gemm, Dtype::bf16, true},
    Row{"gemm_bf16_tn_f32", Form::gemm, Dtype::f32},
    Row{"cublaslt_bf16_tn", Form::gemm, Dtype::bf16},
    Row{"cublaslt_bf16_tn_acc", Form::gemm, Dtype::bf16, true},
    Row{"cublas_bf16_tn_f32", Form::gemm, Dtype::f32},
    collective_row("allreduce_bf16", Dtype::bf16, Collective::all_reduce),
    collective_row("allreduce_f32", Dtype::f32, Collective::all_reduce),
    collective_row("allgather_bf16", Dtype::bf16, Collective::all_gather),
    collective_row("allgather_f32", Dtype::f32, Collective::all_gather),
    collective_row("reducescatter_bf16", Dtype::bf16, Collective::reduce_scatter),
    collective_row("reducescatter_f32", Dtype::f32, Collective::reduce_scatter),
    collective_row("alltoall_bf16", Dtype::bf16, Collective::all_to_all),
    collective_row("alltoall_f32", Dtype::f32, Collective::all_to_all),
};

Cell value_of(const Launch& launch, uint32_t arg) {
  Cell value;
  std::memcpy(&value, launch.args[arg], sizeof(value));
  return value;
}

class Gemm final : public BuiltIn {
 public:
  Gemm(cuda::Matmul& matmul, const cuda::Stream& stream) : matmul_(matmul), stream_(stream) {}
  Result<void> run(const Launch& launch) override {
    const auto address = [&](uint32_t arg) {
      return static_cast<cuda::api::Pointer>(value_of(launch, arg));
    };
    return matmul_.run(stream_, value_of(launch, 3), address(0), address(1), address(2));
  }

 private:
  cuda::Matmul& matmul_;
  const cuda::Stream& stream_;
};

/// Every collective of a group of one is a copy.
class LoneCollective final : public BuiltIn {
 public:
  LoneCollective(const cuda::Stream& stream, int64_t element)
      : stream_(stream), element_(element) {}
  Result<void> run(const Launch& launch) override {
    const auto from = static_cast<cuda::api::Pointer>(value_of(launch, 0));
    const auto to = static_cast<cuda::api::Pointer>(value_of(launch, 1));
    if (from == to) return {};
    return stream_.copy_on_device(to, from, value_of(launch, 2) * element_);
  }

 private:
  const cuda::Stream& stream_;
  int64_t element_;
};

std::string known_names() {
  std::string known;
  for (const Row& row : kRows) known += fmt::format("{}{}", known.empty() ? "" : " ", row.name);
  return known;
}

constexpr std::string_view kNccl = "nccl_";

/// Counts against bytes, and who may sum: NCCL's order of summing is its own, so a collective that
/// promises the order of ranks is not its work.
Result<void> check_collective(const Row& row, const LaunchSource& source) {
  const Collective what = row.collective;
  const bool many_sent = what == Collective::reduce_scatter || what == Collective::all_to_all;
  const bool many_received = what == Collective::all_gather || what == Collective::all_to_all;
  const bool sums = what == Collective::all_reduce || what == Collective::reduce_scatter;
  const std::string_view name = source.built_in_name();
  KERN_TRY_VOID(check_collective_args(name, source.args, row.dtype, source.group_size,
                                      {many_sent, many_received}));
  if (sums && source.group_size != 1 && !name.starts_with(kNccl))
    return fail(Kind::manifest,
                "`extern:{}` over {} ranks sums in rank order, for which the cuda device has no "
                "built-in: kernels over peer buffers do, and `extern:{}{}` sums in NCCL's order",
                name, source.group_size, kNccl, name);
  return {};
}

Result<void> check_args(const Row& row, const LaunchSource& source) {
  const std::span<const BoundArg> args = source.args;
  const size_t least = row.form == Form::gemm ? 6 : 4, most = row.form == Form::gemm ? 8 : 4;
  if (args.size() < least || args.size() > most)
    return fail(Kind::manifest, "`extern:{}` takes {} args, got {}", row.name,
                least == most ? fmt::format("{}", least) : fmt::format("{} to {}", least, most),
                args.size());
  const size_t pointers = row.form == Form::gemm ? 3 : 2;
  for (size_t i = 0; i < args.size(); ++i) {
    const What what = args[i].type.what;
    const bool fits = i < pointers ? what == What::buffer || what == What::state
                                   : what == What::i32 || what == What::i64;
    const Dtype dtype = row.form == Form::gemm && i < 2 ? Dtype::bf16 : row.dtype;
    if (!fits || (what == What::buffer && args[i].type.dtype != dtype))
      return fail(
          Kind::manifest, "`extern:{}` arg #{} is `{}`, expected {}", row.name, i,
          manifest::to_string(args[i].type),
          i < pointers ? fmt::format("a buffer of {}", manifest::to_string(dtype)) : "i32 or i64");
    if (i < pointers && args[i].is_peer)
      return fail(Kind::manifest, "`extern:{}` arg #{} is a peer buffer", row.name, i);
  }
  if (row.form == Form::gemm) return check_gemm_args(row.name, args, row.dtype);
  return check_collective(row, source);
}

/// Sizes that vars change would change the algorithm with them.
Result<cuda::Product> product_of(const Row& row, std::span<const BoundArg> args) {
  cuda::Product product;
  product.n = *args[4].cell;
  product.k = *args[5].cell;
  product.c_stride = args.size() > 6 ? *args[6].cell : product.n;
  product.a_stride = args.size() > 7 ? *args[7].cell : product.k;
  product.c_is_f32 = row.dtype == Dtype::f32;
  product.accumulates = row.accumulates;
  for (size_t i = 4; i < args.size(); ++i)
    if (args[i].varies)
      return fail(Kind::manifest,
                  "`extern:{}` arg #{} changes with a var, and only the number of rows may",
                  row.name, i);
  return product;
}

std::optional<cuda::PinnedAlgo> pinned_of(const manifest::Launch& launch) {
  if (!launch.algo) return std::nullopt;
  cuda::PinnedAlgo out;
  for (const auto& [name, value] : launch.algo->fields) {
    if (name == "id") out.id = static_cast<int32_t>(value);
    if (name == "tile") out.tile = static_cast<uint32_t>(value);
    if (name == "stages") out.stages = static_cast<uint32_t>(value);
    if (name == "split_k") out.split_k = static_cast<uint32_t>(value);
    if (name == "reduction") out.reduction = static_cast<uint32_t>(value);
    if (name == "swizzle") out.swizzle = static_cast<uint32_t>(value);
    if (name == "custom") out.custom = static_cast<uint32_t>(value);
    if (name == "inner_shape") out.inner_shape = static_cast<uint16_t>(value);
    if (name == "cluster_shape") out.cluster_shape = static_cast<uint16_t>(value);
  }
  return out;
}

Result<std::unique_ptr<BuiltIn>> lower_collective(const Row& row, const LaunchSource& source,
                                                  CudaBuiltInRoom& room) {
  if (source.group_size == 1)
    return std::unique_ptr<BuiltIn>(
        std::make_unique<LoneCollective>(room.stream(), manifest::size_of(row.dtype)));
  const auto type = row.dtype == Dtype::f32 ? cuda::ElementType::f32 : cuda::ElementType::bf16;
  KERN_ASSERT(source.group != nullptr, "{} ranks", source.group_size);
  return with_context(
      room.collectives().lower(row.collective, type, source.args[3].group, *source.group),
      "`extern:{}`", source.built_in_name());
}

}  // namespace

Result<cuda::Matmul*> CudaBuiltInRoom::matmul(const cuda::Product& product, int64_t m_max,
                                              const std::optional<cuda::PinnedAlgo>& pinned) {
  if (blas_ == nullptr) {
    KERN_TRY(blas, cuda::Blas::load(context_));
    blas_ = std::move(blas);
  }
  if (pinned) {
    KERN_TRY(matmul, cuda::Matmul::plan(*blas_, product, {.m_max = m_max, .pinned = pinned}));
    return pinned_.emplace_back(std::make_unique<cuda::Matmul>(std::move(matmul))).get();
  }
  std::unique_ptr<cuda::Matmul>& decided = decided_[{product, m_max}];
  if (decided == nullptr) {
    KERN_TRY(matmul,
             cuda::Matmul::plan(*blas_, product,
                                {.m_max = m_max, .tune_on = &stream_, .context = &context_}));
    decided = std::make_unique<cuda::Matmul>(std::move(matmul));
  }
  return decided.get();
}

Result<LoweredBuiltIn> lower_cuda_built_in(const LaunchSource& source, CudaBuiltInRoom* room) {
  std::string_view name = source.built_in_name();
  const bool is_nccl = name.starts_with(kNccl);
  if (is_nccl) name.remove_prefix(kNccl.size());
  const Row* row = nullptr;
  for (const Row& each : kRows)
    if (each.name == name && (!is_nccl || each.form == Form::collective)) row = &each;
  if (row == nullptr)
    return fail(Kind::manifest, "the cuda device has no built-in `extern:{}`, it has: {}",
                source.built_in_name(), known_names());
  KERN_TRY_VOID(check_args(*row, source));
  LoweredBuiltIn out;
  if (row->form == Form::collective) {
    if (room == nullptr) return out;
    KERN_TRY(run, lower_collective(*row, source, *room));
    out.run = std::move(run);
    return out;
  }
  KERN_TRY(product, product_of(*row, source.args));
  if (room == nullptr) return out;
  KERN_TRY(matmul,
           with_context(room->matmul(product, *source.args[3].cell, pinned_of(source.launch)),
                        "`extern:{}`", source.built_in_name()));
  // The first run loads the library's code, which may wait for all that runs: not while ranks wait
  // for each other. Where the choice of an algorithm did not run it: one row of whatever stands
  // there, for nobody has read the result yet.
  if (!matmul->is_loaded()) {
    const auto address = [&](size_t arg) {
      return static_cast<cuda::api::Pointer>(*source.args[arg].cell);
    };
    KERN_TRY_VOID(matmul->run(room->stream(), 1, address(0), address(1), address(2)));
  }
  out.run = std::make_unique<Gemm>(*matmul, room->stream());
  return out;
}

}  // namespace kern::runtime
